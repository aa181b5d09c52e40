"""Files that are either whole or absent: written under a temporary name, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"


def temporary_path(path: Path) -> Path:
    """Return the name under which ``path`` is written until it is complete."""
    return path.with_name(f"{path.name}{TEMPORARY_SUFFIX}")


@contextmanager
def safe_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` and rename it to ``path`` when the block succeeds.

    If the block raises, the temporary file is removed and ``path`` stays as it was.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with safe_writer(Path(folder) / "a.txt") as file:
        ...         _ = file.write(b"whole")
        ...     (Path(folder) / "a.txt").read_bytes()
        b'whole'
    """
    temporary = temporary_path(Path(path))
    try:
        with open(temporary, "wb") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a name beside ``path`` to write to, and rename it to ``path`` when the block succeeds.

    If the block raises, what was written is removed and ``path`` stays as it was. Several processes
    may replace a file at once, also on several machines: one of them is the last.
    """
    final = Path(path)
    temporary = temporary_path(final.with_name(f"{final.name}.{os.urandom(4).hex()}"))
    try:
        yield temporary
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8 with the line ends it has, whole or not at all: :func:`replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))

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
    with _renamed(temporary_path(Path(path)), Path(path)) as file:
        yield file


@contextmanager
def _renamed(temporary: Path, final: Path) -> Iterator[BinaryIO]:
    """Open ``temporary`` and rename it to ``final`` when the block succeeds."""
    try:
        with open(temporary, "wb") as file:
            yield file
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8 with the line ends it has, whole or not at all.

    Several processes may write a file at once, also on several machines: one of them is the last.
    """
    final = Path(path)
    temporary = temporary_path(final.with_name(f"{final.name}.{os.urandom(4).hex()}"))
    with _renamed(temporary, final) as file:
        file.write(text.encode("utf-8"))

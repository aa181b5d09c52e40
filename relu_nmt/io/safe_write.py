"""Files that are either whole or absent: written under a temporary name, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"


@contextmanager
def safe_writer(
    path: str | os.PathLike[str], temporary_name: str | None = None
) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` and rename it to ``path`` when the block succeeds.

    If the block raises, the temporary file is removed and ``path`` stays as it was. What has been
    written can be read within the block.

    Args:
        path: the file.
        temporary_name: of the temporary file, before its ending; by default that of the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with safe_writer(Path(folder) / "a.txt") as file:
        ...         _ = file.write(b"whole")
        ...     (Path(folder) / "a.txt").read_bytes()
        b'whole'
    """
    final = Path(path)
    temporary = final.with_name(f"{temporary_name or final.name}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "w+b") as file:
            yield file
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8 with the line ends it has, whole or not at all.

    Several processes may write a file at once, also on several machines: one of them is the last.
    """
    with safe_writer(path, f"{Path(path).name}.{os.urandom(4).hex()}") as file:
        file.write(text.encode("utf-8"))

"""Files that a flag names for what a recipe has found."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import write_text


def check_writable(
    flag: str, path: str | None, inputs: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """See that a file can be written before hours are spent, and make its folder.

    Files are renamed into their place, which would put one where a device was.

    Args:
        flag: what names the file.
        path: the file.
        inputs: files that are read, which it would write over.

    Raises:
        DataError: it cannot.
    """
    if path is None:
        return
    file, folder = Path(path), Path(path).parent
    if any(_is_same(file, Path(other)) for other in inputs):
        raise DataError(f"{flag} {path}: is a file that is read, and would be lost; give another")
    # What a process has open, as /dev/stdout is, may lead to a plain file; its own folder tells.
    is_device = file.is_symlink() and file.absolute().parent.resolve() == Path("/dev")
    if is_device or (file.exists() and not file.is_file() and not file.is_dir()):
        raise DataError(f"{flag} {path}: is no plain file; give the name of a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(f"{flag} {path}: cannot write it: {error.strerror}") from error
    if file.is_dir():
        raise DataError(f"{flag} {path}: is a folder; give the name of a file")


def _is_same(file: Path, other: Path) -> bool:
    is_linked = file.exists() and other.exists() and file.samefile(other)
    return is_linked or file.resolve() == other.resolve()


def write_file(flag: str, path: str, text: str) -> None:
    """Write a file, whole or not at all.

    Raises:
        DataError: it cannot be written.
    """
    try:
        write_text(path, text)
    except OSError as error:
        raise DataError(f"{flag} {path}: cannot write it: {error.strerror}") from error

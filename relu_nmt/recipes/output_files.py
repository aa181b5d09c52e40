"""Files that a flag names for what a recipe has found."""

import tempfile
from pathlib import Path

from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import write_text


def check_writable(flag: str, path: str | None) -> None:
    """See that a file can be written before hours are spent, and make its folder.

    Files are renamed into their place, which would put one where a device was.

    Raises:
        DataError: it cannot.
    """
    if path is None:
        return
    file, folder = Path(path), Path(path).parent
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


def write_file(flag: str, path: str, text: str) -> None:
    """Write a file, whole or not at all.

    Raises:
        DataError: it cannot be written.
    """
    try:
        write_text(path, text)
    except OSError as error:
        raise DataError(f"{flag} {path}: cannot write it: {error.strerror}") from error

"""Files that a flag names for what a recipe has found."""

import os
import re
import tempfile
from pathlib import Path

from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import remove_abandoned, write_text


def check_writable(flag: str, path: str | None) -> None:
    """See that a file can be written before hours are spent, and make its folder.

    What killed processes left of it is removed.

    Args:
        flag: what names the file.
        path: the file.

    Raises:
        DataError: it cannot.
    """
    if path is None:
        return
    file, target = Path(path), target_of(path)
    # Files are renamed into their place, which would put one where a device was. What a process
    # has open, as /dev/stdout is, may lead to a plain file; its own folder tells.
    is_device = file.is_symlink() and file.absolute().parent.resolve() == Path("/dev")
    if is_device or (file.exists() and not file.is_file() and not file.is_dir()):
        raise DataError(f"{flag} {path}: is no plain file; give the name of a file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target.parent, rf"{re.escape(target.name)}\.\d+-[0-9a-f]{{8}}\.tmp")
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise DataError(f"{flag} {path}: cannot write it: {error.strerror}") from error
    if file.is_dir():
        raise DataError(f"{flag} {path}: is a folder; give the name of a file")


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return the file that a path names: a link stays, and what it leads to is written."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


def write_file(flag: str, path: str, text: str) -> None:
    """Write a file, whole or not at all.

    Raises:
        DataError: it cannot be written.
    """
    try:
        write_text(target_of(path), text)
    except OSError as error:
        raise DataError(f"{flag} {path}: cannot write it: {error.strerror}") from error

"""A lock that one process of all has, for a folder or a piece of work."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from relu_nmt.errors import DataError


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder; return False if another process holds its lock.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def acquire_lock(path: Path) -> int | None:
    """Lock a file.

    The lock belongs to the operating system: it is gone when the last process that holds it ends,
    however that happens. A process may pass it on to others, as a sweep does to its commands: it
    is then locked as long as one of them runs.

    Args:
        path: the file; it is made, and stays.

    Returns:
        An open descriptor, which holds the lock until it is closed; None if another process does.

    Raises:
        DataError: the file cannot be made, or its file system has no locks.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be made: {error.strerror}") from error
    try:
        if try_lock(descriptor):
            return descriptor
    except OSError as error:
        os.close(descriptor)
        raise DataError(
            f"{path}: this file system has no locks ({error.strerror}); choose another --save-dir"
        ) from error
    os.close(descriptor)
    return None


@contextmanager
def folder_locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder meanwhile; it leaves no file there.

    Args:
        folder: an existing one. Where its file system cannot lock folders, nothing is locked.

    Returns:
        A context that gives False if another process holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        is_free = True
        with suppress(OSError):
            is_free = try_lock(descriptor)
        yield is_free
    finally:
        os.close(descriptor)

"""Locks, and files that are either whole or absent: written in a temporary folder and renamed.

The temporary folder lies beside the file, and the process that writes holds its lock. The operating
system drops the lock when the process ends, in whatever way. An unlocked folder is abandoned: the
next writer of the file empties and uses it, or :func:`remove_abandoned` removes it. Functions that
know no flag to name in a message raise the system's OSError.
"""

import fcntl
import itertools
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from relu_nmt.errors import DataError, reporting

LOCK = "relu_nmt.lock"  # name of the lock in a temporary folder
NEW_FILE = "relu_nmt.plain"  # name of an empty file in it, which shows the permissions of new files
_TEMPORARY_NAME = re.compile(r"\..+\.\d+\.tmp")
FICLONE = 0x40049409  # Linux's request to share blocks until either file changes


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder. Return False if another process holds its lock."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def acquire_lock(path: Path) -> int | None:
    """Make and lock a file, which stays. Return None if another process holds its lock.

    The open descriptor holds the lock until it is closed. If a process passes it on, as a sweep
    does to its commands, the file is locked as long as one of these processes runs.
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
    """Hold the lock of an existing folder inside the block. Yield False if it is not free."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        is_free = True
        with suppress(OSError):  # a file system that cannot lock folders
            is_free = try_lock(descriptor)
        yield is_free
    finally:
        os.close(descriptor)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path``, for this process alone, and remove it afterwards."""
    lock = None
    try:
        for number in itertools.count():
            folder = path.with_name(f".{path.name}.{number}.tmp")
            lock = _make_or_take(folder)
            if lock is not None:
                break
        # Empty it, as a killed process may have left files.
        _empty(folder)
        yield folder
    finally:
        if lock is not None:
            _remove(folder, lock)


@contextmanager
def replacing(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """Yield a name to write to, and rename that file (or folder) to ``path`` at the end.

    If the block raises, the new file is removed and ``path`` stays as it was. Several processes may
    replace a file at once, also on several machines. The new file gets the permissions and the
    group of the old one. A link is replaced, not its target. A ``durable`` file is brought to the
    disk first.
    """
    final = Path(path)
    with temporary_folder(final) as folder:
        temporary = folder / final.name
        yield temporary
        if temporary.is_file():
            _set_permissions(temporary, final)
            if durable:
                with open(temporary, "rb") as file:
                    os.fsync(file.fileno())
        os.replace(temporary, final)


def plain_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file. A FIFO, socket or device, which may never end, is a DataError."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise DataError(f"{path}: is no plain file; remove it, or give another folder")
    return Path(path)


def copy_file(source: Path, target: Path) -> None:
    """Replace ``target`` by a durable copy of ``source``, which shares its blocks if possible."""
    with replacing(target, durable=True) as temporary:
        try:
            with open(source, "rb") as old, open(temporary, "wb") as new:
                fcntl.ioctl(new, FICLONE, old.fileno())
        except OSError:  # a file system without shared blocks
            shutil.copyfile(source, temporary)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary folders that killed processes left beside files of :func:`replacing`."""
    for path in folder.glob(".*.tmp"):
        if _TEMPORARY_NAME.fullmatch(path.name) and path.is_dir():
            lock = _lock(path)
            if lock is not None:
                _remove(path, lock)
            with suppress(OSError):
                path.rmdir()  # of a process that was killed before it locked the folder


def _make_or_take(folder: Path) -> int | None:
    """Make a temporary folder or take an abandoned one. Return its lock, None if it is not free."""
    is_new = False
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            is_new = True
        return _lock(folder, is_new)
    except BaseException:  # Ctrl-C too
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _lock(folder: Path, is_new: bool = False) -> int | None:
    """Lock a temporary folder. Return the open lock file, or None if the folder is not free.

    A new folder gets its lock file here. An abandoned one has a lock that nobody holds. One in use
    has a lock that is held, or vanishes meanwhile with its folder. A folder without a lock file is
    foreign. On a file system without locks only a new folder is surely free.
    """
    flags = os.O_RDWR
    if is_new:
        flags |= os.O_CREAT
    try:
        lock = os.open(folder / LOCK, flags, 0o600)
    except OSError as error:
        if is_new and not isinstance(error, FileNotFoundError):
            raise
        return None
    try:
        is_free = try_lock(lock)
    except OSError:
        is_free = is_new
    with suppress(OSError):
        # Another process may have removed the folder of the lock before it was locked here.
        if is_free and os.path.samestat(os.stat(folder / LOCK), os.fstat(lock)):
            return lock
    os.close(lock)
    return None


def _empty(folder: Path) -> None:
    """Remove everything in a folder but the lock."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != LOCK:
            entry.unlink(missing_ok=True)


def _remove(folder: Path, lock: int) -> None:
    with suppress(OSError):
        _empty(folder)
        (folder / LOCK).unlink()  # from here on no other process can take the folder
    os.close(lock)  # before the folder is removed, since NFS keeps an open file under another name
    with suppress(OSError):
        folder.rmdir()


def _set_permissions(path: Path, final: Path) -> None:
    """Give a file the permissions of the file that it replaces, or the permissions of new files."""
    try:
        old = final.stat()
    except FileNotFoundError:
        # Make a plain file to see the permissions that a new one gets.
        new_file = path.with_name(NEW_FILE)
        new_file.touch()
        mode = stat.S_IMODE(new_file.stat().st_mode)
    else:
        mode = stat.S_IMODE(old.st_mode)
        # Keep owner and group, or at least the group if that is refused.
        for owner in (old.st_uid, -1):
            with suppress(OSError):
                os.chown(path, owner, old.st_gid)
                break
        else:  # another group gets at most the permissions of everyone
            mode = mode & ~0o070 | (mode & 0o007) << 3
    with suppress(OSError):  # a file system without permissions
        path.chmod(mode)


@contextmanager
def safe_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that :func:`replacing` renames to ``path``."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        yield file


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8 by :func:`replacing`. Line ends stay as they are."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def json_text(values: Any) -> str:
    """Return values as the text of a JSON file."""
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def check_writable(flag: str, path: str | None) -> None:
    """Make the folder of a file. Raise a DataError if the file cannot be written."""
    if path is None:
        return
    file = Path(path)
    target = target_of(path)
    # A file is renamed into its place, which would replace a device. An open file such as
    # /dev/stdout may lead to a plain file, so that its folder decides.
    is_device = file.is_symlink() and file.absolute().parent.resolve() == Path("/dev")
    if is_device or (file.exists() and not file.is_file() and not file.is_dir()):
        raise DataError(f"{flag} {path}: is no plain file; give the name of a file")
    with reporting(f"{flag} {path}: cannot write it"):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target.parent)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    if file.is_dir():
        raise DataError(f"{flag} {path}: is a folder; give the name of a file")


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return the file to write: for a link, the file to which the link leads."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


def write_output(flag: str, path: str, text: str) -> None:
    """Write the file of a command's flag by :func:`write_text` (DataError: it cannot be written).

    A link stays, and its target is written.
    """
    with reporting(f"{flag} {path}: cannot write it"):
        write_text(target_of(path), text)

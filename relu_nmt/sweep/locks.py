"""Locks of steps, so that several sweeps of one folder do not run the same step.

The lock belongs to the operating system: it is gone when the last process that holds it ends,
however that happens. The commands of a step hold it too, so a step whose sweep was killed stays
locked while its command still runs.
"""

import fcntl
import os
from pathlib import Path

from relu_nmt.errors import DataError


class StepLock:
    """An exclusive lock on a file.

    Args:
        path: the file; it is made, and stays.

    Raises:
        DataError: the file cannot be made.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first, second = (StepLock(Path(folder) / "train.lock") for _ in range(2))
        ...     print(first.acquire(), second.acquire())
        ...     first.release()
        ...     print(second.acquire())
        ...     second.release()
        True False
        True
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock if it is free; return whether it was."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DataError(f"{self._path}: cannot be made: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            raise DataError(
                f"{self._path}: this file system has no locks ({error.strerror}); choose another "
                "--save-dir"
            ) from error
        self.descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back, as far as this process holds it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

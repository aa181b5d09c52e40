"""Files that are either whole or absent: written under a temporary name, then renamed."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"
_OWNER = re.compile(rf"\.(\d+)-[0-9a-f]{{8}}{re.escape(TEMPORARY_SUFFIX)}$")


@contextmanager
def replacing(path: str | os.PathLike[str], *, unique: bool = True) -> Iterator[Path]:
    """Give a name beside ``path`` to write to, and rename it to ``path`` when the block succeeds.

    If the block raises, what was written is removed and ``path`` stays as it was.

    Args:
        path: the file.
        unique: several processes may replace a file at once, also on several machines: one of
            them is the last. Otherwise what a killed process left is written over.
    """
    final = Path(path)
    part = f".{os.getpid()}-{os.urandom(4).hex()}" if unique else ""
    temporary = final.with_name(f"{final.name}{part}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def remove_abandoned(folder: Path, beginnings: Sequence[str]) -> None:
    """Remove what killed processes of this machine left of files that they were to replace.

    Args:
        folder: where the files are.
        beginnings: of the files' names, with or without a dot before.
    """
    for path in folder.glob(f"*{TEMPORARY_SUFFIX}"):
        owner = _OWNER.search(path.name)
        named = path.name.lstrip(".").startswith(tuple(beginnings))
        if named and not (owner and _is_running(int(owner[1]))):
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


@contextmanager
def safe_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that :func:`replacing` renames to ``path``; it can be read within the block.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with safe_writer(Path(folder) / "a.txt") as file:
        ...         _ = file.write(b"whole")
        ...     (Path(folder) / "a.txt").read_bytes()
        b'whole'
    """
    with replacing(path, unique=False) as temporary, open(temporary, "w+b") as file:
        yield file


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8 with the line ends it has: :func:`replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))

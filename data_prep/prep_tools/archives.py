"""Taking single files out of tar, zip and gzip archives without trusting them."""

import gzip
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from prep_tools.command import PrepError
from relu_nmt.io.safe_write import replacing

DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError)


def _is_safe(name: str) -> bool:
    """Return whether a member's name stays inside the folder it is unpacked in."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _tar_members(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            # Links and devices are never needed, and could point anywhere.
            if member.isfile():
                yield member.name, lambda member=member: tar.extractfile(member)


def _zip_members(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            if info.filename and not info.is_dir():
                yield info.filename, lambda info=info: packed.open(info)


def _gzip_member(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    def open_member() -> IO[bytes]:
        return gzip.open(archive, "rb")

    yield archive.name.removesuffix(".gz"), open_member


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    """Yield name and opener of the files in an archive."""
    if tarfile.is_tarfile(archive):
        return _tar_members(archive)
    if zipfile.is_zipfile(archive):
        return _zip_members(archive)
    if archive.suffix == ".gz":
        return _gzip_member(archive)
    raise PrepError(f"{archive}: not a tar, zip or gzip archive, or damaged; fetch it again")


def extract(archive: Path, folder: Path, is_needed: Callable[[str], bool]) -> list[Path]:
    """Extract the files of an archive that are needed. Existing files do not change.

    Args:
        archive: tar (compressed or not), zip or gz file.
        folder: folder for the files, under their names in the archive.
        is_needed: returns True for the name (with ``/``) of a file to extract.

    Returns:
        The paths of the extracted files, sorted.

    Raises:
        PrepError: the archive is damaged, holds a name that leads out of ``folder``, or nothing
            that is needed.
    """
    paths = []
    try:
        for name, open_member in _members(archive):
            name = name.removeprefix("./")
            if not is_needed(name):
                continue
            if not _is_safe(name):
                raise PrepError(
                    f"{archive}: holds a file named '{name}', which leads out of its folder; this "
                    "is not the original archive"
                )
            path = folder / name
            paths.append(path)
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with (
                    open_member() as source,
                    replacing(path) as part,
                    open(part, "wb") as target,
                ):
                    shutil.copyfileobj(source, target)
    except DAMAGED as error:
        raise PrepError(f"{archive}: damaged ({error}); remove it and fetch it again") from error
    if not paths:
        raise PrepError(f"{archive}: holds none of the files that are needed; is it another one?")
    return sorted(set(paths))  # an archive may hold two of one name

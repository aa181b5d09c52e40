"""Image files in folders and zip files, and their decoding."""

import functools
import heapq
import io
import os
import stat
import unicodedata
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from relu_nmt.errors import DataError, first_line, needing

if TYPE_CHECKING:
    from PIL.Image import Image

UTF8_FLAG = 0x800
ENCRYPTED_FLAG = 0x1
MOST_BYTES = 1 << 28
"""The largest image file in an archive, in bytes. A few bytes may unpack to very many."""


def is_hidden(path: str) -> bool:
    """Return True for a hidden file and for a path in a hidden folder."""
    # In zip files, macOS puts "._1.jpg" next to 1.jpg or into __MACOSX. Jupyter copies files to
    # hidden folders.
    rooted = f"/{path}/"
    return "/." in rooted or "/__MACOSX/" in rooted


def composed(name: str) -> str:
    """Return a name in Unicode's composed form (NFC). macOS writes decomposed ones."""
    return unicodedata.normalize("NFC", name)


def spelled(name: str) -> str:
    """Return a name in quotes, with its Unicode form and code points if it is not ASCII."""
    if name.isascii():
        return f"'{name}'"
    form = next((f for f in ("NFC", "NFD") if unicodedata.is_normalized(f, name)), "mixed forms")
    return f"'{name}' ({form}: {name!a})"


def composed_names(names: Sequence[str], origin: object) -> tuple[str, ...]:
    """Return names of classes in Unicode's composed form. Refuse two that become equal."""
    first: dict[str, str] = {}
    for name in names:
        if (other := first.setdefault(composed(name), name)) is not name:
            raise DataError(
                f"{origin}: the classes {spelled(other)} and {spelled(name)} have one name in two "
                "Unicode forms; rename one, or move its images to the other"
            )
    return tuple(first)


class FileTree:
    """The files below a folder, or in a zip file, which is never unpacked to the disk.

    A link to a folder is followed unless it points upwards. If several links lead to one folder,
    only the first is followed. Each of the ``parts``, folders of these names, has its own first
    link, so that parts can share files. ``not_entered`` lists the folders that :meth:`paths`
    skipped, with reasons.
    """

    def __init__(self, origin: Path, parts: Sequence[str] = ()) -> None:
        self.origin = origin
        self.not_entered: list[str] = []
        self._parts = parts
        self._has_links = False
        self._zip = None
        # Search a folder only when its paths are needed.
        if origin.is_dir():
            return
        try:
            self._zip = zipfile.ZipFile(origin)
        except Exception as error:  # damaged zip files raise errors of many kinds
            raise DataError(f"{origin}: cannot be read as a zip file ({error})") from error
        # If entries share a path, the last one counts, as in unpacking.
        self._entries = {self._path_of(entry): entry for entry in self._zip.infolist()}
        self._entries.pop("./", None)

    def _path_of(self, entry: zipfile.ZipInfo) -> str:
        """Return an entry's path, without ``./`` and ``//``. Paths of folders end with ``/``."""
        name = entry.filename
        if not entry.flag_bits & UTF8_FLAG:  # the Finder of macOS writes UTF-8 without the flag
            with suppress(UnicodeError):
                name = name.encode("cp437").decode()
        path = PurePosixPath(name)
        size = entry.file_size
        leads_out = path.is_absolute() or ".." in path.parts or "\\" in name
        is_empty = not path.parts
        is_link = stat.S_ISLNK(entry.external_attr >> 16)
        is_folder = name.endswith("/")
        if leads_out or (is_empty and not is_folder) or is_link:
            raise DataError(
                f"{self.origin}: its entry '{name}' is a link or leads out of it; this is no "
                "archive of images, or a damaged one"
            )
        if entry.flag_bits & ENCRYPTED_FLAG:
            raise DataError(f"{self.origin}: its entry '{name}' is encrypted; unpack the archive")
        if size > MOST_BYTES:
            raise DataError(
                f"{self.origin}: its entry '{name}' has {size:,} bytes, but no image may have more "
                f"than {MOST_BYTES:,}"
            )
        return f"{path}/" if is_folder else str(path)

    def paths(self) -> Iterable[str]:
        """Return the paths of files and, with ``/`` at the end, of folders, in any order."""
        return self._walk() if self._zip is None else self._entries

    def _walk(self) -> Iterator[str]:
        """Walk through the folder: real folders first, then linked folders in order of paths."""
        # Resolve the top, so that links back to it are found.
        top = os.path.realpath(self.origin)
        folders = [("", top)]
        links = list[tuple[str, str]]()
        entered = set()
        while folders or links:
            path, real = folders.pop() if folders else heapq.heappop(links)
            # Enter a folder once for each part, and under visible and hidden paths separately.
            part = next((name for name in path.split("/")[::-1] if name in self._parts), "")
            if (part, is_hidden(path), real) in entered:
                self.not_entered.append(f"{path} (a link to what is there already)")
                continue
            entered.add((part, is_hidden(path), real))
            if path:
                yield path
            try:
                entries = list(os.scandir(self.origin / path))
            except PermissionError:
                self.not_entered.append(f"{path} (permission denied)")
                continue
            for entry in entries:
                below = f"{path}{entry.name}"
                self._has_links |= entry.is_symlink()
                if not entry.is_dir():
                    yield below
                    continue
                if not entry.is_symlink():
                    folders.append((f"{below}/", os.path.join(real, entry.name)))
                    continue
                # Resolve links alone: resolving a path looks at each of its folders.
                target = os.path.realpath(entry.path)
                if any(os.path.commonpath([at, target]) == target for at in (real, top)):
                    self.not_entered.append(f"{below}/ (a link that points upwards)")
                else:
                    heapq.heappush(links, (f"{below}/", target))

    def distinct(self, paths: Sequence[str]) -> list[str]:
        """Return the paths in order, without links to other files of ``paths``."""
        if not self._has_links:
            return list(paths)
        by_file: dict[str, str] = {}
        # Prefer real files to links, then the first path.
        for path in sorted(paths, key=lambda path: (os.path.islink(self.origin / path), path)):
            by_file.setdefault(os.path.realpath(self.origin / path), path)
        return sorted(by_file.values())

    def read(self, path: str) -> bytes:
        """Return a file's bytes. May be called from several threads."""
        if self._zip is not None:
            return self._zip.read(self._entries[path])
        file = self.origin / path
        if file.exists() and not file.is_file():
            raise OSError("no regular file")
        return file.read_bytes()

    def image(self, path: str) -> "Image":
        """Decode the image at a path to 8-bit red, green and blue."""
        return decode_image(lambda: self.read(path), f"{self.origin}: {path}")


def read_image(path: str | os.PathLike[str], upright: bool = True) -> "Image":
    """Decode an image file to 8-bit red, green and blue. For ``upright`` see :func:`to_rgb`."""
    file = Path(path)
    if file.is_dir():
        raise DataError(f"{file}: a folder; give the image files in it")
    if not file.is_file():
        raise DataError(f"{file}: no such image file")
    return decode_image(file.read_bytes, str(file), upright)


def decode_image(read: Callable[[], bytes], name: str, upright: bool = True) -> "Image":
    """Decode the bytes that ``read`` returns, as :func:`to_rgb`. Errors give the ``name``."""
    pillow = import_pillow()
    try:
        # Read inside the block, as damaged archives raise errors of many kinds.
        data = read()
        if not data:
            raise ValueError("the file is empty")
        with pillow.open(io.BytesIO(data)) as image:
            return to_rgb(image, name, upright)
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders and zlib raise errors of many kinds
        reason = first_line(error)
        if isinstance(error, pillow.UnidentifiedImageError):  # its text is a memory address
            reason = "the file is of no known image format"
        raise DataError(
            f"{name}: cannot be read as an image ({reason}); repair or remove it"
        ) from error


def to_rgb(image: "Image", name: str, upright: bool = True) -> "Image":
    """Return an image as 8-bit RGB. Scale 16-bit grays. ``upright``: turn it as EXIF data say."""
    pillow = import_pillow()
    file_format = image.format
    from PIL import ImageOps

    if upright:
        image = ImageOps.exif_transpose(image)
    if not image.mode.startswith(("I", "F")):
        if isinstance(image.info.get("transparency"), bytes):
            image = image.convert("RGBA")  # Pillow warns if it converts a palette to RGB directly
        return image.convert("RGB")
    # Scale 16-bit grays. Mode I holds 32 bits, except in PNG and PGM files, where it holds 16 bits.
    if image.mode == "F" or (image.mode == "I" and file_format not in ("PNG", "PPM")):
        raise DataError(
            f"{name}: 32-bit or signed pixels; expected 8 or 16 bits without sign; convert or "
            "remove it"
        )
    gray = np.asarray(image).astype(np.uint32)  # convert("RGB") would clip them
    return pillow.fromarray(((gray + 128) // 257).astype(np.uint8)).convert("RGB")


@functools.cache
def import_pillow() -> ModuleType:
    """Return Pillow's module ``Image``, and silence its warnings, which name no file."""
    with needing("images need Pillow: pip install 'relu-nmt[vision]'"):
        from PIL import Image
    warnings.filterwarnings("ignore", module=r"PIL\.")
    return Image

"""Image files: trees of them in folders and zip files, and decoding one."""

import functools
import heapq
import io
import os
import stat
import unicodedata
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from relu_nmt.errors import DataError, needing

if TYPE_CHECKING:
    from PIL.Image import Image


UTF8_FLAG, ENCRYPTED_FLAG = 0x800, 0x1
MOST_BYTES = 1 << 28
"""The largest image file in an archive, in bytes; a few bytes may unpack to very many."""


def is_hidden(path: str) -> bool:
    """Return True for a hidden file and for a path in a hidden folder."""
    # In zip files, macOS puts "._1.jpg" next to 1.jpg or into __MACOSX. Jupyter copies files to
    # hidden folders.
    whole = f"/{path}/"
    return "/." in whole or "/__MACOSX/" in whole


def composed(name: str) -> str:
    """Return a name in Unicode's composed form (NFC); macOS writes decomposed ones."""
    return unicodedata.normalize("NFC", name)


def spelled(name: str) -> str:
    """Return a name in quotes; if it is not ASCII, with its Unicode form and code points."""
    if name.isascii():
        return f"'{name}'"
    form = next((f for f in ("NFC", "NFD") if unicodedata.is_normalized(f, name)), "mixed forms")
    return f"'{name}' ({form}: {name!a})"


def composed_names(names: Sequence[str], origin: object) -> tuple[str, ...]:
    """Return names of classes in Unicode's composed form; refuse two that become equal."""
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

    Links to folders are followed, except links that point upwards. If several links point to one
    folder, only the first is followed. Files of one of the ``parts``, folders of these names, may
    be links to files of another. ``not_entered`` has the folders that :meth:`paths` skipped, with
    reasons.

    Raises:
        DataError: the file is no zip file, or an entry is a link, leads out of it or is encrypted.
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
        """Return the path of an entry, without ``./`` and ``//``; a folder's ends with ``/``."""
        # Decode the name.
        name = entry.filename
        if not entry.flag_bits & UTF8_FLAG:  # the Finder of macOS writes UTF-8 without the flag
            with suppress(UnicodeError):
                name = name.encode("cp437").decode()
        # Refuse entries that are unsafe or cannot be read.
        path, size = PurePosixPath(name), entry.file_size
        leads_out = path.is_absolute() or ".." in path.parts or "\\" in name
        is_empty, is_link = not path.parts, stat.S_ISLNK(entry.external_attr >> 16)
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

    def paths(self) -> Iterator[str]:
        """Yield the paths of files and, with ``/`` at the end, of folders, in any order."""
        yield from self._entries if self._zip is not None else self._walk()

    def _walk(self) -> Iterator[str]:
        """Walk through the folder: real folders first, then linked folders in order of paths."""
        # Resolve the top, so that links back to it are found.
        top = os.path.realpath(self.origin)
        folders, links = [("", top)], list[tuple[str, str]]()
        entered = set()
        while folders or links:
            path, real = folders.pop() if folders else heapq.heappop(links)
            # Enter a folder once for each part, and once as visible and as hidden.
            part = next((name for name in path.split("/")[::-1] if name in self._parts), "")
            if (part, is_hidden(path), real) in entered:
                self.not_entered.append(f"{path} (a link to what is there already)")
                continue
            entered.add((part, is_hidden(path), real))
            if path:
                yield path
            # Skip folders without permission to read, and note them.
            try:
                entries = list(os.scandir(self.origin / path))
            except PermissionError:
                self.not_entered.append(f"{path} (permission denied)")
                continue
            # Yield files, and queue folders and links to folders.
            for entry in entries:
                below, target = f"{path}{entry.name}", os.path.realpath(entry.path)
                self._has_links |= entry.is_symlink()
                if not entry.is_dir():
                    yield below
                elif not entry.is_symlink():
                    folders.append((f"{below}/", os.path.join(real, entry.name)))
                elif any(os.path.commonpath([at, target]) == target for at in (real, top)):
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
        """Return a file's bytes; may be called from several threads."""
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
    """Decode an image file to 8-bit red, green and blue; for ``upright`` see :func:`to_rgb`.

    Raises:
        DataError: the file is missing, or cannot be decoded.
        MissingExtraError: Pillow is not installed.
    """
    file = Path(path)
    if file.is_dir():
        raise DataError(f"{file}: a folder; give the image files in it")
    if not file.is_file():
        raise DataError(f"{file}: no such image file")
    return decode_image(file.read_bytes, str(file), upright)


def decode_image(read: Callable[[], bytes], name: str, upright: bool = True) -> "Image":
    """Decode the bytes from ``read``, as :func:`to_rgb`; errors give the file's ``name``."""
    pillow = import_pillow()
    try:
        # Read inside the block, as damaged archives raise errors of many kinds.
        data = read()
        if not data:
            raise ValueError("the file is empty")
        with pillow.open(io.BytesIO(data)) as image:
            return to_rgb(image, name, upright)
    except DataError:
        # Keep errors that name the file already.
        raise
    except Exception as error:  # Pillow's decoders and zlib raise errors of many kinds
        reason = first_line(error)
        if isinstance(error, pillow.UnidentifiedImageError):  # its text is a memory address
            reason = "the file is of no known image format"
        raise DataError(
            f"{name}: cannot be read as an image ({reason}); repair or remove it"
        ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the error's name if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def to_rgb(image: "Image", name: str, upright: bool = True) -> "Image":
    """Return an image as 8-bit red, green and blue; 16-bit greys are scaled.

    ``upright`` turns it by its EXIF data, which cameras write instead of turning pixels.

    Raises:
        DataError: the pixels have 32 bits or signs, so their range is unknown.
    """
    pillow, file_format = import_pillow(), image.format
    from PIL import ImageOps

    # Convert images of 8 bits a channel.
    if upright:
        image = ImageOps.exif_transpose(image)
    if not image.mode.startswith(("I", "F")):
        if isinstance(image.info.get("transparency"), bytes):
            image = image.convert("RGBA")  # Pillow warns if it converts a palette to RGB directly
        return image.convert("RGB")
    # Scale 16-bit greys. Mode I holds 32 bits, except in PNG and PGM files, where it holds 16 bits.
    if image.mode == "F" or (image.mode == "I" and file_format not in ("PNG", "PPM")):
        raise DataError(
            f"{name}: 32-bit or signed pixels; expected 8 or 16 bits without sign; convert or "
            "remove it"
        )
    grey = np.asarray(image).astype(np.uint32)  # convert("RGB") would clip them
    return pillow.fromarray(((grey + 128) // 257).astype(np.uint8)).convert("RGB")


@functools.cache
def import_pillow() -> ModuleType:
    """Return Pillow's module ``Image``, and silence its warnings, which name no file."""
    with needing("images need Pillow: pip install 'relu-nmt[vision]'"):
        from PIL import Image
    warnings.filterwarnings("ignore", module=r"PIL\.")
    return Image

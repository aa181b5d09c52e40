"""Where images are stored, and reading one of them."""

import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from relu_nmt.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from PIL.Image import Image


MOST_BYTES = 1 << 28
"""Of an image file in an archive, where a few bytes may stand for very many."""


class ImageStore(Protocol):
    """A folder or file of many images.

    Args:
        origin: its path.
    """

    origin: Path

    def image(self, path: Any) -> "Image":
        """Decode one image to 8-bit red, green and blue; called from several threads.

        Args:
            path: which one: its path in the store, or its row.

        Raises:
            DataError: it cannot be decoded; names the file.
        """


class FileTree:
    """The files below a folder, whose links are followed, or in a zip file.

    Args:
        origin: the folder or zip file. Nothing is ever unpacked to the disk.

    Raises:
        DataError: it is no zip file, or one of its entries is a link or leads out of it.
    """

    def __init__(self, origin: Path) -> None:
        self.origin = origin
        self._zip = None
        if origin.is_dir():
            return
        try:
            self._zip = zipfile.ZipFile(origin)
        except Exception as error:  # the errors of damaged ones are of many kinds
            raise DataError(f"{origin}: cannot be read as a zip file ({error})") from error
        for entry in self._zip.infolist():
            self._check(entry)

    def _check(self, entry: zipfile.ZipInfo) -> None:
        name = entry.filename
        path = PurePosixPath(name)
        wrong = not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name
        if wrong or stat.S_ISLNK(entry.external_attr >> 16):
            raise DataError(
                f"{self.origin}: its entry '{name}' is a link or leads out of it; this is no "
                "archive of images, or a damaged one"
            )
        if entry.file_size > MOST_BYTES:
            raise DataError(
                f"{self.origin}: its entry '{name}' has {entry.file_size:,} bytes, but no image "
                f"may have more than {MOST_BYTES:,}"
            )

    def paths(self) -> Iterator[str]:
        """Give the path of each file in the tree, with ``/`` between its parts, in any order.

        Those of folders end with ``/``; a zip file need not have any.
        """
        if self._zip is not None:
            yield from self._zip.namelist()
            return
        for parent, folders, names in os.walk(self.origin, followlinks=True):
            relative = Path(parent).relative_to(self.origin)
            yield from ((relative / name).as_posix() for name in names)
            yield from ((relative / name).as_posix() + "/" for name in folders)

    def read(self, path: str) -> bytes:
        """Return a file's bytes; called from several threads."""
        return (self.origin / path).read_bytes() if self._zip is None else self._zip.read(path)

    def image(self, path: str) -> "Image":
        """Decode the image at a path, see :meth:`ImageStore.image`."""
        return decode_image(lambda: self.read(path), f"{self.origin}: {path}")


def read_image(path: str | os.PathLike[str], upright: bool = True) -> "Image":
    """Decode an image file to 8-bit red, green and blue.

    Args:
        path: the file.
        upright: see :func:`to_rgb`.

    Raises:
        DataError: there is none, or it cannot be decoded.
        MissingExtraError: Pillow is not installed.
    """
    file = Path(path)
    if file.is_dir():
        raise DataError(f"{file}: a folder; give the image files in it")
    if not file.is_file():
        raise DataError(f"{file}: no such image file")
    return decode_image(file.read_bytes, str(file), upright)


def decode_image(read: Callable[[], bytes], what: str, upright: bool = True) -> "Image":
    """Return the image in the bytes of a file, 8-bit red, green and blue.

    Args:
        read: returns the bytes.
        what: names the file in the error.
        upright: see :func:`to_rgb`.

    Raises:
        DataError: it cannot be read or decoded, or has pixels of 32 bits.
        MissingExtraError: Pillow is not installed.
    """
    pillow = import_pillow()
    try:
        with pillow.open(io.BytesIO(read())) as image:
            return to_rgb(image, what, upright)
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders and zlib raise errors of many kinds
        [reason, *_] = str(error).splitlines() or [type(error).__name__]
        if isinstance(error, pillow.UnidentifiedImageError):  # it names the bytes' address
            reason = "the file is of no known image format"
        raise DataError(
            f"{what}: cannot be read as an image ({reason}); repair or remove it"
        ) from error


def to_rgb(image: "Image", what: str, upright: bool = True) -> "Image":
    """Return an image as 8-bit red, green and blue; 16-bit greys are scaled.

    Args:
        image: of any mode.
        what: names it in the error.
        upright: turn it as its EXIF data say, which cameras write instead of turning the pixels.

    Raises:
        DataError: its pixels have 32 bits or signs, so that their range is not known.
    """
    pillow, file_format = import_pillow(), image.format
    from PIL import ImageOps

    if upright:
        image = ImageOps.exif_transpose(image)
    if not image.mode.startswith(("I", "F")):
        if isinstance(image.info.get("transparency"), bytes):
            image = image.convert("RGBA")  # Pillow warns of going from a palette to RGB at once
        return image.convert("RGB")
    # Of PNG and PGM, mode I is 16 bits, too.
    if image.mode == "F" or (image.mode == "I" and file_format not in ("PNG", "PPM")):
        raise DataError(
            f"{what}: 32-bit or signed pixels; expected 8 or 16 bits without sign; convert or "
            "remove it"
        )
    grey = np.asarray(image).astype(np.uint32)  # convert("RGB") would clip them
    return pillow.fromarray(((grey + 128) // 257).astype(np.uint8)).convert("RGB")


def import_pillow() -> ModuleType:
    """Return Pillow's module ``Image``.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("images need Pillow: pip install 'relu-nmt[vision]'") from error
    return Image

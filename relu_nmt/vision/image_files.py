"""Image files in folders, zip files and parquet tables, and pixels in NumPy archives."""

import functools
import heapq
import io
import os
import re
import stat
import unicodedata
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from relu_nmt.config.stored import parse_json
from relu_nmt.errors import DataError, counted, first_line, needing

if TYPE_CHECKING:
    from PIL.Image import Image

ARRAY_SUFFIX = ".npz"
TABLE_SUFFIX = ".parquet"
IMAGES = ("image", "img")
LABELS = ("label", "labels", "fine_label", "class")
LEAST_BOMB_BYTES = 1 << 28
MOST_COMPRESSED = 200
"""An archive that unpacks to more than ``LEAST_BOMB_BYTES`` may grow by at most this factor."""

Rows = tuple[Path, Callable[[int], "Image"], np.ndarray]
"""The file, a function that returns the image in a row, and [N] the label of each row."""
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


def is_table(source: Path) -> bool:
    """Return True for a NumPy archive, a parquet file and a folder of parquet files."""
    if source.is_dir():
        return next(source.glob(f"*{TABLE_SUFFIX}"), None) is not None
    return source.suffix in (ARRAY_SUFFIX, TABLE_SUFFIX)


def open_table(
    source: Path, parts: Sequence[str], least_classes: int
) -> tuple[dict[str, Rows], Sequence[str]]:
    """Return the images of each part with labels that are int64 indices, and the class names.

    A NumPy archive holds ``images`` and ``labels``, or ``train_images``, ``train_labels``,
    ``val_images``, ... (also ``x_train``, ``y_train``, ...), and perhaps ``classes``. Parquet files
    have the columns ``label`` and ``image`` (or ``img``): the bytes of an image file, or a struct
    with a field ``bytes``. In a folder the name of each file begins with the name of a part, as in
    data sets of Hugging Face. Without ``parts``, the only part is called "".
    """
    reader = _read_arrays if source.suffix == ARRAY_SUFFIX else _read_tables
    rows, names = reader(source, parts)
    names = composed_names(names, source)
    labels_by_part = [part_labels for *_, part_labels in rows.values()]
    labels = np.concatenate(labels_by_part)
    if labels.dtype.kind in "iu":
        # Numbered classes: all that have names. Without names, the numbers that occur.
        used, indices = np.unique(labels, return_inverse=True)
        if len(used) and (used[0] < 0 or (names and used[-1] >= len(names))):
            wrong = used[0] if used[0] < 0 else used[-1]
            raise DataError(f"{source}: the label {wrong} stands for no class; count from 0")
        classes = tuple(map(str, used.tolist()))
        if names:
            classes = names
            indices = labels
    else:
        # Named classes, in alphabetical order.
        if not all(isinstance(label, str) for label in labels):
            raise DataError(f"{source}: labels must be whole numbers or names of classes")
        used, indices = np.unique([composed(label) for label in labels], return_inverse=True)
        classes = tuple(used.tolist())
    if len(classes) < least_classes:
        raise DataError(
            f"{source}: only {counted(len(classes), 'class')}; {least_classes} or more are needed"
        )
    ends = np.cumsum(list(map(len, labels_by_part)))
    numbered = np.split(indices.astype(np.int64), ends[:-1])
    labeled = {}
    for (part, (origin, image, _)), part_indices in zip(rows.items(), numbered, strict=True):
        labeled[part] = (origin, image, part_indices)
    return labeled, classes


def _read_arrays(source: Path, parts: Sequence[str]) -> tuple[dict[str, Rows], Sequence[str]]:
    """Return the images of a NumPy archive by part, and the names of numbered classes."""
    # Read all arrays, unless a few bytes unpack to very many.
    try:
        with zipfile.ZipFile(source) as entries:
            unpacked = sum(entry.file_size for entry in entries.infolist())
        if unpacked > max(LEAST_BOMB_BYTES, MOST_COMPRESSED * source.stat().st_size):
            raise ValueError(f"{unpacked:,} bytes, compressed more than pictures can be")
        with np.load(source, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # NumPy's and zlib's errors are of many kinds
        raise DataError(
            f"{source}: cannot be read as a NumPy archive ({first_line(error)})"
        ) from error
    for name, array in arrays.items():
        # NumPy returns the bytes of an entry that is no array.
        if not isinstance(array, np.ndarray) or (name == "classes" and array.ndim != 1):
            raise DataError(f"{source}: {name} is damaged; expected an array, of classes a list")
    # Find images and labels of each part, under either pair of names.
    rows = {}
    for part in ("", *parts):
        names = [("images", "labels"), ("x", "y")]
        if part:
            names = [(f"{part}_images", f"{part}_labels"), (f"x_{part}", f"y_{part}")]
        for images, labels in names:
            if images in arrays and labels in arrays:
                rows[part] = _pixel_rows(source, images, arrays[images], arrays[labels])
    if not rows:
        raise DataError(
            f"{source}: has {', '.join(arrays) or 'nothing'}; expected images and labels, or "
            "train_images, train_labels, test_images and so on"
        )
    return rows, [str(name) for name in arrays.get("classes", ())]


def _pixel_rows(source: Path, name: str, pixels: np.ndarray, labels: np.ndarray) -> Rows:
    """Check the shapes of the pixels called ``name`` and of labels. Return them as rows."""
    channels = pixels.shape[3:]
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or channels not in ((), (1,), (3,)):
        raise DataError(
            f"{source}: {name} is {pixels.dtype} {list(pixels.shape)}; expected uint8 [images, "
            "height, width] or [images, height, width, 3]"
        )
    # Drop the second axis of labels [N, 1].
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != pixels.shape[:1]:
        raise DataError(
            f"{source}: {name} has {len(pixels):,} images, but its labels are {list(labels.shape)}"
        )
    if channels == (1,):
        pixels = pixels[..., 0]
    return source, lambda row: import_pillow().fromarray(pixels[row]).convert("RGB"), labels


def _read_tables(source: Path, parts: Sequence[str]) -> tuple[dict[str, Rows], Sequence[str]]:
    """Return the images of parquet files by part, and the names of numbered classes."""
    with needing(f"{source}: parquet files need pyarrow: pip install 'relu-nmt[parquet]'"):
        import pyarrow
        from pyarrow import compute, types
    # Sort the files of a folder and group them by part. A file with several links counts once.
    by_part: dict[str, list[Path]] = {}
    if not source.is_dir():
        by_part[""] = [source]
    files = sorted(source.glob(f"*{TABLE_SUFFIX}"), reverse=True)
    for file in sorted({file.resolve(): file for file in files}.values()):
        [start, *_] = re.split(r"\W|_", file.name)
        by_part.setdefault(start if start in parts else "", []).append(file)
    if len(by_part) > 1 and "" in by_part:
        raise DataError(
            f"{by_part[''][0]}: its name begins with none of {', '.join(parts)}, as other files do"
        )
    rows: dict[str, Rows] = {}
    names: Sequence[str] = ()
    for part, part_files in by_part.items():
        origin = part_files[0] if len(part_files) == 1 else source
        try:
            table, part_names = _read_part(part_files)
            labels = table["label"].to_numpy(zero_copy_only=False)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{origin}: cannot be read as a parquet file ({first_line(error)})"
            ) from error
        names = names or part_names
        column = table["image"]
        # Take the field of bytes, as data sets of Hugging Face store images.
        if types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            column = compute.struct_field(column, "bytes")
        if not (types.is_binary(column.type) or types.is_large_binary(column.type)):
            raise DataError(f"{origin}: its images are {column.type}; expected bytes of files")
        rows[part] = origin, partial(_table_image, column, origin), labels
    return rows, names


def _table_image(column: Any, origin: Path, row: int) -> "Image":
    return decode_image(lambda: column[row].as_py(), f"{origin}: row {row}")


def _read_part(files: Sequence[Path]) -> tuple[Any, Sequence[str]]:
    """Return the columns ``image`` and ``label`` of the files of a part, and the class names."""
    import pyarrow
    from pyarrow import parquet

    tables: list[Any] = []
    names: tuple[str, ...] = ()
    for file in files:
        schema = parquet.read_schema(file)
        columns = []
        for accepted in (IMAGES, LABELS):
            column = next((name for name in accepted if name in schema.names), None)
            if column is None:
                raise DataError(
                    f"{file}: has the columns {', '.join(schema.names)}; expected one of "
                    f"{', '.join(accepted)}"
                )
            columns.append(column)
        table = parquet.read_table(file, columns=columns, partitioning=None)
        tables.append(table.rename_columns(["image", "label"]).replace_schema_metadata())
        # Look for the class names that the library datasets stores.
        with suppress(KeyError, TypeError, ValueError):
            features = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
            names = names or tuple(map(str, features[columns[1]]["names"]))
    return pyarrow.concat_tables(tables), names

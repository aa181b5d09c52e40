"""Images stored in one file: a NumPy archive of pixels, or parquet tables of image files.

Both are read into memory when they are opened; a table keeps its image files compressed.
"""

import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relu_nmt.errors import DataError, needing
from relu_nmt.vision.image_files import (
    composed,
    composed_names,
    decode_image,
    first_line,
    import_pillow,
)

if TYPE_CHECKING:
    from PIL.Image import Image

ARRAY_SUFFIX = ".npz"
TABLE_SUFFIX = ".parquet"
IMAGES = ("image", "img")
LABELS = ("label", "labels", "fine_label", "class")
LEAST_BOMB_BYTES, MOST_COMPRESSED = 1 << 28, 200
"""An archive is refused if it unpacks to more bytes, and to more times its size."""

Rows = tuple[Path, Callable[[int], "Image"], np.ndarray]
"""The file, a function that returns the image in a row, and [N] the label of each row."""


def is_table(source: Path) -> bool:
    """Return True for a NumPy archive, a parquet file and a folder of parquet files."""
    if source.is_dir():
        return next(source.glob(f"*{TABLE_SUFFIX}"), None) is not None
    return source.suffix in (ARRAY_SUFFIX, TABLE_SUFFIX)


def open_table(source: Path, parts: Sequence[str]) -> tuple[dict[str, Rows], Sequence[str]]:
    """Return the images of each part with labels that are int64 indices, and the class names.

    A NumPy archive holds ``images`` and ``labels``, or ``train_images``, ``train_labels``,
    ``val_images``, ... (also ``x_train``, ``y_train``, ...), and perhaps ``classes``, the names of
    the numbered classes. Parquet files have columns ``image`` (or ``img``), the bytes of a file,
    perhaps as field ``bytes`` of a struct, and ``label``. In a folder their names begin with that
    of a part (``train-00000-of-00002.parquet``), as in data sets of Hugging Face. Without
    ``parts``, the only one is called "".

    Raises:
        DataError: a file cannot be read, its arrays or columns do not fit, or labels are not those
            of two classes or more.
        MissingExtraError: pyarrow is not installed, which reads parquet files.
    """
    read = _read_arrays if source.suffix == ARRAY_SUFFIX else _read_tables
    rows, names = read(source, parts)
    names = composed_names(names, source)
    together = np.concatenate([labels for *_, labels in rows.values()])
    # Numbered classes: all that have names, or else the numbers that occur.
    if together.dtype.kind in "iu":
        used = np.unique(together)
        # Refuse numbers below 0 or without a name.
        if len(used) and (used[0] < 0 or (names and used[-1] >= len(names))):
            wrong = used[0] if used[0] < 0 else used[-1]
            raise DataError(f"{source}: the label {wrong} stands for no class")
        known = np.arange(len(names)) if names else used
        classes = tuple(names) or tuple(map(str, used.tolist()))
    # Named classes, in alphabetical order.
    else:
        if not all(isinstance(label, str) for label in together):
            raise DataError(f"{source}: labels must be whole numbers or names of classes")
        known = np.array(sorted(set(map(composed, together))))
        classes = tuple(known.tolist())
    if len(classes) < 2:
        raise DataError(f"{source}: only {len(classes)} class; two or more are needed")
    # Replace each label by the index of its class.
    found: dict[str, Rows] = {}
    for part, (origin, image, own) in rows.items():
        labels = own if known.dtype.kind in "iu" else [composed(name) for name in own]
        indices = np.searchsorted(known, np.asarray(labels, known.dtype)).astype(np.int64)
        found[part] = origin, image, indices
    return found, classes


def _read_arrays(source: Path, parts: Sequence[str]) -> tuple[dict[str, Rows], Sequence[str]]:
    """Return the images of a NumPy archive by part, and the names of numbered classes."""
    # Read all arrays, unless a few bytes unpack to very many.
    try:
        with zipfile.ZipFile(source) as entries:
            whole = sum(entry.file_size for entry in entries.infolist())
        if whole > max(LEAST_BOMB_BYTES, MOST_COMPRESSED * source.stat().st_size):
            raise ValueError(f"{whole:,} bytes, compressed more than pictures can be")
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
    found = {}
    for part in ("", *parts):
        names = [("images", "labels"), ("x", "y")]
        if part:
            names = [(f"{part}_images", f"{part}_labels"), (f"x_{part}", f"y_{part}")]
        for images, labels in names:
            if images in arrays and labels in arrays:
                found[part] = _pixel_rows(source, images, arrays[images], arrays[labels])
    if not found:
        raise DataError(
            f"{source}: has {', '.join(arrays) or 'nothing'}; expected images and labels, or "
            "train_images, train_labels, test_images and so on"
        )
    return found, [str(name) for name in arrays.get("classes", ())]


def _pixel_rows(source: Path, name: str, pixels: np.ndarray, labels: np.ndarray) -> Rows:
    """Check the shapes of pixels, called ``name``, and labels; return them as rows."""
    # Accept grey pictures, with or without an axis of channels, and colour.
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
    return source, partial(_pixel_image, pixels), labels


def _pixel_image(pixels: np.ndarray, row: int) -> "Image":
    picture = pixels[row]  # [height, width] or [height, width, 1 or 3]
    grey = picture.shape[2:] == (1,)
    return import_pillow().fromarray(picture[:, :, 0] if grey else picture).convert("RGB")


def _read_tables(source: Path, parts: Sequence[str]) -> tuple[dict[str, Rows], Sequence[str]]:
    """Return the images of parquet files by part, and the names of numbered classes."""
    with needing(f"{source}: parquet files need pyarrow: pip install 'relu-nmt[parquet]'"):
        import pyarrow
    # Sort the files, without second links to one of them, and group them by part.
    files = sorted(source.glob(f"*{TABLE_SUFFIX}")) if source.is_dir() else [source]
    files = sorted({file.resolve(): file for file in files[::-1]}.values())
    by_part: dict[str, list[Path]] = {}
    for file in files:
        [start, *_] = re.split(r"\W|_", file.name)
        by_part.setdefault(start if start in parts and source.is_dir() else "", []).append(file)
    # Refuse a folder in which only some names begin with a part.
    if len(by_part) > 1 and "" in by_part:
        raise DataError(
            f"{by_part[''][0]}: its name begins with none of {', '.join(parts)}, as others there do"
        )
    # Read the parts.
    found: dict[str, Rows] = {}
    names: Sequence[str] = ()
    for part, own in by_part.items():
        origin = own[0] if len(own) == 1 else source
        try:
            table, part_names = _read_part(own)
            labels = table["label"].to_numpy(zero_copy_only=False)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{origin}: cannot be read as a parquet file ({first_line(error)})"
            ) from error
        # Take the class names of the first part that has some.
        names = names or part_names
        image = partial(_table_image, _bytes_in(table["image"], origin), origin)
        found[part] = origin, image, labels
    return found, names


def _table_image(column: Any, origin: Path, row: int) -> "Image":
    return decode_image(lambda: column[row].as_py(), f"{origin}: row {row}")


def _read_part(files: Sequence[Path]) -> tuple[Any, Sequence[str]]:
    """Return the columns ``image`` and ``label`` of the files of a part, and the class names."""
    import pyarrow
    from pyarrow import parquet

    tables: list[Any] = []
    names: tuple[str, ...] = ()
    for file in files:
        # Find the two columns by their known names.
        schema = parquet.read_schema(file)
        columns = []
        for known in (IMAGES, LABELS):
            column = next((name for name in known if name in schema.names), None)
            if column is None:
                raise DataError(
                    f"{file}: has the columns {', '.join(schema.names)}; expected one of "
                    f"{', '.join(known)}"
                )
            columns.append(column)
        # Read only these, and give them the same names in all files.
        table = parquet.read_table(file, columns=columns, partitioning=None)
        names = names or _names_in(schema.metadata or {}, columns[1])
        tables.append(table.rename_columns(["image", "label"]).replace_schema_metadata())
    return pyarrow.concat_tables(tables), names


def _bytes_in(column: Any, file: Path) -> Any:
    """Return the column of bytes in a column of images; refuse other types."""
    import pyarrow
    from pyarrow import types

    # Take the field of bytes, as data sets of Hugging Face store images.
    if types.is_struct(column.type) and "bytes" in [field.name for field in column.type]:
        chunks = [chunk.field("bytes") for chunk in column.chunks]
        column = pyarrow.chunked_array(chunks, chunks[0].type if chunks else pyarrow.binary())
    if not (types.is_binary(column.type) or types.is_large_binary(column.type)):
        raise DataError(f"{file}: its images are {column.type}; expected bytes of files")
    return column


def _names_in(metadata: Mapping[bytes, bytes], column: str) -> tuple[str, ...]:
    """Return the class names that the library ``datasets`` stores, or none."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[column]["names"]))
    except (KeyError, TypeError, ValueError):
        return ()

"""Images in parquet files and NumPy archives, with the labels of their rows."""

import re
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from relu_nmt.config.stored import parse_json
from relu_nmt.errors import DataError, counted, first_line, needing
from relu_nmt.vision.image_files import composed, composed_names, decode_image, import_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

ARRAY_SUFFIX = ".npz"
TABLE_SUFFIX = ".parquet"
IMAGES = ("image", "img")
LABELS = ("label", "labels", "fine_label", "class")
LEAST_BOMB_BYTES = 1 << 28
MOST_COMPRESSED = 200
"""An archive that unpacks to more than ``LEAST_BOMB_BYTES`` may grow by at most this factor."""


class ImageRows(NamedTuple):
    """The images of one part of a data set, by their rows in a table."""

    origin: Path  # the file or folder
    image: Callable[[int], "Image"]  # decodes the image in a row
    labels: np.ndarray  # [N], the label of each row


def is_table(source: Path) -> bool:
    """Return True for a NumPy archive, a parquet file and a folder of parquet files."""
    if source.is_dir():
        return next(source.glob(f"*{TABLE_SUFFIX}"), None) is not None
    return source.suffix in (ARRAY_SUFFIX, TABLE_SUFFIX)


def open_table(
    source: Path, parts: Sequence[str], least_classes: int
) -> tuple[dict[str, ImageRows], Sequence[str]]:
    """Return the images of each part with labels that are int64 indices, and the class names.

    A NumPy archive holds ``images`` and ``labels``, or ``train_images``, ``train_labels``,
    ``val_images``, ... (also ``x_train``, ``y_train``, ...), and perhaps ``classes``. Parquet files
    have the columns ``label`` and ``image`` (or ``img``): the bytes of an image file, or a struct
    with a field ``bytes``. In a folder the name of each file begins with the name of a part, as in
    data sets of Hugging Face. Without ``parts``, the only part is called "".
    """
    reader = _read_arrays if source.suffix == ARRAY_SUFFIX else _read_tables
    rows, names = reader(source, parts)
    labels = np.concatenate([part_rows.labels for part_rows in rows.values()])
    numbers, classes = _number_classes(labels, composed_names(names, source), source)
    if len(classes) < least_classes:
        raise DataError(
            f"{source}: only {counted(len(classes), 'class')}; {least_classes} or more are needed"
        )
    # Divide the numbers among the parts again.
    ends = np.cumsum([len(part_rows.labels) for part_rows in rows.values()])
    labels_of_parts = np.split(numbers.astype(np.int64), ends[:-1])
    for part, part_labels in zip(list(rows), labels_of_parts, strict=True):
        rows[part] = rows[part]._replace(labels=part_labels)
    return rows, classes


def _number_classes(
    labels: np.ndarray, names: Sequence[str], source: Path
) -> tuple[np.ndarray, Sequence[str]]:
    """Return the number of each label's class, and the names of all classes."""
    if labels.dtype.kind in "iu":
        # Numbered classes: all that have names. Without names, the numbers that occur.
        used, numbers = np.unique(labels, return_inverse=True)
        if len(used) and (used[0] < 0 or (names and used[-1] >= len(names))):
            wrong = used[0] if used[0] < 0 else used[-1]
            raise DataError(f"{source}: the label {wrong} stands for no class; count from 0")
        if names:
            return labels, names
        return numbers, tuple(map(str, used.tolist()))
    # Named classes, in alphabetical order.
    if not all(isinstance(label, str) for label in labels):
        raise DataError(f"{source}: labels must be whole numbers or names of classes")
    used, numbers = np.unique([composed(label) for label in labels], return_inverse=True)
    return numbers, tuple(used.tolist())


def _read_arrays(source: Path, parts: Sequence[str]) -> tuple[dict[str, ImageRows], Sequence[str]]:
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


def _pixel_rows(source: Path, name: str, pixels: np.ndarray, labels: np.ndarray) -> ImageRows:
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

    def image(row: int) -> "Image":
        return import_pillow().fromarray(pixels[row]).convert("RGB")

    return ImageRows(source, image, labels)


def _read_tables(source: Path, parts: Sequence[str]) -> tuple[dict[str, ImageRows], Sequence[str]]:
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
    rows: dict[str, ImageRows] = {}
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
        rows[part] = ImageRows(origin, partial(_table_image, column, origin), labels)
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

"""Images and their classes, in class folders, a zip file, a NumPy archive or a parquet table."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relu_nmt.errors import DataError
from relu_nmt.vision.image_files import FileTree, ImageStore, import_pillow
from relu_nmt.vision.image_tables import (
    ARRAY_SUFFIX,
    is_table,
    numbered,
    read_arrays,
    read_tables,
)

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
)
TRAIN_FOLDER = "train"
VALID_FOLDERS = ("val", "valid", "validation", "test")


@dataclass(frozen=True)
class ImageSet:
    """Images and their classes.

    Args:
        store: where the images are.
        name: what to call the set in the log (``train``, ``val``).
        paths: of each image, its path or row in the store.
        labels: int64 [N], class of each image, an index into ``classes``.
        classes: names of the classes.
        num_ignored: files that are no images by their names, or hidden.
    """

    store: ImageStore
    name: str
    paths: Sequence[Any]
    labels: np.ndarray
    classes: Sequence[str]
    num_ignored: int = 0

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> "Image":
        """Decode image ``index`` to 8-bit red, green and blue.

        Raises:
            DataError: it cannot be decoded; names the file.
            MissingExtraError: Pillow is not installed.
        """
        return self.store.image(self.paths[index])

    def subset(self, numbers: np.ndarray, name: str) -> "ImageSet":
        """Return the images of these numbers, in this order, as a set called ``name``."""
        paths = [self.paths[number] for number in numbers]
        return replace(self, name=name, paths=paths, labels=self.labels[numbers], num_ignored=0)


def open_images(path: str | os.PathLike[str]) -> dict[str, ImageSet]:
    """Find the images of a folder, a zip file, a NumPy archive or parquet files.

    A folder or zip holds class folders (``cat/1.jpg``), or folders ``train`` and ``val`` (also
    ``valid``, ``validation``, ``test``) that hold them. Classes are numbered in alphabetical order,
    and so are images; so a folder and a zip of it are the same. The others are told of in
    :mod:`~relu_nmt.vision.image_tables`.

    Returns:
        the sets by name, ``train`` first; without a part ``train`` there is one set, named
        after the path.

    Raises:
        DataError: no such path, or no images with classes in it.
        MissingExtraError: Pillow is not installed, or pyarrow for parquet files.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (root / name).mkdir()
        ...     _ = (root / name / "1.png").write_bytes(b"")
        >>> [images] = open_images(root).values()
        >>> images.classes, images.labels.tolist()
        (('cat', 'dog'), [0, 1])
    """
    import_pillow()
    source = Path(path)
    if not source.exists():
        raise DataError(f"{source}: no such folder or file of images")
    if source.suffix == ARRAY_SUFFIX or is_table(source):
        return _tables(source)
    tree = FileTree(source)
    files = sorted(tree.paths())
    tops = {file.partition("/")[0] for file in files}
    if TRAIN_FOLDER not in tops:
        return {source.stem: _image_set(tree, source.stem, files, "")}
    names = [TRAIN_FOLDER, *(name for name in VALID_FOLDERS if name in tops)]
    return {name: _image_set(tree, name, files, f"{name}/") for name in names}


def _tables(source: Path) -> dict[str, ImageSet]:
    read = read_arrays if source.suffix == ARRAY_SUFFIX else read_tables
    rows, names = read(source, (TRAIN_FOLDER, *VALID_FOLDERS))
    sets = {}
    for part, own, classes in numbered(source, rows, names):
        name = part or source.stem
        paths = range(len(own.labels))
        sets[name] = ImageSet(own.store, name, paths, own.labels, classes)
    order = [TRAIN_FOLDER, *(name for name in sets if name != TRAIN_FOLDER)]
    return {name: sets[name] for name in order if name in sets}


def _image_set(tree: FileTree, name: str, files: Sequence[str], prefix: str) -> ImageSet:
    """Return the images below ``prefix``.

    Raises:
        DataError: there are fewer than two classes.
    """
    files = [file for file in files if file.startswith(prefix)]
    by_class: dict[str, list[str]] = {}
    for file in files:
        label, *rest = parts = file[len(prefix) :].split("/")
        # macOS puts "._1.jpg" beside 1.jpg into zip files, Jupyter copies into hidden folders.
        hidden = any(part.startswith(".") for part in parts)
        if rest and not hidden and Path(file).suffix.lower() in IMAGE_SUFFIXES:
            by_class.setdefault(label, []).append(file)
    classes = tuple(sorted(by_class))
    if len(classes) < 2:
        found = f"only the class '{classes[0]}'" if classes else "no class"
        raise DataError(
            f"{tree.origin}: {found} in {prefix or 'it'}; images must lie in two class folders or "
            f"more ({prefix}cat/1.jpg, {prefix}dog/1.jpg)"
        )
    paths = [path for label in classes for path in by_class[label]]
    counts = [len(by_class[label]) for label in classes]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    return ImageSet(tree, name, paths, labels, classes, len(files) - len(paths))


def with_classes_of(images: ImageSet, classes: Sequence[str], origin: str) -> ImageSet:
    """Return images with the class numbers of others.

    Args:
        images: to validate or test on.
        classes: names of the classes, among which those of the images are.
        origin: who names them, for the message.

    Raises:
        DataError: a class is not among them.
    """
    number = {label: index for index, label in enumerate(classes)}
    for label in images.classes:
        if label not in number:
            raise DataError(
                f"{images.store.origin}: the class '{label}' of {images.name} is not among the "
                f"{len(number)} classes of {origin}"
            )
    own_to_theirs = np.array([number[label] for label in images.classes], dtype=np.int64)
    labels = own_to_theirs[images.labels]
    return replace(images, labels=labels, classes=tuple(classes))


def hold_out(images: ImageSet, fraction: float) -> tuple[ImageSet, ImageSet]:
    """Split off a share of each class, at least one image of it.

    The choice depends on nothing but the images, so a resumed training and one with another seed
    validate on the same ones.

    Returns:
        the remaining images, and those held out as a set called ``valid``.

    Raises:
        DataError: a class has one image only.
    """
    generator = np.random.Generator(np.random.PCG64(0))
    held: list[np.ndarray] = []
    for label, class_name in enumerate(images.classes):
        numbers = np.flatnonzero(images.labels == label)
        if len(numbers) == 1:
            raise DataError(
                f"{images.store.origin}: the class '{class_name}' has one image only; "
                "--valid-fraction needs two of each"
            )
        count = min(max(1, round(fraction * len(numbers))), len(numbers) - 1)
        held.append(generator.permutation(numbers)[:count])
    chosen = np.sort(np.concatenate(held))
    rest = np.setdiff1d(np.arange(len(images)), chosen, assume_unique=True)
    return images.subset(rest, images.name), images.subset(chosen, "valid")


def add_set(sets: Mapping[str, ImageSet], images: ImageSet) -> dict[str, ImageSet]:
    """Return the sets with one more, which gets a number if its name is taken."""
    name, number = images.name, 1
    while name in sets:
        number += 1
        name = f"{images.name}{number}"
    return {**sets, name: images}

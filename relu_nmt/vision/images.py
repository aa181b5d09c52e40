"""Images and their classes, in class folders, a zip file, a NumPy archive or a parquet table."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relu_nmt.errors import DataError
from relu_nmt.vision.image_files import (
    ARRAY_SUFFIX,
    FileTree,
    composed,
    composed_names,
    import_pillow,
    is_hidden,
    is_table,
    open_table,
    spelled,
)
from relu_nmt.vision.training_config import IMAGE_SUFFIXES

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_SHOWN = 5
SKIP_FLAG = "--skip-damaged-images"
TRAIN_FOLDER = "train"
VALID_FOLDERS = ("val", "valid", "validation", "test")


@dataclass(frozen=True)
class ImageSet:
    """Images and their classes."""

    origin: Path  # the folder or file of the images
    image: Callable[[Any], "Image"]  # decodes the image at a path; called from several threads
    name: str  # of the set in the log (``train``, ``val``)
    paths: Sequence[Any]  # of each image, its path or row in ``origin``
    labels: np.ndarray  # int64 [N], indices into ``classes``
    classes: Sequence[str]
    num_ignored: int = 0  # number of other files: not images by their names, or hidden
    empty: Sequence[str] = ()  # folders without images next to the class folders
    not_entered: Sequence[str] = ()  # folders that were not searched, with reasons
    encoded: bool = True  # the images are files, which may be damaged, not arrays of pixels

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> "Image":
        """Decode image ``index`` to 8-bit red, green and blue."""
        return self.image(self.paths[index])

    @property
    def absent(self) -> list[str]:
        """The classes without images."""
        counts = np.bincount(self.labels, minlength=len(self.classes))
        return [name for name, count in zip(self.classes, counts, strict=True) if not count]

    def subset(self, indices: np.ndarray, name: str) -> "ImageSet":
        """Return the images with these indices, in this order, as a set called ``name``."""
        paths = [self.paths[index] for index in indices]
        return replace(self, name=name, paths=paths, labels=self.labels[indices])

    def left_out(self) -> list[str]:
        """Return messages about the files and folders that are not part of the set."""
        found = []
        # Count the other files; they are usual, so without NOTE.
        if self.num_ignored:
            found.append(
                f"{self.origin}: {self.name}: {self.num_ignored:,} other files are left out: "
                "no image by their names, hidden, links to others, or not in a class folder"
            )
        # Warn about folders that may hold images of the set.
        if self.not_entered:
            found.append(
                f"NOTE: {self.origin}: {self.name}: not looked into: {some_of(self.not_entered)}"
            )
        # Warn about folders that look like classes, but are empty.
        if self.empty:
            found.append(
                f"NOTE: {self.origin}: no classes are made of the folders that hold no "
                f"images in {self.name}: {some_of(self.empty)}"
            )
        return found


def open_images(path: str | os.PathLike[str]) -> dict[str, ImageSet]:
    """Find the images of a folder, a zip file, a NumPy archive or parquet files.

    A folder or zip holds class folders (``cat/1.jpg``), or folders ``train`` and ``val`` (also
    ``valid``, ``validation``, ``test``) that hold class folders. One more folder may enclose all
    of these, as in a zip file of a folder. Classes and images are in alphabetical order, so a
    folder and its zip file give the same set. For archives and tables see
    :func:`~relu_nmt.vision.image_files.open_table`.

    Returns the sets by name, ``train`` first; without such a part, one set named after the path.

    Raises:
        DataError: the path does not exist, or holds no images in classes.
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
    # Check Pillow first, for an early error.
    import_pillow()
    source, parts = Path(path), (TRAIN_FOLDER, *VALID_FOLDERS)
    if not source.exists():
        raise DataError(f"{source}: no such folder or file of images")
    # Read archives and tables, the training part first.
    if is_table(source):
        rows, classes = open_table(source, parts)
        sets = {}
        for part in sorted(rows, key=lambda part: part != TRAIN_FOLDER):
            (origin, image, labels), name = rows[part], part or source.stem
            entries = (origin, image, name, range(len(labels)), labels, classes)
            sets[name] = ImageSet(*entries, encoded=source.suffix != ARRAY_SUFFIX)
        return sets
    # List the files of a folder or zip, and find the class folders.
    tree = FileTree(source, parts)
    paths = sorted(tree.paths())
    images = [path for path in paths if _is_image(path)]
    root = _folder_of_classes(images, "")
    # Return the parts; train alone, with images of its own, is a class of that name.
    tops = _tops(_below(paths, root))
    others = [name for name in VALID_FOLDERS if name in tops]
    if TRAIN_FOLDER in tops and (others or _below(images, f"{root}{TRAIN_FOLDER}/")):
        names = [TRAIN_FOLDER, *others]
        return {name: _image_set(tree, name, paths, images, f"{root}{name}/") for name in names}
    return {source.stem: _image_set(tree, source.stem, paths, images, "")}


def _is_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES and not is_hidden(path)


def _below(paths: Sequence[str], prefix: str) -> list[str]:
    """Return the paths of files in subfolders of ``prefix``, and of these, relative to it."""
    size = len(prefix)
    return [path[size:] for path in paths if path.startswith(prefix) and "/" in path[size:]]


def _tops(paths: Sequence[str]) -> set[str]:
    return {path.partition("/")[0] for path in paths}


def _folder_of_classes(images: Sequence[str], prefix: str) -> str:
    """Return the prefix of the folder that holds class folders, or train and val."""
    # It is the prefix, or the single folder in it if that holds only folders.
    inside = _below(images, prefix)
    tops = _tops(inside)
    if len(tops) != 1 or TRAIN_FOLDER in tops or any(path.count("/") == 1 for path in inside):
        return prefix
    return _folder_of_classes(images, f"{prefix}{tops.pop()}/")


def _image_set(
    tree: FileTree, name: str, paths: Sequence[str], images: Sequence[str], prefix: str
) -> ImageSet:
    """Return the images below ``prefix``, given the paths of all files and of all images."""
    # Group the images by class folder.
    num_files = sum(path.startswith(prefix) and not path.endswith("/") for path in paths)
    prefix = _folder_of_classes(images, prefix)
    by_folder: dict[str, list[str]] = {}
    for path in tree.distinct([prefix + path for path in _below(images, prefix)]):
        by_folder.setdefault(path[len(prefix) :].partition("/")[0], []).append(path)
    names = composed_names(list(by_folder), f"{tree.origin}: {name}")
    by_class = dict(zip(names, by_folder.values(), strict=True))
    classes = tuple(sorted(by_class))
    if len(classes) < 2:
        found = f"only the class '{classes[0]}'" if classes else "no class"
        raise DataError(
            f"{tree.origin}: {found} in {prefix or 'it'}; images ({', '.join(IMAGE_SUFFIXES)}) "
            f"must lie in two class folders or more ({prefix}cat/1.jpg, {prefix}dog/1.jpg)"
        )
    # List images and labels, class by class.
    of_classes = [path for label in classes for path in by_class[label]]
    counts = [len(by_class[label]) for label in classes]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    # Note the files and folders that are left out.
    folders = _tops([path for path in _below(paths, prefix) if not is_hidden(path)])
    empty = tuple(sorted(folders - by_folder.keys()))
    not_entered = tuple(text for text in tree.not_entered if text.startswith(prefix))
    num_ignored = num_files - len(of_classes)
    entries = (tree.origin, tree.image, name, of_classes, labels, classes)
    return ImageSet(*entries, num_ignored, empty, not_entered)


def with_classes_of(images: ImageSet, classes: Sequence[str], origin: str) -> ImageSet:
    """Return images whose labels are indices into other classes, of a model or another set.

    The names may have any Unicode form; ``origin`` is their source, for messages.
    """
    # Index the names in composed form and as they are.
    number = {composed(label): index for index, label in enumerate(classes)}
    number |= {label: index for index, label in enumerate(classes)}
    for label in images.classes:
        if label not in number:
            raise DataError(
                f"{images.origin}: the class {spelled(label)} of {images.name} is not among "
                f"the {len(classes)} classes of {origin}"
            )
    # Map the labels.
    own_to_theirs = np.array([number[label] for label in images.classes], dtype=np.int64)
    labels = own_to_theirs[images.labels]
    return replace(images, labels=labels, classes=tuple(classes))


def hold_out(images: ImageSet, fraction: float) -> tuple[ImageSet, ImageSet]:
    """Return the images without a share of each class, and this share as a set ``valid``.

    The choice depends only on the images, so trainings that are resumed or have another seed
    validate on the same ones.
    """
    # Draw the images of each class.
    generator = np.random.Generator(np.random.PCG64(0))
    held: list[np.ndarray] = []
    for label, class_name in enumerate(images.classes):
        numbers = np.flatnonzero(images.labels == label)
        if len(numbers) == 1:
            raise DataError(
                f"{images.origin}: the class '{class_name}' has one image only; "
                "--valid-fraction needs two of each"
            )
        # Hold out at least one image, and keep at least one.
        count = min(max(1, round(fraction * len(numbers))), len(numbers) - 1)
        held.append(generator.permutation(numbers)[:count])
    # Split the set in two, both in the original order.
    chosen = np.sort(np.concatenate(held))
    rest = np.setdiff1d(np.arange(len(images)), chosen, assume_unique=True)
    held_out = replace(images.subset(chosen, "valid"), num_ignored=0, empty=(), not_entered=())
    return images.subset(rest, images.name), held_out


def add_set(sets: Mapping[str, ImageSet], images: ImageSet) -> dict[str, ImageSet]:
    """Return the sets with one more, which gets a number if its name is taken."""
    name, number = images.name, 1
    while name in sets:
        number += 1
        name = f"{images.name}{number}"
    return {**sets, name: replace(images, name=name)}


class DamagedImages:
    """The damaged images that ``--skip-damaged-images`` leaves out; ``say`` reports each once."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._found: set[str] = set()

    def __len__(self) -> int:
        return len(self._found)

    def add(self, error: DataError) -> None:
        """Add the error of an image; may be called from several threads."""
        if str(error) not in self._found:
            self._found.add(str(error))
            self._say(f"NOTE: {error}; left out ({len(self):,} so far, {SKIP_FLAG})")


def some_of(names: Sequence[str], between: str = ", ") -> str:
    """Return the first names for a message, and the number of the others."""
    more = f" and {len(names) - MOST_SHOWN:,} more" if len(names) > MOST_SHOWN else ""
    return f"{between.join(names[:MOST_SHOWN])}{more}"

"""Images and their classes, in class folders, a zip file, a NumPy archive or a parquet table."""

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.batch_plan import batches_by_length
from relu_nmt.data.translation_batches import TensorBatch
from relu_nmt.errors import DataError, counted, some_of
from relu_nmt.io.memory import require_memory
from relu_nmt.vision import image_files, image_tables
from relu_nmt.vision.config import IMAGE_SUFFIXES, AugmentationConfig
from relu_nmt.vision.transforms import BYTES_OF_PIXEL, ImageTransform, mix_images, sample_generator

if TYPE_CHECKING:
    from PIL.Image import Image

SKIP_FLAG = "--skip-damaged-images"
TRAIN_FOLDER = "train"
VALID_FOLDERS = ("val", "valid", "validation", "test")
MOST_DAMAGED = 50  # damaged images in a row that stop a training
NO_AUGMENTATION = AugmentationConfig()


@dataclass(frozen=True)
class ImageSet:
    """Images and their classes."""

    origin: Path  # the folder or file of the images
    image: Callable[[Any], "Image"]  # decodes the image at a path. Called from several threads
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
        messages = []
        # Count the other files, which are usual and need no NOTE.
        if self.num_ignored:
            messages.append(
                f"{self.origin}: {self.name}: {self.num_ignored:,} other files are left out: "
                "no image by their names, hidden, links to others, or not in a class folder"
            )
        # Warn about folders that may hold images of the set.
        if self.not_entered:
            messages.append(
                f"NOTE: {self.origin}: {self.name}: not looked into: {some_of(self.not_entered)}"
            )
        # Warn about folders that look like classes, but are empty.
        if self.empty:
            messages.append(
                f"NOTE: {self.origin}: no classes are made of the folders that hold no "
                f"images in {self.name}: {some_of(self.empty)}"
            )
        return messages


def open_images(path: str | os.PathLike[str], least_classes: int = 2) -> dict[str, ImageSet]:
    """Find the images of a folder, a zip file, a NumPy archive or parquet files.

    A folder or zip holds class folders (``cat/1.jpg``), or folders ``train`` and ``val`` (also
    ``valid``, ``validation``, ``test``) that hold class folders. One more folder may enclose all
    of these. Classes and images are in alphabetical order. For archives and tables see
    :func:`~relu_nmt.vision.image_tables.open_table`. Each set needs ``least_classes`` or more.

    Returns the sets by name, ``train`` first. Without such a part there is one set, named after the
    path.

    Raises:
        DataError: the path does not exist, or holds no images in classes.
        MissingExtraError: Pillow is not installed, or pyarrow for parquet files.
    """
    # Check Pillow first, for an early error.
    image_files.import_pillow()
    source = Path(path)
    parts = (TRAIN_FOLDER, *VALID_FOLDERS)
    if not source.exists():
        raise DataError(f"{source}: no such folder or file of images")
    if image_tables.is_table(source):
        return _sets_of_table(source, parts, least_classes)
    tree = image_files.FileTree(source, parts)
    paths = sorted(tree.paths())
    images = [path for path in paths if _is_image(path)]
    root = _folder_of_classes(images, "")
    folders = _by_folder(paths, root)
    validation_sets = [name for name in VALID_FOLDERS if name in folders]
    if TRAIN_FOLDER not in folders or not (
        validation_sets or _by_folder(images, f"{root}{TRAIN_FOLDER}/")
    ):
        return {source.stem: _image_set(tree, source.stem, paths, images, "", least_classes)}
    sets = {}
    for name in (TRAIN_FOLDER, *validation_sets):
        sets[name] = _image_set(tree, name, paths, images, f"{root}{name}/", least_classes)
    return sets


def sets_besides_train(path: str | os.PathLike[str], least_classes: int = 2) -> list[ImageSet]:
    """Return the sets of a path to measure a model on: all but ``train``, or else the only set."""
    first, *further = open_images(path, least_classes).values()
    return further or [first]


def _sets_of_table(source: Path, parts: Sequence[str], least_classes: int) -> dict[str, ImageSet]:
    """Return the images of an archive or of tables by part, the training part first."""
    rows, classes = image_tables.open_table(source, parts, least_classes)
    encoded = source.suffix != image_tables.ARRAY_SUFFIX
    sets = {}
    for part in sorted(rows, key=lambda part: part != TRAIN_FOLDER):
        origin, image, labels = rows[part]
        name = part or source.stem
        paths = range(len(labels))
        sets[name] = ImageSet(origin, image, name, paths, labels, classes, encoded=encoded)
    return sets


def _is_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES and not image_files.is_hidden(path)


def _by_folder(paths: Iterable[str], parent: str) -> dict[str, list[str]]:
    """Return the paths in each folder of ``parent``, which is "" or ends with a slash, by name."""
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, _ = path.removeprefix(parent).partition("/")
        if slash and path.startswith(parent):
            by_folder.setdefault(folder, []).append(path)
    return by_folder


def _folder_of_classes(images: Sequence[str], parent: str) -> str:
    """Return the folder that holds class folders, or train and val: ``parent`` or one inside it."""
    # Enter the single folder of the parent if that holds only folders.
    folders = _by_folder(images, parent)
    if len(folders) != 1 or TRAIN_FOLDER in folders:
        return parent
    [(name, paths)] = folders.items()
    inner = f"{parent}{name}/"
    if any("/" not in path[len(inner) :] for path in paths):
        return parent
    return _folder_of_classes(images, inner)


def _image_set(
    tree: image_files.FileTree,
    name: str,
    paths: Sequence[str],
    images: Sequence[str],
    folder: str,
    least_classes: int,
) -> ImageSet:
    """Return the images below a folder, given the paths of all files and of all images."""
    num_files = sum(path.startswith(folder) and not path.endswith("/") for path in paths)
    folder = _folder_of_classes(images, folder)
    inside = [path for path in images if path.startswith(folder) and "/" in path[len(folder) :]]
    by_folder = _by_folder(tree.distinct(inside), folder)
    names = image_files.composed_names(list(by_folder), f"{tree.origin}: {name}")
    by_class = dict(sorted(zip(names, by_folder.values(), strict=True)))
    classes = tuple(by_class)
    if len(classes) < least_classes:
        present = f"only the class '{classes[0]}'" if classes else "no class"
        raise DataError(
            f"{tree.origin}: {present} in {folder or 'it'}; images ({', '.join(IMAGE_SUFFIXES)}) "
            f"must lie in {counted(least_classes, 'class folder')} or more ({folder}cat/1.jpg, "
            f"{folder}dog/1.jpg)"
        )
    of_classes = list(itertools.chain.from_iterable(by_class.values()))
    counts = [len(class_images) for class_images in by_class.values()]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    # Note the files and folders that are left out.
    visible = (path for path in paths if not image_files.is_hidden(path[len(folder) :]))
    empty = tuple(sorted(_by_folder(visible, folder).keys() - by_folder.keys()))
    not_entered = tuple(text for text in tree.not_entered if text.startswith(folder))
    num_ignored = num_files - len(of_classes)
    return ImageSet(
        tree.origin, tree.image, name, of_classes, labels, classes, num_ignored, empty, not_entered
    )


def with_classes_of(images: ImageSet, classes: Sequence[str], origin: str) -> ImageSet:
    """Return images whose labels are indices into ``classes``. Messages name their ``origin``."""
    # Index the names in composed form and as they are.
    number = {image_files.composed(label): index for index, label in enumerate(classes)}
    number |= {label: index for index, label in enumerate(classes)}
    numbers = []
    for label in images.classes:
        if label not in number:
            raise DataError(
                f"{images.origin}: the class {image_files.spelled(label)} of {images.name} is not "
                f"among the {len(classes)} classes of {origin}"
            )
        numbers.append(number[label])
    labels = np.array(numbers, dtype=np.int64)[images.labels]
    return replace(images, labels=labels, classes=tuple(classes))


def hold_out(images: ImageSet, fraction: float) -> tuple[ImageSet, ImageSet]:
    """Split off a fixed share of each class. Return the other images, then the share: ``valid``."""
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
    chosen = np.sort(np.concatenate(held))
    remaining = np.setdiff1d(np.arange(len(images)), chosen, assume_unique=True)
    held_out = replace(images.subset(chosen, "valid"), num_ignored=0, empty=(), not_entered=())
    return images.subset(remaining, images.name), held_out


def add_set(sets: Mapping[str, ImageSet], images: ImageSet) -> dict[str, ImageSet]:
    """Return the sets with one more, which gets a number if its name is taken."""
    name = images.name
    number = 1
    while name in sets:
        number += 1
        name = f"{images.name}{number}"
    return {**sets, name: replace(images, name=name)}


def reporter_of_damaged(say: Callable[[str], object]) -> Callable[[DataError], None]:
    """Return a function, safe for threads, that reports the error of each damaged image once."""
    reported: set[str] = set()

    def report(error: DataError) -> None:
        if str(error) not in reported:
            reported.add(str(error))
            say(f"NOTE: {error}; left out ({len(reported):,} so far, {SKIP_FLAG})")

    return report


@dataclass(frozen=True)
class SampleBatch(TensorBatch):
    """A batch of samples of a set. A subclass adds fields with tensors."""

    ids: Tensor  # [B] int64, indices of the samples in their set

    @property
    def num_sentences(self) -> int:
        """The number of samples. The trainer's log calls them sentences."""
        return self.ids.size(0)

    @property
    def num_tokens(self) -> int:
        """The number of samples, so that the log's ``wps`` counts samples a second."""
        return self.ids.size(0)


class PlannedBatches:
    """The batches of ``count`` samples, shuffled by a seed if given. A subclass loads each."""

    def __init__(self, count: int, batch_size: int, seed: int | None = None) -> None:
        self._count = count
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0
        self._plan: list[np.ndarray] = []

    @property
    def num_batches(self) -> int:
        """The number of batches of every epoch."""
        return -(-self._count // self._batch_size)

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (counted from 1) and return its number of batches."""
        self._epoch = epoch
        # Keep the plan of a set without shuffling for all epochs.
        if not self._plan or self._seed is not None:
            sizes = np.ones(self._count, dtype=np.int64)
            limits = BatchLimits(max_sentences=self._batch_size)
            shuffle_seed = None if self._seed is None else (self._seed, epoch)
            self._plan = batches_by_length(sizes, None, limits, shuffle_seed)
        return len(self._plan)

    def largest(self) -> int:
        """Return the index of a largest batch of the planned epoch."""
        return int(np.argmax(list(map(len, self._plan))))


@dataclass(frozen=True)
class ImageBatch(SampleBatch):
    """Images of one size and their classes."""

    images: Tensor  # [B, 3, height, width], normalized
    labels: Tensor  # [B] int64
    other_labels: Tensor | None = None  # [B] int64, of the images mixed in, if any
    share: float = 1.0  # weight of ``labels``. ``other_labels`` have the weight 1 - share


class ImageBatches(PlannedBatches):
    """The batches of a set of images, mapped to pixels of one size by a transform.

    The seed determines the order and the random views of each epoch. None keeps the order and takes
    the middle of each image. ``report_damaged``, if given, is called with the error of a damaged
    image. Then in training the next image takes its place, and in validation the batch is smaller.
    Without it the error is raised.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: ImageTransform,
        batch_size: int,
        seed: int | None = None,
        augmentation: AugmentationConfig = NO_AUGMENTATION,
        report_damaged: Callable[[DataError], object] | None = None,
    ) -> None:
        super().__init__(len(images), batch_size, seed)
        count = min(batch_size, len(images))
        height, width = transform.sides
        subject = f"a batch of {count:,} images of {height} x {width} pixels"
        num_bytes = BYTES_OF_PIXEL * count * height * width
        require_memory(subject, num_bytes, "take a smaller --batch-size or --image-size")
        self.images = images
        self._transform = transform
        self._augmentation = augmentation
        self._report_damaged = report_damaged

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch``. With repeated augmentation the views of an image follow each other."""
        super().begin_epoch(epoch)
        total = len(self.images)
        count = self._augmentation.repeated_augmentation
        if self._seed is not None and count > 1:
            # View c of image i of N has the number c N + i: [N, count] (Hoffer et al. 2020).
            views = np.concatenate(self._plan)[:, None] + total * np.arange(count)
            # Take N views in all, so that an epoch keeps its length.
            starts = range(self._batch_size, total, self._batch_size)
            self._plan = np.split(views.reshape(-1)[:total], starts)
        return len(self._plan)

    def load(self, index: int) -> ImageBatch:
        """Read batch ``index`` of the planned epoch."""
        views = list(filter(None, map(self._view, self._plan[index].tolist())))
        # Stack the images: [B, 3, height, width]. All of a validation batch may be damaged.
        pixels = np.zeros((0, 3, *self._transform.sides), dtype=np.float32)
        if views:
            pixels = np.stack([pixels_of_view for _, pixels_of_view in views])
        indices = np.array([number for number, _ in views], dtype=np.int64)
        batch = ImageBatch(
            torch.from_numpy(indices),
            torch.from_numpy(pixels),
            torch.from_numpy(self.images.labels[indices]),
        )
        config = self._augmentation
        if self._seed is None or not (config.mixup or config.cutmix):
            return batch
        # Mix. The fifth number keeps this generator apart from the generators of images and views.
        generator = sample_generator(self._seed, self._epoch, index, 0, 1)
        return mix_images(batch, config.mixup, config.cutmix, generator)

    def _read(self, number: int) -> "Image | None":
        """Return an image, or None if it is damaged and damaged images are skipped."""
        try:
            return self.images.read(number)
        except DataError as error:
            if self._report_damaged is None:
                raise DataError(f"{error}, or give {SKIP_FLAG}") from error
            self._report_damaged(error)
            return None

    def _view(self, view: int) -> tuple[int, np.ndarray] | None:
        """Return an image's index and pixels. In validation, None if it is damaged."""
        copy, first = divmod(view, len(self.images))
        if self._seed is None:
            image = self._read(first)
            return None if image is None else (first, self._transform.evaluation(image))
        # Training: a random view of it, or of the next undamaged image.
        tries = min(MOST_DAMAGED, len(self.images))
        for number in range(first, first + tries):
            number %= len(self.images)
            if (image := self._read(number)) is not None:
                generator = sample_generator(self._seed, self._epoch, number, copy)
                return number, self._transform.training(image, generator)
        raise DataError(
            f"{self.images.origin}: {tries} images in a row are damaged, from "
            f"{self.images.paths[first]} on; see the messages above"
        )

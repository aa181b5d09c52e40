"""Crops of decoded pictures, and batches: random views in training, otherwise the middle."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from typing_extensions import Self

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.translation_batches import plan_batches
from relu_nmt.errors import DataError
from relu_nmt.vision.augmentation import augmented, erased, mix_images
from relu_nmt.vision.images import SKIP_FLAG, DamagedImages, ImageSet
from relu_nmt.vision.training_config import AugmentationConfig, PreprocessingConfig

if TYPE_CHECKING:
    from PIL.Image import Image

RATIO_LIMITS = (3 / 4, 4 / 3)
CROP_TRIALS = 10
MOST_DAMAGED = 50
"""Damaged images in a row that stop a training."""
NO_AUGMENTATION = AugmentationConfig()
Box = tuple[float, float, float, float]


def sample_generator(seed: int, epoch: int, index: int, *others: int) -> np.random.Generator:
    """Return the random generator of one image in one epoch; ``others`` tell several apart.

    It depends on its arguments alone, so a resumed training sees the same crops.
    """
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence((seed, epoch, index, *others)))
    )


def random_box(
    size: tuple[int, int],
    areas: tuple[float, float],
    generator: np.random.Generator,
    aspect: float = 1.0,
) -> Box:
    """Return left, top, right and bottom of a part of random area and shape.

    ``size`` is width and height of the picture in pixels, ``areas`` the smallest and largest share
    of it. Shapes vary around ``aspect`` = width / height. In a very wide or high picture, where
    none fits, it is the middle.

    Reference: Szegedy et al. 2015, "Going deeper with convolutions", section 6.
    """
    width, height = size
    low, high = np.log(RATIO_LIMITS)
    for _ in range(CROP_TRIALS):
        # Draw area and aspect ratio, and return a box that fits.
        area = width * height * generator.uniform(*areas)
        ratio = aspect * float(np.exp(generator.uniform(low, high)))
        w, h = (area * ratio) ** 0.5, (area / ratio) ** 0.5
        if w <= width and h <= height:
            left, top = generator.uniform(0, width - w), generator.uniform(0, height - h)
            return left, top, left + w, top + h
    return middle_box(size, 1.0, aspect)


def middle_box(size: tuple[int, int], ratio: float, aspect: float) -> Box:
    """Return the middle of a picture of this width and height, in pixels.

    It is the largest box with this ``aspect`` (width / height), its sides times ``ratio``.
    """
    width, height = size
    high = ratio * min(height, width / aspect)
    wide = high * aspect
    left, top = (width - wide) / 2, (height - high) / 2
    return left, top, left + wide, top + high


def resized_part(image: "Image", box: Box, sides: tuple[int, int]) -> "Image":
    """Return the part of an image in a box, resized to this height and width."""
    from PIL.Image import Resampling

    # Clip the box, which rounding may have moved out of the picture.
    right, bottom = min(box[2], image.width), min(box[3], image.height)
    box = (max(0.0, box[0]), max(0.0, box[1]), right, bottom)
    return image.resize(sides[::-1], Resampling.BICUBIC, box=box)


class ImageTransform:
    """A map from pictures of any size to normalised pixels of one size.

    ``size`` is height and width of the result, or one number for a square. Training has the changes
    of ``augmentation``. With ``squeeze`` evaluation ignores the aspect ratio: it squeezes the whole
    picture to the shape of the result, then takes the middle.

    Example:
        >>> from PIL import Image
        >>> transform = ImageTransform(PreprocessingConfig(), (24, 32))
        >>> transform.evaluation(Image.new("RGB", (50, 40))).shape
        (3, 24, 32)
    """

    def __init__(
        self,
        config: PreprocessingConfig,
        size: int | Sequence[int],
        augmentation: AugmentationConfig | None = None,
        squeeze: bool = False,
    ) -> None:
        self.config = config
        self._squeeze = squeeze
        self.sides = (size, size) if isinstance(size, int) else (size[0], size[-1])
        self._aspect = self.sides[1] / self.sides[0]
        changes = augmentation is not None and augmentation.changes_images
        self._augmentation = augmentation if changes else None
        self._crop = config.crop_of(max(self.sides))
        self._eval_ratio = config.eval_ratio_of(max(self.sides))
        # Normalise (x / 255 - mean) / std as x * scale - shift.
        mean, std = (np.array(v, dtype=np.float32) for v in (config.pixel_mean, config.pixel_std))
        self._scale = 1 / (255 * std)
        self._shift = mean / std

    def with_eval_ratio(self, ratio: float | None, squeeze: bool = False) -> "ImageTransform":
        """Return a transform that keeps this share of a side in evaluation; None: no change."""
        if ratio is None:
            return self
        config = replace(self.config, eval_crop_ratio=ratio)
        return ImageTransform(config, self.sides, squeeze=squeeze)

    def with_size(self, size: int | Sequence[int]) -> "ImageTransform":
        """Return a transform to another size, with the same share of a side in validation."""
        return ImageTransform(replace(self.config, eval_crop_ratio=self._eval_ratio), size)

    def training(self, image: "Image", generator: np.random.Generator) -> np.ndarray:
        """Return a random view of an 8-bit RGB image, float32 [3, height, width]."""
        # Crop: [height, width, 3].
        if self._crop == "resized":
            areas = (self.config.crop_min_area, 1.0)
            pixels = self._resize(image, random_box(image.size, areas, generator, self._aspect))
        else:
            pixels = self._centre_crop(image, 1.0)
            if self._crop == "padded":
                padding = self.config.crop_padding
                padded = np.pad(pixels, ((padding, padding), (padding, padding), (0, 0)))
                top, left = generator.integers(0, 2 * padding + 1, size=2)
                pixels = padded[top : top + self.sides[0], left : left + self.sides[1]]
        # Mirror, then augment: as a picture before the normalisation, as numbers after it.
        if self.config.flip and generator.random() < 0.5:
            pixels = pixels[:, ::-1]
        augmentation = self._augmentation
        if augmentation is None:
            return self._normalise(pixels)
        from PIL import Image

        fill = self.config.pixel_mean
        changed = augmented(Image.fromarray(pixels), augmentation, fill, generator)
        pixels = self._normalise(np.asarray(changed))
        return erased(pixels, augmentation.random_erasing, generator)

    def evaluation(self, image: "Image") -> np.ndarray:
        """Return the middle of an image, float32 [3, height, width]."""
        if not self._squeeze:
            return self._normalise(self._centre_crop(image, self._eval_ratio))
        # Crop the same share of both sides; the resize ignores the aspect ratio.
        lost, (width, height) = (1 - self._eval_ratio) / 2, image.size
        box = (lost * width, lost * height, (1 - lost) * width, (1 - lost) * height)
        return self._normalise(self._resize(image, box))

    def _normalise(self, pixels: np.ndarray) -> np.ndarray:
        return (pixels * self._scale - self._shift).transpose(2, 0, 1)  # [3, height, width]

    def _centre_crop(self, image: "Image", ratio: float) -> np.ndarray:
        """Return the middle of an image, resized; see :func:`middle_box` for ``ratio``."""
        if image.size == self.sides[::-1] and ratio == 1.0:
            return np.asarray(image)
        return self._resize(image, middle_box(image.size, ratio, self._aspect))

    def _resize(self, image: "Image", box: Box) -> np.ndarray:
        return np.asarray(resized_part(image, box, self.sides))


@dataclass(frozen=True)
class SampleBatch:
    """Some samples of a set; the fields of a subclass have tensors."""

    ids: Tensor  # [B] int64, indices of the samples in their set

    @property
    def num_sentences(self) -> int:
        """The number of samples; the trainer's log calls them sentences."""
        return self.ids.size(0)

    @property
    def num_tokens(self) -> int:
        """The number of samples, so that the log's ``wps`` counts samples a second."""
        return self.ids.size(0)

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on ``device``; from pinned memory the copy does not block."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory, from which a GPU copies faster."""
        return self._with(Tensor.pin_memory)

    def _with(self, move: Callable[[Tensor], Tensor]) -> Self:
        fields = {name: value for name, value in vars(self).items() if name != "ids"}
        return replace(self, **tree_map_only(Tensor, move, fields))


class PlannedBatches:
    """The batches of a set of ``count`` samples, by epoch; a subclass loads each by its index.

    The last batch of an epoch may have fewer than ``batch_size`` samples. The seed is that of the
    order in each epoch; None keeps the order (validation).
    """

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
            shuffle_seed = None if self._seed is None else (self._seed, epoch)
            sizes = np.ones(self._count, dtype=np.int64)
            limits = BatchLimits(max_sentences=self._batch_size)
            self._plan = plan_batches(sizes, None, limits, shuffle_seed)
        return len(self._plan)

    def largest(self) -> int:
        """Return the index of a largest batch of the planned epoch."""
        return int(np.argmax([len(members) for members in self._plan]))


@dataclass(frozen=True)
class ImageBatch(SampleBatch):
    """Images of one size and their classes."""

    images: Tensor  # [B, 3, height, width], normalised
    labels: Tensor  # [B] int64
    other_labels: Tensor | None = None  # [B] int64, of the images mixed in, if any
    share: float = 1.0  # weight of ``labels``; the rest is that of ``other_labels``


class ImageBatches(PlannedBatches):
    """The batches of a set of images, mapped to pixels of one size by a transform.

    The seed is that of the order and the random views of each epoch. None keeps the order and takes
    the middle of each image (validation). In training ``augmentation`` mixes images and repeats
    views. ``damaged`` collects damaged images instead of an error: in training the next undamaged
    image takes the place of one, in validation the batch is smaller.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: ImageTransform,
        batch_size: int,
        seed: int | None = None,
        augmentation: AugmentationConfig = NO_AUGMENTATION,
        damaged: DamagedImages | None = None,
    ) -> None:
        super().__init__(len(images), batch_size, seed)
        self.images = images
        self._transform = transform
        self._augmentation = augmentation
        self._damaged = damaged

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` with several views of each image, if there are to be some."""
        super().begin_epoch(epoch)
        if self._seed is not None and self._augmentation.repeated_augmentation > 1:
            self._plan = self._repeated(self._plan)
        return len(self._plan)

    def _repeated(self, plan: list[np.ndarray]) -> list[np.ndarray]:
        """Return batches with several views of each image (Hoffer et al. 2020)."""
        total, count = len(self.images), self._augmentation.repeated_augmentation
        # View c of image i of N has the number c N + i: [N, count].
        views = np.concatenate(plan)[:, None] + total * np.arange(count)
        # Take N views in all, so that an epoch keeps its length.
        return [
            views.reshape(-1)[start : min(start + self._batch_size, total)]
            for start in range(0, total, self._batch_size)
        ]

    def load(self, index: int) -> ImageBatch:
        """Read batch ``index`` of the planned epoch."""
        found = [each for view in self._plan[index] if (each := self._view(int(view))) is not None]
        # Stack the images: [B, 3, height, width]. All of a validation batch may be damaged.
        numbers = np.array([number for number, _ in found], dtype=np.int64)
        nothing = np.zeros((0, 3, *self._transform.sides), dtype=np.float32)
        pixels = np.stack([view for _, view in found]) if found else nothing
        batch = ImageBatch(
            torch.from_numpy(numbers),
            torch.from_numpy(pixels),
            torch.from_numpy(self.images.labels[numbers]),
        )
        config = self._augmentation
        if self._seed is None or not (config.mixup or config.cutmix):
            return batch
        # Mix; the fifth number keeps this generator apart from those of images and views.
        generator = sample_generator(self._seed, self._epoch, index, 0, 1)
        return mix_images(batch, config.mixup, config.cutmix, generator)

    def _read(self, number: int) -> "Image | None":
        """Return an image, or None if it is damaged and damaged images are skipped."""
        try:
            return self.images.read(number)
        except DataError as error:
            if self._damaged is None:
                raise DataError(f"{error}, or give {SKIP_FLAG}") from error
            self._damaged.add(error)
            return None

    def _view(self, view: int) -> tuple[int, np.ndarray] | None:
        """Return an image's index and pixels, or None if it is damaged (in validation)."""
        # Validation: the image itself.
        copy, first = divmod(view, len(self.images))
        if self._seed is None:
            image = self._read(first)
            return None if image is None else (first, self._transform.evaluation(image))
        # Training: a random view of it, or of the next undamaged image.
        most = min(MOST_DAMAGED, len(self.images))
        for number in range(first, first + most):
            number %= len(self.images)
            if (image := self._read(number)) is not None:
                generator = sample_generator(self._seed, self._epoch, number, copy)
                return number, self._transform.training(image, generator)
        raise DataError(
            f"{self.images.origin}: {most} images in a row are damaged, from "
            f"{self.images.paths[first]} on; see the messages above"
        )

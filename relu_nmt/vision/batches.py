"""From decoded pictures to batches of pixels: random views in training, the middle otherwise."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.batch_plan import plan_batches
from relu_nmt.errors import DataError
from relu_nmt.vision.augmentation import Augmentation
from relu_nmt.vision.config import PreprocessingConfig
from relu_nmt.vision.data_config import AugmentationConfig
from relu_nmt.vision.images import SKIP_FLAG, DamagedImages, ImageSet
from relu_nmt.vision.mixing import ImageBatch, mixed

if TYPE_CHECKING:
    from PIL.Image import Image

RATIO_LIMITS = (3 / 4, 4 / 3)
CROP_TRIALS = 10
MOST_DAMAGED = 50
"""Images in a row that may be damaged in training."""
NO_AUGMENTATION = AugmentationConfig()
Box = tuple[float, float, float, float]


def sample_generator(seed: int, epoch: int, index: int, *others: int) -> np.random.Generator:
    """Return the random numbers of one image in one epoch; ``others`` tell several of it apart.

    They depend on nothing else: not on its batch, the thread that reads it or what was read
    before. So a resumed training sees the same crops.
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

    It is the middle where no part of a very wide or high picture was found.

    Args:
        size: width and height of the picture, in pixels.
        areas: smallest and largest share of the picture.
        generator: of this image in this epoch.
        aspect: width / height that the shapes vary around.

    Reference: Szegedy et al. 2015, "Going deeper with convolutions", section 6.
    """
    width, height = size
    low, high = np.log(RATIO_LIMITS)
    for _ in range(CROP_TRIALS):
        area = width * height * generator.uniform(*areas)
        ratio = aspect * float(np.exp(generator.uniform(low, high)))
        w, h = (area * ratio) ** 0.5, (area / ratio) ** 0.5
        if w <= width and h <= height:
            left, top = generator.uniform(0, width - w), generator.uniform(0, height - h)
            return left, top, left + w, top + h
    return middle_box(size, 1.0, aspect)


def middle_box(size: tuple[int, int], ratio: float, aspect: float) -> Box:
    """Return the middle part that has ``ratio`` of the sides of the largest of this shape.

    Args:
        size: width and height of the picture, in pixels.
        ratio: at most 1.
        aspect: width / height of the part.
    """
    width, height = size
    high = ratio * min(height, width / aspect)
    wide = high * aspect
    left, top = (width - wide) / 2, (height - high) / 2
    return left, top, left + wide, top + high


def resized_part(image: "Image", box: Box, sides: tuple[int, int]) -> "Image":
    """Return the part of an image in a box, brought to this height and width."""
    from PIL.Image import Resampling

    # Rounding must not move the box out of the picture.
    right, bottom = min(box[2], image.width), min(box[3], image.height)
    box = (max(0.0, box[0]), max(0.0, box[1]), right, bottom)
    return image.resize(sides[::-1], Resampling.BICUBIC, box=box)


class ImageTransform:
    """Brings pictures of any size to one size, normalised.

    Args:
        config: crops, mirroring and normalisation.
        size: height and width of the result, in pixels, or one number for a square.
        augmentation: further changes in training.

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
    ) -> None:
        self.config = config
        self.sides = (size, size) if isinstance(size, int) else (size[0], size[-1])
        self._aspect = self.sides[1] / self.sides[0]
        self._augmentation = None
        if augmentation is not None and augmentation.changes_images:
            self._augmentation = Augmentation(augmentation, config.pixel_mean)
        self._crop = config.crop_of(max(self.sides))
        self._eval_ratio = config.eval_ratio_of(max(self.sides))
        mean, std = (np.array(v, dtype=np.float32) for v in (config.pixel_mean, config.pixel_std))
        self._scale = 1 / (255 * std)
        self._shift = mean / std

    def with_eval_ratio(self, ratio: float | None) -> "ImageTransform":
        """Return a transform that keeps this share of a side in validation; None: as this one."""
        if ratio is None:
            return self
        return ImageTransform(replace(self.config, eval_crop_ratio=ratio), self.sides)

    def with_size(self, size: int | Sequence[int]) -> "ImageTransform":
        """Return a transform to another size that keeps as much of a picture in validation."""
        return ImageTransform(replace(self.config, eval_crop_ratio=self._eval_ratio), size)

    def training(self, image: "Image", generator: np.random.Generator) -> np.ndarray:
        """Return a random view of an image, float32 [3, height, width].

        Args:
            image: 8-bit red, green and blue.
            generator: of this image in this epoch.
        """
        if self._crop == "resized":
            pixels = self._random_resized_crop(image, generator)
        else:
            pixels = self._centre_crop(image, 1.0)
            if self._crop == "padded":
                pixels = self._padded_crop(pixels, generator)
        if self.config.flip and generator.random() < 0.5:
            pixels = pixels[:, ::-1]
        if self._augmentation is None:
            return self._normalise(pixels)
        from PIL import Image

        changed = self._augmentation.changed(Image.fromarray(pixels), generator)
        return self._augmentation.erased(self._normalise(np.asarray(changed)), generator)

    def evaluation(self, image: "Image") -> np.ndarray:
        """Return the middle of an image, float32 [3, height, width]."""
        return self._normalise(self._centre_crop(image, self._eval_ratio))

    def _normalise(self, pixels: np.ndarray) -> np.ndarray:
        return (pixels * self._scale - self._shift).transpose(2, 0, 1)

    def _centre_crop(self, image: "Image", ratio: float) -> np.ndarray:
        """Return the middle, ``ratio`` of the sides of the largest part of the result's shape."""
        if image.size == self.sides[::-1] and ratio == 1.0:
            return np.asarray(image)
        return self._resize(image, middle_box(image.size, ratio, self._aspect))

    def _padded_crop(self, pixels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        padding = self.config.crop_padding
        padded = np.pad(pixels, ((padding, padding), (padding, padding), (0, 0)))
        top, left = generator.integers(0, 2 * padding + 1, size=2)
        return padded[top : top + self.sides[0], left : left + self.sides[1]]

    def _random_resized_crop(self, image: "Image", generator: np.random.Generator) -> np.ndarray:
        """Return a part of random area and shape, brought to the size."""
        box = random_box(image.size, (self.config.crop_min_area, 1.0), generator, self._aspect)
        return self._resize(image, box)

    def _resize(self, image: "Image", box: Box) -> np.ndarray:
        return np.asarray(resized_part(image, box, self.sides))


class SqueezingTransform(ImageTransform):
    """Brings the whole picture to the shape before it takes the middle, in evaluation."""

    def evaluation(self, image: "Image") -> np.ndarray:
        """Return the middle of an image, float32 [3, height, width], its shape squeezed."""
        lost = (1 - self._eval_ratio) / 2
        width, height = image.size
        box = (lost * width, lost * height, (1 - lost) * width, (1 - lost) * height)
        return self._normalise(self._resize(image, box))


class ImageBatches:
    """The batches of a set of images, epoch by epoch, each loaded by its number.

    Args:
        images: the images.
        transform: makes them numbers of one size.
        batch_size: images of a batch; the last one of an epoch may have fewer.
        seed: shuffles and augments anew each epoch; None keeps the order and takes the middle of
            each image (validation).
        augmentation: what happens to whole batches in training: mixing, repeated views.
        damaged: takes the damaged images. In training the next image that is whole stands for one;
            in validation the batch lacks it. Without, a damaged image is an error.
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
        self.images = images
        self._transform = transform
        self._batch_size = batch_size
        self._seed = seed
        self._augmentation = augmentation
        self._damaged = damaged
        self._epoch = 0
        self._plan: list[np.ndarray] | None = None

    @property
    def num_batches(self) -> int:
        """The number of batches of every epoch."""
        return -(-len(self.images) // self._batch_size)

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""
        self._epoch = epoch
        if self._plan is None or self._seed is not None:
            shuffle_seed = None if self._seed is None else (self._seed, epoch)
            sizes = np.ones(len(self.images), dtype=np.int64)
            limits = BatchLimits(max_sentences=self._batch_size)
            self._plan = plan_batches(sizes, None, limits, shuffle_seed)
            if self._augmentation.repeated_augmentation > 1:
                self._plan = self._repeated(self._plan)
        return len(self._plan)

    def _repeated(self, plan: list[np.ndarray]) -> list[np.ndarray]:
        """Return batches with several views of each image, and as many views as before.

        View ``c`` of image ``i`` of N, from 0, has the number ``c * N + i``.

        Reference: Hoffer et al. 2020, "Augment your batch".
        """
        total, count = len(self.images), self._augmentation.repeated_augmentation
        views = np.concatenate(plan)[:, None] + total * np.arange(count)
        return [
            views.reshape(-1)[start : min(start + self._batch_size, total)]
            for start in range(0, total, self._batch_size)
        ]

    def largest(self) -> int:
        """Return the number of a batch of the planned epoch that no other is larger than."""
        assert self._plan is not None, "begin_epoch comes first"
        return int(np.argmax([len(members) for members in self._plan]))

    def load(self, index: int) -> ImageBatch:
        """Read batch ``index`` of the planned epoch.

        Raises:
            DataError: an image cannot be decoded.
        """
        assert self._plan is not None, "begin_epoch comes first"
        found = [each for view in self._plan[index] if (each := self._view(int(view))) is not None]
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
        # The fifth number tells this from the numbers of any image and view.
        generator = sample_generator(self._seed, self._epoch, index, 0, 1)
        return mixed(batch, config.mixup, config.cutmix, generator)

    def _read(self, number: int) -> "Image | None":
        """Return an image, or None if it is damaged and such are left out."""
        try:
            return self.images.read(number)
        except DataError as error:
            if self._damaged is None:
                raise DataError(f"{error}, or give {SKIP_FLAG}") from error
            self._damaged.add(error)
            return None

    def _view(self, view: int) -> tuple[int, np.ndarray] | None:
        """Return an image's number and pixels, or None if it is damaged (in validation).

        In training the next image that is whole takes the place of a damaged one.

        Raises:
            DataError: too many images in a row are damaged.
        """
        copy, first = divmod(view, len(self.images))
        if self._seed is None:
            image = self._read(first)
            return None if image is None else (first, self._transform.evaluation(image))
        for number in range(first, first + MOST_DAMAGED):
            number %= len(self.images)
            if (image := self._read(number)) is not None:
                generator = sample_generator(self._seed, self._epoch, number, copy)
                return number, self._transform.training(image, generator)
        raise DataError(
            f"{self.images.store.origin}: {MOST_DAMAGED} images in a row are damaged, from "
            f"{self.images.paths[first]} on; see the messages above"
        )

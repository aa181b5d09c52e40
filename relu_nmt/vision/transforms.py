"""Views of pictures: crops, normalization, and random changes and mixtures in training.

Changes are RandAugment, color jitter, random erasing, mixup and cutmix. All random numbers come
from the generator of an image (or batch) in its epoch, so a resumed training sees the same
pictures. docs/reference/images.md explains why this is not a library.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from relu_nmt.io.memory import require_memory
from relu_nmt.vision.config import AugmentationConfig, PreprocessingConfig

if TYPE_CHECKING:
    from PIL.Image import Image

    from relu_nmt.vision.images import ImageBatch

RATIO_LIMITS = (3 / 4, 4 / 3)
CROP_TRIALS = 10
BYTES_OF_PIXEL = 12  # size of three colors in float32
Box = tuple[float, float, float, float]
FULL_LEVEL = 10  # the level at which RandAugment's operations reach the ends of their ranges
PIXELS_OF_CONSTANTS = 224
"""The image size that the original form's shifts and holes, in pixels, refer to."""
ERASED_AREAS = (0.02, 1 / 3)
ERASED_RATIOS = (0.3, 1 / 0.3)
ERASING_TRIALS = 10

Argument = Callable[[float, np.random.Generator, tuple[int, int]], Any]
"""Maps level / 10, a generator and the size of an image to the argument of an operation."""


def sample_generator(seed: int, epoch: int, index: int, *subkeys: int) -> np.random.Generator:
    """Return a random generator of one image in one epoch. ``subkeys`` distinguish several."""
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence((seed, epoch, index, *subkeys)))
    )


def random_box(
    size: tuple[int, int],
    areas: tuple[float, float],
    generator: np.random.Generator,
    aspect: float = 1.0,
) -> Box:
    """Return left, top, right and bottom of a part of random area and shape.

    ``size`` is width and height of the picture in pixels, ``areas`` the smallest and largest share
    of it. Shapes vary around ``aspect`` = width / height. If no box fits, as in a very wide or high
    picture, the middle is returned.

    Reference: Szegedy et al. 2015, "Going deeper with convolutions", section 6.
    """
    width, height = size
    low, high = np.log(RATIO_LIMITS)
    for _ in range(CROP_TRIALS):
        area = width * height * generator.uniform(*areas)
        ratio = aspect * float(np.exp(generator.uniform(low, high)))
        w = (area * ratio) ** 0.5
        h = (area / ratio) ** 0.5
        if w <= width and h <= height:
            left = generator.uniform(0, width - w)
            top = generator.uniform(0, height - h)
            return left, top, left + w, top + h
    return middle_box(size, 1.0, aspect)


def middle_box(size: tuple[int, int], ratio: float, aspect: float) -> Box:
    """Return a box in the middle: the largest of ``aspect`` = width / height, times ``ratio``."""
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
    """A map from pictures of any size to normalized pixels of one size.

    ``size`` is height and width of the result, or one number for a square. Training has the changes
    of ``augmentation``. With ``squeeze`` evaluation ignores the aspect ratio: it squeezes the whole
    picture to the shape of the result, then takes the middle.
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
        num_bytes = BYTES_OF_PIXEL * self.sides[0] * self.sides[1]
        subject = "an image of {} x {} pixels".format(*self.sides)
        require_memory(subject, num_bytes, "take a smaller --image-size")
        self._aspect = self.sides[1] / self.sides[0]
        self._augmentation = None
        if augmentation is not None and augmentation.changes_images:
            self._augmentation = augmentation
        self._crop = config.crop_of(max(self.sides))
        self._eval_ratio = config.eval_ratio_of(max(self.sides))
        # Normalize (x / 255 - mean) / std as x * scale - shift.
        std = np.array(config.pixel_std, dtype=np.float32)
        self._scale = 1 / (255 * std)
        self._shift = np.array(config.pixel_mean, dtype=np.float32) / std

    def with_eval_ratio(self, ratio: float | None, squeeze: bool = False) -> "ImageTransform":
        """Return a transform that keeps this share of a side in evaluation. None: no change."""
        if ratio is None:
            return self
        config = replace(self.config, eval_crop_ratio=ratio)
        return ImageTransform(config, self.sides, squeeze=squeeze)

    def with_size(self, size: int | Sequence[int]) -> "ImageTransform":
        """Return a transform to another size, with the same share of a side in validation."""
        return ImageTransform(replace(self.config, eval_crop_ratio=self._eval_ratio), size)

    def training(self, image: "Image", generator: np.random.Generator) -> np.ndarray:
        """Return a random view of an 8-bit RGB image, float32 [3, height, width]."""
        if self._crop == "resized":
            areas = (self.config.crop_min_area, 1.0)
            pixels = self._resize(image, random_box(image.size, areas, generator, self._aspect))
        else:
            pixels = self._center_crop(image, 1.0)
            if self._crop == "padded":
                padding = self.config.crop_padding
                padded = np.pad(pixels, ((padding, padding), (padding, padding), (0, 0)))
                top, left = generator.integers(0, 2 * padding + 1, size=2)
                pixels = padded[top : top + self.sides[0], left : left + self.sides[1]]
        # Mirror, then augment: as a picture before the normalization, as numbers after it.
        if self.config.flip and generator.random() < 0.5:
            pixels = pixels[:, ::-1]
        augmentation = self._augmentation
        if augmentation is None:
            return self._normalize(pixels)
        from PIL import Image

        fill = self.config.pixel_mean
        changed = augmented(Image.fromarray(pixels), augmentation, fill, generator)
        pixels = self._normalize(np.asarray(changed))
        return erased(pixels, augmentation.random_erasing, generator)

    def evaluation(self, image: "Image") -> np.ndarray:
        """Return the middle of an image, float32 [3, height, width]."""
        if not self._squeeze:
            return self._normalize(self._center_crop(image, self._eval_ratio))
        # Crop the same share of both sides, since the resize ignores the aspect ratio.
        lost = (1 - self._eval_ratio) / 2
        width, height = image.size
        box = (lost * width, lost * height, (1 - lost) * width, (1 - lost) * height)
        return self._normalize(self._resize(image, box))

    def pixels(self, view: np.ndarray) -> np.ndarray:
        """Return the colors, uint8 [height, width, 3], of a view, float32 [3, height, width]."""
        colors = (view.transpose(1, 2, 0) + self._shift) / self._scale
        return colors.round().clip(0, 255).astype(np.uint8)

    def _normalize(self, pixels: np.ndarray) -> np.ndarray:
        return (pixels * self._scale - self._shift).transpose(2, 0, 1)  # [3, height, width]

    def _center_crop(self, image: "Image", ratio: float) -> np.ndarray:
        """Return the middle of an image, resized. See :func:`middle_box` for ``ratio``."""
        if image.size == self.sides[::-1] and ratio == 1.0:
            return np.asarray(image)
        return self._resize(image, middle_box(image.size, ratio, self._aspect))

    def _resize(self, image: "Image", box: Box) -> np.ndarray:
        return np.asarray(resized_part(image, box, self.sides))


def _signed(limit: float) -> Argument:
    return lambda level, generator, _: level * limit * generator.choice((-1, 1))


_GEOMETRIC: dict[str, Argument] = {
    "rotate": _signed(30.0),  # degrees
    "shear_x": _signed(0.3),
    "shear_y": _signed(0.3),
}
_ENHANCED = ("color", "contrast", "brightness", "sharpness")
_PLAIN = ("auto_contrast", "equalize", "invert")


_INCREASING: dict[str, Argument | None] = {
    **dict.fromkeys(_PLAIN),
    **_GEOMETRIC,
    **dict.fromkeys(_ENHANCED, lambda *drawn: max(0.1, 1 + _signed(0.9)(*drawn))),
    "posterize": lambda level, *_: 4 - int(4 * level),  # bits
    "solarize": lambda level, *_: 256 - min(256, int(256 * level)),  # from this value on
    "solarize_add": lambda level, *_: min(128, int(110 * level)),
    "translate_x": _signed(0.45),  # of the width
    "translate_y": _signed(0.45),
}
_ORIGINAL: dict[str, Argument | None] = {
    **dict.fromkeys(_PLAIN),
    **_GEOMETRIC,
    **dict.fromkeys(_ENHANCED, lambda level, *_: 0.1 + 1.8 * level),
    "posterize": lambda level, *_: int(4 * level),
    "solarize": lambda level, *_: int(256 * level),
    "solarize_add": lambda level, *_: int(110 * level),
    "translate_x": _signed(100 / PIXELS_OF_CONSTANTS),
    "translate_y": _signed(100 / PIXELS_OF_CONSTANTS),
    # Half a side, as a share of the width, and the center.
    "cutout": lambda level, rng, size: (level * 40 / PIXELS_OF_CONSTANTS, rng.integers(size)),
}


class AugmentationForm(NamedTuple):
    """A form of RandAugment."""

    probability: float  # that a chosen operation is applied
    most_level: float
    arguments: dict[str, Argument | None]  # of each operation. None: it has no argument


FORMS = {
    "increasing": AugmentationForm(0.5, FULL_LEVEL, _INCREASING),
    "original": AugmentationForm(1.0, math.inf, _ORIGINAL),
}


def augmented(
    image: "Image",
    config: AugmentationConfig,
    fill: tuple[float, ...],
    generator: np.random.Generator,
) -> "Image":
    """Return an 8-bit RGB image after color jitter and RandAugment.

    ``fill`` is the color (red, green and blue, each from 0 to 1) of areas that a shift or rotation
    uncovers.

    Reference: Cubuk et al. 2020, "RandAugment". ``original`` is the form of its public code for
    ImageNet, which Big Vision uses. ``increasing`` is timm's (``rand-m9-mstd0.5-inc1``), which the
    recipes of DeiT, XCiT, CvT and Swin name. Deviations: the original form, too, interpolates
    pixels (bicubic), and its numbers of pixels, given for 224 a side, scale with the image.
    """
    functions = operations(tuple(round(255 * value) for value in fill))
    # Color jitter: three factors, in random order.
    if config.color_jitter:
        for name in generator.permutation(np.array(("brightness", "contrast", "color"))):
            low = max(0.0, 1 - config.color_jitter)
            image = functions[name](image, generator.uniform(low, 1 + config.color_jitter))
    form = FORMS[config.rand_augment_form]
    names = list(form.arguments)
    for number in generator.integers(len(names), size=config.rand_augment):
        if generator.random() >= form.probability:
            continue
        name = names[number]
        argument = form.arguments[name]
        if argument is None:
            image = functions[name](image)
            continue
        # Draw the level around the magnitude, and limit it where arguments leave their range.
        level = config.rand_augment_magnitude
        if config.rand_augment_std:
            level = max(0.0, generator.normal(level, config.rand_augment_std))
        level = min(level, form.most_level)
        image = functions[name](image, argument(level / FULL_LEVEL, generator, image.size))
    return image


def erased(pixels: np.ndarray, probability: float, generator: np.random.Generator) -> np.ndarray:
    """Return normalized pixels [3, height, width]. With ``probability`` a box of them is noise.

    Reference: Zhong et al. 2020, "Random erasing data augmentation", filled with normal noise for
    each pixel.
    """
    if generator.random() >= probability:
        return pixels
    height, width = pixels.shape[1:]
    low, high = np.log(ERASED_RATIOS)
    for _ in range(ERASING_TRIALS):
        area = height * width * generator.uniform(*ERASED_AREAS)
        ratio = np.exp(generator.uniform(low, high))
        h = round((area * ratio) ** 0.5)
        w = round((area / ratio) ** 0.5)
        if 0 < h < height and 0 < w < width:
            top = generator.integers(height - h + 1)
            left = generator.integers(width - w + 1)
            noise = generator.standard_normal((3, h, w), dtype=np.float32)
            pixels = pixels.copy()
            pixels[:, top : top + h, left : left + w] = noise
            break
    return pixels


@functools.cache
def operations(fill: tuple[int, ...]) -> Mapping[str, Callable[..., "Image"]]:
    """Return the operations by name. Each takes an image and its argument. ``fill``: 0 to 255."""
    from PIL import ImageEnhance, ImageOps
    from PIL.Image import Resampling, Transform

    def affine(image: "Image", matrix: tuple[float, ...]) -> "Image":
        kind = Transform.AFFINE
        between = Resampling.BICUBIC
        return image.transform(image.size, kind, matrix, between, fillcolor=fill)

    def enhance(kind: Any, image: "Image", factor: float) -> "Image":
        return kind(image).enhance(factor)

    def posterize(image: "Image", bits: int) -> "Image":
        # Unlike Pillow's function, this one also accepts 0 bits.
        mask = 256 - 2 ** (8 - min(bits, 8))
        return image.point([i & mask for i in range(256)] * 3)

    def solarize_add(image: "Image", value: int) -> "Image":
        table = [min(255, i + value) if i < 128 else i for i in range(256)]
        return image.point(table * 3)

    def cutout(image: "Image", hole: tuple[float, np.ndarray]) -> "Image":
        half_side, center = hole
        half = round(half_side * image.width)
        # Cut the hole off at the left and upper borders.
        x, y = center.tolist()
        image = image.copy()
        image.paste(fill, (max(0, x - half), max(0, y - half), x + half, y + half))
        return image

    return {
        "auto_contrast": ImageOps.autocontrast,
        "equalize": ImageOps.equalize,
        "invert": ImageOps.invert,
        "rotate": lambda image, angle: image.rotate(angle, Resampling.BICUBIC, fillcolor=fill),
        "posterize": posterize,
        "solarize": ImageOps.solarize,
        "solarize_add": solarize_add,
        "color": partial(enhance, ImageEnhance.Color),
        "contrast": partial(enhance, ImageEnhance.Contrast),
        "brightness": partial(enhance, ImageEnhance.Brightness),
        "sharpness": partial(enhance, ImageEnhance.Sharpness),
        "shear_x": lambda image, factor: affine(image, (1, factor, 0, 0, 1, 0)),
        "shear_y": lambda image, factor: affine(image, (1, 0, 0, factor, 1, 0)),
        "translate_x": lambda image, part: affine(image, (1, 0, part * image.width, 0, 1, 0)),
        "translate_y": lambda image, part: affine(image, (1, 0, 0, 0, 1, part * image.height)),
        "cutout": cutout,
    }


def mix_images(
    batch: "ImageBatch", mixup: float, cutmix: float, generator: np.random.Generator
) -> "ImageBatch":
    """Mix each image of a batch with an image of the batch in reversed order.

    ``mixup`` and ``cutmix`` are the a of a distribution Beta(a, a). Mixup draws the share of an
    image in a weighted mean. CutMix pastes a box of one image into the other, and draws the share
    of pixels that stay. 0 turns a method off. If both are on, one is drawn with equal probability.
    The share is the same for the whole batch.

    Reference: Zhang et al. 2018, "mixup: Beyond empirical risk minimization". Yun et al. 2019,
    "CutMix", algorithm in appendix A.
    """
    uses_cutmix = cutmix > 0 and (mixup == 0 or generator.random() < 0.5)
    alpha = cutmix if uses_cutmix else mixup
    share = float(generator.beta(alpha, alpha))
    partners = batch.images.flip(0)
    if uses_cutmix:
        # Draw a box around a random center. Its sides are the sides of the image times the root of
        # 1 - share, cut off at the borders.
        spans = []
        for size in partners.shape[2:]:
            length = int(size * (1 - share) ** 0.5)
            start = int(generator.integers(size)) - length // 2
            spans.append(slice(max(0, start), min(size, start + length)))
        rows, columns = spans
        images = batch.images.clone()
        images[:, :, rows, columns] = partners[:, :, rows, columns]
        # The share of the pixels that stay follows from the box, whose sides are whole numbers.
        share = 1 - images[0, 0, rows, columns].numel() / images[0, 0].numel()
    else:
        images = torch.lerp(partners, batch.images, share)
    return replace(batch, images=images, other_labels=batch.labels.flip(0), share=share)

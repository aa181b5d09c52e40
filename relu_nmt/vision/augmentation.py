"""Random changes of training images: RandAugment, colour jitter, random erasing, mixup, cutmix.

All random numbers come from the generator of an image (or batch) in its epoch, so a resumed
training sees the same pictures. docs/reference/images.md explains why this is not a library.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from relu_nmt.vision.training_config import AugmentationConfig

if TYPE_CHECKING:
    from PIL.Image import Image

    from relu_nmt.vision.batches import ImageBatch

FULL_LEVEL = 10
"""The level at which RandAugment's operations reach the ends of their ranges."""
PIXELS_OF_CONSTANTS = 224
"""The image size that the original form's shifts and holes, in pixels, refer to."""
ERASED_AREAS = (0.02, 1 / 3)
ERASED_RATIOS = (0.3, 1 / 0.3)
ERASING_TRIALS = 10

Argument = Callable[[float, np.random.Generator], Any]
"""Maps level / 10 and a generator, which may draw the sign, to the argument of an operation."""


def _signed(most: float) -> Argument:
    return lambda level, generator: level * most * generator.choice((-1, 1))


_GEOMETRIC: dict[str, Argument] = {
    "rotate": _signed(30.0),  # degrees
    "shear_x": _signed(0.3),
    "shear_y": _signed(0.3),
}
_ENHANCED = ("color", "contrast", "brightness", "sharpness")
_PLAIN = ("auto_contrast", "equalize", "invert")


def _increasing(level: float, generator: np.random.Generator) -> float:
    return max(0.1, 1 + level * 0.9 * generator.choice((-1, 1)))


FORMS: dict[str, dict[str, Argument | None]] = {
    "increasing": {
        **dict.fromkeys(_PLAIN),
        **_GEOMETRIC,
        **dict.fromkeys(_ENHANCED, _increasing),
        "posterize": lambda level, _: 4 - int(4 * level),  # bits
        "solarize": lambda level, _: 256 - min(256, int(256 * level)),  # from this value on
        "solarize_add": lambda level, _: min(128, int(110 * level)),
        "translate_x": _signed(0.45),  # of the width
        "translate_y": _signed(0.45),
    },
    "original": {
        **dict.fromkeys(_PLAIN),
        **_GEOMETRIC,
        **dict.fromkeys(_ENHANCED, lambda level, _: 0.1 + 1.8 * level),
        "posterize": lambda level, _: int(4 * level),
        "solarize": lambda level, _: int(256 * level),
        "solarize_add": lambda level, _: int(110 * level),
        "translate_x": _signed(100 / PIXELS_OF_CONSTANTS),
        "translate_y": _signed(100 / PIXELS_OF_CONSTANTS),
        "cutout": lambda level, _: level * 40 / PIXELS_OF_CONSTANTS,  # half a side, of the width
    },
}
"""The arguments of the operations, by form; None for an operation without an argument."""
PROBABILITIES = {"increasing": 0.5, "original": 1.0}
"""The probability that a chosen operation is applied, by form."""


def augmented(
    image: "Image",
    config: AugmentationConfig,
    fill: tuple[float, ...],
    generator: np.random.Generator,
) -> "Image":
    """Return an 8-bit RGB image after colour jitter and RandAugment.

    ``fill`` (red, green, blue; 0 to 1) is the colour of areas that a shift or rotation uncovers.

    Reference: Cubuk et al. 2020, "RandAugment". ``original`` is the form of its public code for
    ImageNet, which Big Vision uses. ``increasing`` is timm's (``rand-m9-mstd0.5-inc1``), which the
    recipes of DeiT, XCiT, CvT and Swin name. Deviations: the original form, too, interpolates
    pixels (bicubic), and its numbers of pixels, given for 224 a side, scale with the image.

    Example:
        >>> from PIL import Image
        >>> image = Image.new("RGB", (8, 8), "orange")
        >>> config = AugmentationConfig(rand_augment=2)
        >>> augmented(image, config, (0.5, 0.5, 0.5), np.random.default_rng(1)).size
        (8, 8)
    """
    known = operations(tuple(round(255 * value) for value in fill))
    # Colour jitter: three factors, in random order.
    if config.color_jitter:
        for name in generator.permutation(np.array(("brightness", "contrast", "color"))):
            low = max(0.0, 1 - config.color_jitter)
            image = known[name](image, generator.uniform(low, 1 + config.color_jitter))
    # RandAugment: operations drawn with replacement.
    form = config.rand_augment_form
    arguments = FORMS[form]
    names = list(arguments)
    for number in generator.integers(len(names), size=config.rand_augment):
        name = names[number]
        if generator.random() >= PROBABILITIES[form]:
            continue
        given: list[Any] = []
        if (argument := arguments[name]) is not None:
            # Draw the level around the magnitude, and limit it where arguments leave their range.
            level = config.rand_augment_magnitude
            if config.rand_augment_std:
                level = max(0.0, generator.normal(level, config.rand_augment_std))
            if form == "increasing":
                level = min(level, FULL_LEVEL)
            given.append(argument(level / FULL_LEVEL, generator))
        if name == "cutout":
            given.append(generator.integers(image.size))  # the centre
        image = known[name](image, *given)
    return image


def erased(pixels: np.ndarray, probability: float, generator: np.random.Generator) -> np.ndarray:
    """Return normalised pixels [3, height, width], with a box of noise in a share of cases.

    Reference: Zhong et al. 2020, "Random erasing data augmentation", filled with normal noise for
    each pixel.
    """
    if generator.random() >= probability:
        return pixels
    height, width = pixels.shape[1:]
    low, high = np.log(ERASED_RATIOS)
    # Draw area and shape until the box fits into the image.
    for _ in range(ERASING_TRIALS):
        area = height * width * generator.uniform(*ERASED_AREAS)
        ratio = np.exp(generator.uniform(low, high))
        h, w = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < h < height and 0 < w < width:
            top, left = generator.integers(height - h + 1), generator.integers(width - w + 1)
            noise = generator.standard_normal((3, h, w), dtype=np.float32)
            # Keep the caller's pixels unchanged.
            pixels = pixels.copy()
            pixels[:, top : top + h, left : left + w] = noise
            break
    return pixels


@functools.cache
def operations(fill: tuple[int, ...]) -> Mapping[str, Callable[..., "Image"]]:
    """Return the operations by name; each takes an image and its argument. ``fill``: 0 to 255."""
    from PIL import ImageEnhance, ImageOps
    from PIL.Image import Resampling, Transform

    # Operations that Pillow does not have in this form.
    def affine(image: "Image", matrix: tuple[float, ...]) -> "Image":
        kind, between = Transform.AFFINE, Resampling.BICUBIC
        return image.transform(image.size, kind, matrix, between, fillcolor=fill)

    def enhance(kind: Any, image: "Image", factor: float) -> "Image":
        return kind(image).enhance(factor)

    def posterize(image: "Image", bits: int) -> "Image":
        # Unlike Pillow's function, this one also accepts 0 bits.
        mask = 256 - 2 ** (8 - min(bits, 8))
        return image.point([i & mask for i in range(256)] * 3)

    def solarize_add(image: "Image", value: int) -> "Image":
        # Brighten the dark half of the values only.
        table = [min(255, i + value) if i < 128 else i for i in range(256)]
        return image.point(table * 3)

    def cutout(image: "Image", half_side: float, centre: np.ndarray) -> "Image":
        half = round(half_side * image.width)
        # Cut the hole off at the left and upper borders.
        left, top = (max(0, int(c) - half) for c in centre)
        image = image.copy()
        image.paste(fill, (left, top, int(centre[0]) + half, int(centre[1]) + half))
        return image

    # All operations by name; shifts are shares of the width or height.
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
    """Return a batch whose images are mixed with those of the batch in reversed order.

    ``mixup`` and ``cutmix`` are the a of the distribution Beta(a, a): of the share in a weighted
    mean, and of the share of pixels that stay where a box of the other image replaces the rest; 0
    is off. If both are on, one is drawn with equal probability. The share is the same for the whole
    batch.

    Reference: Zhang et al. 2018, "mixup: Beyond empirical risk minimization"; Yun et al. 2019,
    "CutMix", algorithm in appendix A.

    Example:
        >>> from relu_nmt.vision.batches import ImageBatch
        >>> images = torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])
        >>> batch = ImageBatch(torch.arange(2), images, torch.tensor([5, 6]))
        >>> found = mix_images(batch, 1.0, 0.0, np.random.default_rng(1))
        >>> found.other_labels.tolist(), abs(round(float(found.images[1].mean()) - found.share, 6))
        ([6, 5], 0.0)
    """
    # Draw the method and the share of the first image.
    uses_cutmix = cutmix > 0 and (mixup == 0 or generator.random() < 0.5)
    alpha = cutmix if uses_cutmix else mixup
    share = float(generator.beta(alpha, alpha))
    # Reverse the batch to pair the images: [B, 3, Y, X].
    others = batch.images.flip(0)
    if uses_cutmix:
        # The share of the pixels that stay follows from the box, whose sides are whole numbers.
        height, width = batch.images.shape[2:]
        box, share = _box(height, width, share, generator)
        images = batch.images.clone()
        images[:, :, box[0], box[1]] = others[:, :, box[0], box[1]]
    else:
        images = torch.lerp(others, batch.images, share)
    return replace(batch, images=images, other_labels=batch.labels.flip(0), share=share)


def _box(
    height: int, width: int, share: float, generator: np.random.Generator
) -> tuple[tuple[slice, slice], float]:
    """Return rows and columns of a box around a random centre, and the share outside the box."""
    sides = []
    for size in (height, width):
        # The sides are those of the image times the root of 1 - share, cut off at its borders.
        length = int(size * (1 - share) ** 0.5)
        start = int(generator.integers(size)) - length // 2
        sides.append(slice(max(0, start), min(size, start + length)))
    rows, columns = sides
    area = (rows.stop - rows.start) * (columns.stop - columns.start)
    return (rows, columns), 1 - area / (height * width)

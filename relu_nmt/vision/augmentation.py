"""Random changes of training images: RandAugment, colour jitter, random erasing.

All random numbers come from the generator of the image in its epoch, so that a resumed training
sees the same pictures. docs/reference/images.md says why this is not a library.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from relu_nmt.vision.data_config import AugmentationConfig

if TYPE_CHECKING:
    from PIL.Image import Image

FULL_LEVEL = 10
"""The level to which the ranges of RandAugment belong."""
PIXELS_OF_CONSTANTS = 224
"""The image size for which the original form counts shifts and holes in pixels."""
ERASED_AREAS = (0.02, 1 / 3)
ERASED_RATIOS = (0.3, 1 / 0.3)
ERASING_TRIALS = 10

Argument = Callable[[float, np.random.Generator], Any]
"""From the level in tens, and for its sign a generator, to what an operation takes."""


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
"""What each operation takes; the first form's changes all grow with the level."""
PROBABILITIES = {"increasing": 0.5, "original": 1.0}
"""Of an operation that was chosen."""


class Augmentation:
    """Changes training images at random, before and after they are normalised.

    Args:
        config: what to do.
        fill: red, green and blue, from 0 to 1, of what is moved in from outside.

    Reference: Cubuk et al. 2020, "RandAugment". ``original`` is the form of its public code for
    ImageNet, which Big Vision uses; ``increasing`` that of timm (``rand-m9-mstd0.5-inc1``), which
    the recipes of DeiT, XCiT, CvT and Swin name. Deviations: pixels between others are
    interpolated (bicubic) in the original form, too; its numbers of pixels are for 224 a side and
    go with the size. Zhong et al. 2020, "Random erasing data augmentation", filled with normal
    noise for each pixel.

    Example:
        >>> from PIL import Image
        >>> config = AugmentationConfig(rand_augment=2)
        >>> augmentation = Augmentation(config, (0.5, 0.5, 0.5))
        >>> image = Image.new("RGB", (8, 8), (200, 100, 0))
        >>> views = [augmentation.changed(image, np.random.default_rng(1)) for _ in range(2)]
        >>> views[0] == views[1], views[0].size
        (True, (8, 8))
    """

    def __init__(self, config: AugmentationConfig, fill: tuple[float, ...]) -> None:
        self.config = config
        self._arguments = FORMS[config.rand_augment_form]
        self._operations = operations(tuple(round(255 * value) for value in fill))
        self._names = list(self._arguments)

    def changed(self, image: "Image", generator: np.random.Generator) -> "Image":
        """Return the image, 8-bit red, green and blue, with other colours or moved."""
        config = self.config
        if config.color_jitter:
            names = np.array(("brightness", "contrast", "color"))
            for name in generator.permutation(names):
                low = max(0.0, 1 - config.color_jitter)
                factor = generator.uniform(low, 1 + config.color_jitter)
                image = self._operations[name](image, factor)
        for number in generator.integers(len(self._names), size=config.rand_augment):
            name = self._names[number]
            if generator.random() < PROBABILITIES[config.rand_augment_form]:
                image = self._operation(name, image, generator)
        return image

    def erased(self, pixels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return normalised pixels [3, height, width], perhaps with a box of noise."""
        if generator.random() >= self.config.random_erasing:
            return pixels
        height, width = pixels.shape[1:]
        low, high = np.log(ERASED_RATIOS)
        for _ in range(ERASING_TRIALS):
            area = height * width * generator.uniform(*ERASED_AREAS)
            ratio = np.exp(generator.uniform(low, high))
            h, w = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if 0 < h < height and 0 < w < width:
                top, left = generator.integers(height - h + 1), generator.integers(width - w + 1)
                noise = generator.standard_normal((3, h, w), dtype=np.float32)
                pixels = pixels.copy()
                pixels[:, top : top + h, left : left + w] = noise
                break
        return pixels

    def _operation(self, name: str, image: "Image", generator: np.random.Generator) -> "Image":
        config, argument = self.config, self._arguments[name]
        if argument is None:
            return self._operations[name](image)
        level = config.rand_augment_magnitude
        if config.rand_augment_std:
            level = max(0.0, generator.normal(level, config.rand_augment_std))
        if config.rand_augment_form == "increasing":
            level = min(level, FULL_LEVEL)
        value = argument(level / FULL_LEVEL, generator)
        if name == "cutout":
            place = generator.integers(image.size)
            return self._operations[name](image, value, place)
        return self._operations[name](image, value)


def operations(fill: tuple[int, ...]) -> Mapping[str, Callable[..., "Image"]]:
    """Return the operations of RandAugment by name; each takes an image and its argument.

    Args:
        fill: red, green and blue of what is moved in from outside, from 0 to 255.
    """
    from PIL import ImageEnhance, ImageOps
    from PIL.Image import Resampling, Transform

    def affine(image: "Image", matrix: tuple[float, ...]) -> "Image":
        kind, between = Transform.AFFINE, Resampling.BICUBIC
        return image.transform(image.size, kind, matrix, between, fillcolor=fill)

    def enhance(kind: Any, image: "Image", factor: float) -> "Image":
        return kind(image).enhance(factor)

    def posterize(image: "Image", bits: int) -> "Image":
        # Pillow's own refuses to leave no bit.
        mask = 256 - 2 ** (8 - min(bits, 8))
        return image.point([i & mask for i in range(256)] * 3)

    def solarize_add(image: "Image", value: int) -> "Image":
        table = [min(255, i + value) if i < 128 else i for i in range(256)]
        return image.point(table * 3)

    def cutout(image: "Image", half_side: float, centre: np.ndarray) -> "Image":
        half = round(half_side * image.width)
        left, top = (max(0, int(c) - half) for c in centre)
        image = image.copy()
        image.paste(fill, (left, top, int(centre[0]) + half, int(centre[1]) + half))
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

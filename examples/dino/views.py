"""Several random views of each image: large ones for student and teacher, small for the student."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from relu_nmt.config import option, settings
from relu_nmt.errors import ConfigError
from relu_nmt.vision.config import PreprocessingConfig
from relu_nmt.vision.images import ImageSet, PlannedBatches, SampleBatch
from relu_nmt.vision.transforms import operations, random_box, resized_part, sample_generator

if TYPE_CHECKING:
    from PIL.Image import Image

GLOBAL_VIEWS = 2
# Probabilities of mirroring, other colors, no colors, and inverted bright values (view 2).
FLIP = 0.5
JITTER = 0.8
GRAY = 0.2
SOLARIZE = 0.2
COLOR_SHARES = {"brightness": 0.4, "contrast": 0.4, "color": 0.2}
LARGEST_HUE_SHIFT = 0.1
SOLARIZE_FROM = 128
BLUR = (1.0, 0.1)
"""Probabilities of blur of the two large views."""
LOCAL_BLUR = 0.5
BLUR_RADII = (0.1, 2.0)
PIXELS_OF_RADII = 224
"""Side of the large views, in pixels, for which the radii of the blur are chosen."""


@settings
class ViewConfig:
    """The views of an image.

    Raises:
        ConfigError: a value out of range.
    """

    local_crops: int = option(8, "small views of each image, which only the student sees", least=0)
    local_size: int = option(
        96, "pixels a side of the small views; the large ones have --image-size", least=1
    )
    global_areas: tuple[float, ...] = option(
        (0.4, 1.0), "smallest and largest share of the image in a large view", above=0, most=1
    )
    local_areas: tuple[float, ...] = option(
        (0.05, 0.4), "smallest and largest share of the image in a small view", above=0, most=1
    )

    def check(self) -> None:
        """Check that shares are pairs."""
        for areas in (self.global_areas, self.local_areas):
            if len(areas) != 2 or areas[0] > areas[1]:
                raise ConfigError(
                    "--global-areas and --local-areas: expected two numbers, as 0.4,1.0"
                )


@dataclass(frozen=True)
class ViewBatch(SampleBatch):
    """The views of some images.

    Args:
        large: normalized views [2, B, 3, S, S].
        small: normalized views [V, B, 3, s, s]. V may be 0.
    """

    large: Tensor
    small: Tensor


class Views:
    """A maker of random views of an image.

    Args:
        config: number of the views, and shares of the image.
        size: side of the large views in pixels.
        preprocessing: mean and standard deviation of the colors.

    Reference: Caron et al. 2021 (DINO), section 3.1, with BYOL's changes of colors, as in its
    public code. Deviation: the radii of the blur, given for large views of 224 pixels, are scaled
    with the size of the views.

    Example:
        >>> from PIL import Image
        >>> views = Views(ViewConfig(local_crops=3, local_size=8), 16, PreprocessingConfig())
        >>> large, small = views(Image.new("RGB", (20, 30)), np.random.default_rng(0))
        >>> large.shape, small.shape
        ((2, 3, 16, 16), (3, 3, 8, 8))
    """

    def __init__(self, config: ViewConfig, size: int, preprocessing: PreprocessingConfig) -> None:
        self.config = config
        self._size = size
        self._operations = operations((0, 0, 0))
        self._mean = np.array(preprocessing.pixel_mean, dtype=np.float32)
        self._std = np.array(preprocessing.pixel_std, dtype=np.float32)

    def __call__(
        self, image: "Image", generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the large views [2, 3, S, S] and the small ones [V, 3, s, s], float32.

        Args:
            image: 8-bit red, green and blue.
            generator: random numbers for this image in this epoch.
        """
        config = self.config
        large = []
        for number, blur in enumerate(BLUR):
            view = self._crop(image, self._size, config.global_areas, generator)
            view = self._changed(view, blur, generator)
            if number == 1 and generator.random() < SOLARIZE:
                view = self._operations["solarize"](view, SOLARIZE_FROM)
            large.append(self._normalized(view))
        small_side = config.local_size
        small = np.empty((config.local_crops, 3, small_side, small_side), dtype=np.float32)
        for pixels in small:
            view = self._crop(image, small_side, config.local_areas, generator)
            pixels[:] = self._normalized(self._changed(view, LOCAL_BLUR, generator))
        return np.stack(large), small

    def _crop(
        self,
        image: "Image",
        size: int,
        areas: tuple[float, ...],
        generator: np.random.Generator,
    ) -> "Image":
        from PIL.Image import Transpose

        box = random_box(image.size, (areas[0], areas[1]), generator)
        view = resized_part(image, box, (size, size))
        return view.transpose(Transpose.FLIP_LEFT_RIGHT) if generator.random() < FLIP else view

    def _changed(self, view: "Image", blur: float, generator: np.random.Generator) -> "Image":
        """Return a view in other colors or in gray, perhaps blurred."""
        from PIL import ImageFilter

        if generator.random() < JITTER:
            for name in generator.permutation(np.array([*COLOR_SHARES, "hue"])):
                if name == "hue":
                    shift = generator.uniform(-LARGEST_HUE_SHIFT, LARGEST_HUE_SHIFT)
                    view = _with_hue(view, shift)
                else:
                    share = COLOR_SHARES[name]
                    factor = generator.uniform(1 - share, 1 + share)
                    view = self._operations[name](view, factor)
        if generator.random() < GRAY:
            view = view.convert("L").convert("RGB")
        if generator.random() < blur:
            radius = generator.uniform(*BLUR_RADII) * self._size / PIXELS_OF_RADII
            view = view.filter(ImageFilter.GaussianBlur(radius))
        return view

    def _normalized(self, view: "Image") -> np.ndarray:
        pixels = np.asarray(view, dtype=np.float32) / 255
        return ((pixels - self._mean) / self._std).transpose(2, 0, 1)


def _with_hue(view: "Image", shift: float) -> "Image":
    """Return a view with its hues rotated by a share of the circle."""
    from PIL import Image

    hue, saturation, value = view.convert("HSV").split()
    hue = hue.point([(i + round(255 * shift)) % 256 for i in range(256)])
    return Image.merge("HSV", (hue, saturation, value)).convert("RGB")


class ViewBatches(PlannedBatches):
    """The batches of a set of images.

    Args:
        images: the images, whose classes are not used.
        views: the maker of their views.
        batch_size: images of a batch.
        seed: seed of order and views, which change with each epoch.
    """

    def __init__(self, images: ImageSet, views: Views, batch_size: int, seed: int) -> None:
        super().__init__(len(images), batch_size, seed)
        self._images = images
        self._views = views

    def load(self, index: int) -> ViewBatch:
        """Read batch ``index`` of the planned epoch.

        Raises:
            DataError: an image cannot be decoded.
        """
        numbers = self._plan[index]
        large = []
        small = []
        for number in map(int, numbers):
            generator = sample_generator(self._seed, self._epoch, number)
            large_views, small_views = self._views(self._images.read(number), generator)
            large.append(large_views)
            small.append(small_views)
        return ViewBatch(
            torch.from_numpy(numbers.copy()),
            torch.from_numpy(np.stack(large, 1)),
            torch.from_numpy(np.stack(small, 1)),
        )

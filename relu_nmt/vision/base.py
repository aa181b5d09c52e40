"""What every family of vision transformers is: from images to scores of classes."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.vision import vision_models
from relu_nmt.vision.config import VisionTransformerConfig

INIT_STD = 0.02
NORM_EPS = 1e-6


class Grid(NamedTuple):
    """How the patches of an image lie, in patches."""

    height: int
    width: int

    @property
    def num_patches(self) -> int:
        """How many there are."""
        return self.height * self.width


@dataclass
class VisionOutput:
    """What the model makes of a batch of images.

    Args:
        logits: [B, C] scores of the classes, float32.
        features: [B, D], what the classifier reads.
        intermediate: [B, D, height, width] of each block that was asked for, by its index: its
            output at the patches, without class token and before the final norm.
        class_tokens: [B, D] of those of them that have a class token, likewise. XCiT's blocks of
            class attention are counted behind the others and have nothing else.
    """

    logits: Tensor
    features: Tensor
    intermediate: dict[int, Tensor]
    class_tokens: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class EncodedImages:
    """What the blocks make of a batch of images, before anything is classified.

    Args:
        tokens: [B, N, D] of the last block; of XCiT before class attention.
        grid: of the patches, which are the last of the tokens.
        intermediate: see :class:`VisionOutput`.
        class_tokens: likewise.
    """

    tokens: Tensor
    grid: Grid
    intermediate: dict[int, Tensor] = field(default_factory=dict)
    class_tokens: dict[int, Tensor] = field(default_factory=dict)


class VisionModel(nn.Module):
    """A classifier of images: each family is a subclass, registered in ``vision_models``.

    It is made with (config, number of classes).

    Args:
        config: shape and attention.

    Attributes:
        num_tokens: tokens of an image of ``config.image_size`` in the first block.
        head: the linear classifier.

    Raises:
        ConfigError: the attention cannot work with these settings.
    """

    num_tokens: int
    head: nn.Linear
    classifier: ClassVar[tuple[str, ...]] = ("norm", "head")
    """Names of the parts that :meth:`encode` does not use."""

    def __init__(self, config: VisionTransformerConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, images: Tensor, blocks: Collection[int] = ()) -> VisionOutput:
        """Classify images.

        Args:
            images: [B, 3, Y, X], normalised, of any size.
            blocks: indices of the blocks whose features are returned too, from 0.
        """
        raise TypeError(f"{type(self).__name__} must define forward")

    def encode(self, images: Tensor, blocks: Collection[int] = ()) -> EncodedImages:
        """Return what the blocks make of images; the arguments are those of :meth:`forward`.

        Only what is to be a backbone of something else needs it.
        """
        raise TypeError(f"{type(self).__name__} must define encode to be a backbone")


def build_vision_model(config: VisionTransformerConfig, num_classes: int) -> VisionModel:
    """Return a new model of the configured family.

    Raises:
        ConfigError: the family or the attention cannot work with these settings.

    Example:
        >>> import torch
        >>> config = VisionTransformerConfig(image_size=32, patch_size=4, layers=1)
        >>> tuple(build_vision_model(config, 10)(torch.zeros(2, 3, 32, 32)).logits.shape)
        (2, 10)
    """
    return vision_models.get(config.family)(config, num_classes)


def initialize(*weights: Tensor) -> None:
    """Draw weights from the normal distribution of standard deviation .02, cut off at 2."""
    for weight in weights:
        nn.init.trunc_normal_(weight, std=INIT_STD)


def exempt_from_decay(model: nn.Module, *others: Tensor | None) -> None:
    """Let DeiT's weight decay act on matrices only, but for these ones; the optimiser reads it."""
    for parameter in model.parameters():
        if parameter.dim() < 2 or any(parameter is other for other in others):
            parameter.no_weight_decay = True  # type: ignore[attr-defined]


def whole_patches(images: Tensor, sides: tuple[int, int]) -> Tensor:
    """Return images [B, 3, Y, X] with zeros below and on the right up to whole patches.

    Zero is the mean colour.

    Args:
        images: normalised.
        sides: height and width of a patch.
    """
    height, width = (-size % side for size, side in zip(images.shape[2:], sides, strict=True))
    return F.pad(images, (0, width, 0, height)) if height or width else images


def grid_of(size: tuple[int, int], sides: tuple[int, int]) -> Grid:
    """Return the grid of the patches that images of this height and width have."""
    return Grid(-(-size[0] // sides[0]), -(-size[1] // sides[1]))


def map_of(tokens: Tensor, grid: Grid) -> Tensor:
    """Return the patches [B, D, height, width], the last of the tokens [B, N, D]."""
    return tokens[:, -grid.num_patches :].transpose(1, 2).unflatten(2, grid)


def resized(positions: Tensor, old: Grid, new: Grid) -> Tensor:
    """Return the vectors of another grid, between those of the one they were learnt for.

    Args:
        positions: [height * width, D] of the ``old`` grid, row by row.
        old: the grid they were learnt for.
        new: the other one.

    Returns:
        [height * width, D] of the ``new`` grid, by bicubic interpolation.
    """
    if old == new:
        return positions
    picture = positions.float().T.unflatten(1, old)[None]  # [1, D, height, width]
    picture = F.interpolate(picture, tuple(new), mode="bicubic", antialias=True)
    return picture[0].flatten(1).T.to(positions.dtype)

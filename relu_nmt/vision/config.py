"""Settings of vision models and of their images, and the shapes of models by name (``--arch``)."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from relu_nmt.config import Files, flag_of, like, option, settings, shown
from relu_nmt.config.fields import options_of
from relu_nmt.config.yaml_text import read_presets
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import (
    TransformerOptions,
    attention_option,
    depth_option,
    probability_option,
    size_option,
)
from relu_nmt.vision import vision_blocks, vision_models

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif"),
    *(".webp", ".ppm", ".pgm", ".tif", ".tiff"),
)
_ENDINGS = "|".join((*IMAGE_SUFFIXES, ".zip", ".npz", ".parquet")).replace(".", "")
IMAGES = Files(names=rf"(?i:.*\.({_ENDINGS}))")
LARGEST_PADDED = 96
"""The largest image size at which ``--train-crop auto`` is padded. Above, it is resized."""
CROSS_ENTROPY = "cross_entropy"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_share = partial(option, above=0, most=1, metavar="P")
_beta = partial(option, least=0, metavar="A")
_rand = partial(option, needs="rand_augment")
SIDES = "expected one number, or height and width, as 16x8"


def _parsed_sides(text: str) -> list[str]:
    sides = text.split("x")
    if not all(side.isdecimal() for side in sides):
        raise ValueError(f"'{text}': {SIDES}")
    return sides


def shown_sides(sides: object) -> str:
    """Return pixels a side, or height and width, as flags take them: ``192x256``.

    Any other value, as in a damaged checkpoint, is returned as a text.
    """
    if isinstance(sides, list | tuple):
        return "x".join(map(str, sides))
    return str(sides)


sides_option = partial(
    size_option, most=100_000, parse=_parsed_sides, show=shown_sides, metavar="N|YxX"
)
"""Declare an option of pixels a side, or of height and width."""


def check_sides(config: Any, name: str) -> None:
    """Raise a ConfigError if a field of settings has more than two numbers."""
    value = getattr(config, name)
    if value is not None and len(value) > 2:
        raise ConfigError(f"{options_of(type(config))[name].with_value(value)}: {SIDES}")


ALIKE = ("vit", "xcit")  # families whose blocks all have one shape
STAGED = ("swin", "cvt")  # families whose blocks come in stages
# The conditions of options.
_vit = ("family", "vit")
_xcit = ("family", "xcit")
_swin = ("family", "swin")
_alike = ("family", *ALIKE)
_staged = ("family", *STAGED)


@settings
class VisionTransformerConfig(TransformerOptions):
    """Shape of a vision transformer of any family. The defaults are ViT-Ti/16."""

    attention: str = like(
        TransformerOptions, "attention", "softmax", flags=("--encoder-attention",)
    )
    feed_forward: str = like(TransformerOptions, "feed_forward", "gelu")
    dropout: float = like(TransformerOptions, "dropout", 0.0)
    family: str = option(
        "vit",
        f"kind of model: {', '.join(vision_models.names())}",
        choices=vision_models,
        metavar="NAME",
    )
    block: str = option(
        "transformer", "the blocks", choices=vision_blocks, needs=_vit, metavar="NAME"
    )
    image_size: tuple[int, ...] = sides_option(
        (224,), "pixels a side of the input, or height and width: 192x256"
    )
    patch_size: tuple[int, ...] = sides_option(
        (16,),
        "pixels a side of a patch, or its height and width: 16x8",
        needs=("family", "vit", "xcit", "swin"),
    )
    embed_dim: int = size_option(192, "width of the model, or of its first stage")
    layers: int = depth_option(12, "number of blocks", needs=_alike)
    heads: int = size_option(3, "attention heads of a block", needs=_alike)
    ffn_ratio: float = option(
        4.0, "inner width of the FFN in widths of the model", above=0, metavar="F"
    )
    pooling: str = option(
        "class",
        "input of the classifier: a class token, or the mean of the patches",
        choices=("class", "mean"),
        needs=_vit,
    )
    drop_path: float = probability_option(
        0.0, "stochastic depth: probability of skipping a sublayer of the last block"
    )
    layer_scale: float = option(
        0.0,
        "initial gain of each channel of a sublayer's output (0: no gains)",
        least=0,
        metavar="F",
    )
    # ViT.
    big_vision: bool = option(
        False, "Big Vision's ViT: its initial weights, no class-token position", needs=_vit
    )
    tanh_layer: bool = option(False, "a linear map and tanh before the classifier", needs=_vit)
    head_bias: float = option(
        0.0, "initial bias of the classifier, as -6.9 for a sigmoid loss", needs=_vit, metavar="F"
    )
    # XCiT.
    local_patch_interaction: bool = option(
        True, "convolutions over the grid of patches in every block", needs=_xcit
    )
    conv_activation: str = option(
        "gelu", "activation between the convolutions", choices=("gelu", "relu"), needs=_xcit
    )
    class_layers: int = depth_option(
        2, "blocks of attention from the class token to the patches", needs=_xcit
    )
    class_attention: str = attention_option(
        "softmax", "attention of the class layers: NAME or NAME:option=value,...", needs=_xcit
    )
    class_layers_norm_patches: bool = option(
        True, "also normalize the patches before the FFN of class layers", needs=_xcit
    )
    # Swin and CvT, with the defaults of Swin-T.
    stage_layers: tuple[int, ...] = depth_option(
        (2, 2, 6, 2), "number of blocks of each stage", needs=_staged, metavar="N,N"
    )
    stage_heads: tuple[int, ...] = size_option(
        (3, 6, 12, 24), "attention heads of the blocks of each stage", needs=_staged, metavar="N,N"
    )
    window_size: int = size_option(7, "side of the windows of attention, in patches", needs=_swin)

    def check(self) -> None:
        """Compare the sizes with each other."""
        check_sides(self, "image_size")
        check_sides(self, "patch_size")
        # All heads together are as wide as the model, or as its first stage.
        if self.family in ALIKE and self.embed_dim % self.heads:
            raise ConfigError(
                f"--embed-dim {self.embed_dim} must be a multiple of --heads {self.heads}"
            )
        if len(self.stage_heads) != len(self.stage_layers):
            raise ConfigError(
                f"--stage-heads {shown(self.stage_heads)}: expected as many numbers as in "
                f"--stage-layers {shown(self.stage_layers)}"
            )
        if self.family in STAGED and self.embed_dim % self.stage_heads[0]:
            raise ConfigError(
                f"--embed-dim {self.embed_dim} must be a multiple of the first of --stage-heads "
                f"{shown(self.stage_heads)}"
            )
        if self.ffn_dim < 1:
            raise ConfigError(
                f"--ffn-ratio {self.ffn_ratio:g}: the FFN has no inner width; enlarge it"
            )

    @property
    def ffn_dim(self) -> int:
        """The inner width of the FFN."""
        return round(self.ffn_ratio * self.embed_dim)

    @property
    def stage_head_dim(self) -> int:
        """The width of every head, where blocks come in stages."""
        return self.embed_dim // self.stage_heads[0]

    @property
    def stage_dims(self) -> tuple[int, ...]:
        """The width of each stage."""
        return tuple(heads * self.stage_head_dim for heads in self.stage_heads)

    @property
    def num_blocks(self) -> int:
        """The number of blocks, in the order of their indices. Class attention comes last."""
        if self.family in STAGED:
            return sum(self.stage_layers)
        return self.layers + self.class_layers if self.family == "xcit" else self.layers

    @property
    def image_sides(self) -> tuple[int, int]:
        """Height and width of an image, in pixels."""
        return self.image_size[0], self.image_size[-1]

    @property
    def patch_sides(self) -> tuple[int, int]:
        """Height and width of a patch, in pixels."""
        return self.patch_size[0], self.patch_size[-1]


@settings
class PreprocessingConfig:
    """Crops, mirroring and normalization of pictures."""

    train_crop: str = option(
        "auto",
        f"random crop (auto: padded up to --image-size {LARGEST_PADDED}, else resized)",
        choices=("auto", "padded", "resized", "none"),
    )
    crop_padding: int = option(
        4,
        "black pixels that the padded crop adds a side",
        least=0,
        most=10_000,
        needs=("train_crop", "auto", "padded"),
    )
    crop_min_area: float = _share(
        0.08,
        "smallest share of the picture in a resized crop",
        needs=("train_crop", "auto", "resized"),
    )
    flip: bool = option(True, "mirror half of the training images")
    eval_crop_ratio: float | None = _share(
        None, "share of a side that the center crop keeps (default: 0.875 if resized)"
    )
    pixel_mean: tuple[float, ...] = option(
        IMAGENET_MEAN, "subtracted from red, green and blue (each from 0 to 1)", metavar="R,G,B"
    )
    pixel_std: tuple[float, ...] = option(
        IMAGENET_STD,
        "divisors of red, green and blue, after the mean is subtracted",
        above=0,
        metavar="R,G,B",
    )

    def check(self) -> None:
        """Check that there is a number for each color."""
        for name in ("pixel_mean", "pixel_std"):
            value = getattr(self, name)
            if len(value) != 3:
                raise ConfigError(
                    f"{flag_of(name)} {shown(value)}: expected three numbers, as 0.5,0.5,0.5"
                )

    def crop_of(self, image_size: int) -> str:
        """Return the kind of training crop, with ``auto`` resolved by the longer side in pixels."""
        if self.train_crop != "auto":
            return self.train_crop
        return "padded" if image_size <= LARGEST_PADDED else "resized"

    def check_fits(self, image_size: int, preset: Mapping[str, Any]) -> None:
        """Raise a ConfigError if a setting that ``preset`` lacks does nothing with the crop."""
        crop = self.crop_of(image_size)
        for needed, name in (("padded", "crop_padding"), ("resized", "crop_min_area")):
            entry = options_of(PreprocessingConfig)[name]
            value = getattr(self, name)
            if crop != needed and value not in (entry.default, preset.get(name)):
                raise ConfigError(
                    f"{entry.with_value(value)} does nothing at --image-size {image_size}, where "
                    f"--train-crop auto is {crop}; it needs --train-crop {needed}"
                )

    def eval_ratio_of(self, image_size: int) -> float:
        """Return the share of a side that the center crop of validation keeps."""
        if self.eval_crop_ratio is not None:
            return self.eval_crop_ratio
        return 0.875 if self.crop_of(image_size) == "resized" else 1.0


@settings
class AugmentationConfig:
    """Random changes of training images, besides crops and mirroring."""

    rand_augment: int = option(
        0, "number of random changes of each image (RandAugment, 0: none)", least=0, most=1000
    )
    rand_augment_magnitude: float = _rand(
        9.0, "strength of these changes (10: to the ends of their ranges)", least=0, metavar="M"
    )
    rand_augment_std: float = _rand(
        0.5, "standard deviation of their strength", least=0, metavar="S"
    )
    rand_augment_form: str = _rand(
        "increasing",
        "increasing (timm's inc1, DeiT), or original (Big Vision)",
        choices=("increasing", "original"),
    )
    color_jitter: float = option(
        0.0, "change brightness, contrast and saturation by up to this share", least=0, metavar="F"
    )
    random_erasing: float = probability_option(
        0.0, "probability that noise replaces a box of an image"
    )
    mixup: float = _beta(0.0, "mix two images and their classes by Beta(A, A) (0: none)")
    cutmix: float = _beta(0.0, "paste a box of another image, area by Beta(A, A) (0: none)")
    repeated_augmentation: int = option(
        1, "views of an image in a batch (an epoch has fewer images)", least=1, most=1000
    )

    @property
    def changes_images(self) -> bool:
        """Return True if any setting changes single images."""
        return bool(self.rand_augment or self.color_jitter or self.random_erasing)


ENDINGS = re.compile(
    r"(?P<shape>.+?)(_(patch|p)(?P<patch_size>\d+(x\d+)?))?(_window(?P<window_size>\d+))?"
    r"(_(?P<image_size>\d+(x\d+)?))?"
)


class Architectures(dict[str, dict[str, Any]]):
    """The settings of each named shape that differ from the defaults.

    As in timm, a name may continue with sizes: ``vit_small_patch32_384`` (or ``_p32_384``) is
    ``vit_small`` with patches of 32 pixels a side and images of 384. ``_patch16x8`` means 16 rows
    of 8 pixels. Iteration gives only the names without sizes.

    Example:
        >>> architectures["vit_tiny_patch4_32"]
        {'embed_dim': 192, 'layers': 12, 'heads': 3, 'patch_size': 4, 'image_size': 32}
    """

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self[name])
        except KeyError:
            return False

    def __missing__(self, name: str) -> dict[str, Any]:
        # Split the name into a shape and sizes, and refuse sizes that its family does not have.
        match = ENDINGS.fullmatch(name)
        if match is None or match["shape"] not in self.keys():
            raise KeyError(name)
        shape = dict(self[match["shape"]])
        for size in ("patch_size", "window_size", "image_size"):
            if match[size]:
                needs = options_of(VisionTransformerConfig)[size].needs
                if needs and shape.get("family", "vit") not in needs:
                    raise KeyError(name)
                sides = tuple(map(int, match[size].split("x")))
                shape[size] = sides if len(sides) > 1 else sides[0]
        return shape


architectures = Architectures(read_presets(Path(__file__).with_name("architectures.yaml")))
"""The ``--arch`` presets, by name."""

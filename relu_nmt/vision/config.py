"""Settings of vision models, image data and their training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from relu_nmt.attention.spec import AttentionPresetOptions
from relu_nmt.config import flag_of, group, like, option, settings, shown
from relu_nmt.config.fields import options_of
from relu_nmt.config.files import READ
from relu_nmt.config.shared import BatchingConfig, CommonOptions
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import (
    TransformerOptions,
    arch_option,
    attention_option,
    depth_option,
    probability_option,
    size_option,
    width_option,
)
from relu_nmt.training.config import OptimizerConfig, TrainerConfig
from relu_nmt.training.schedules import ScheduleConfig
from relu_nmt.vision import vision_blocks, vision_models
from relu_nmt.vision.architectures import architectures
from relu_nmt.vision.data_config import IMAGES, RECIPES

_share = partial(option, above=0, most=1, metavar="P")


SIDES = "expected one number, or height and width, as 16x8"


def _parsed_sides(text: str) -> list[str]:
    """Return the numbers of ``224`` or ``192x256``.

    Raises:
        ValueError: it is something else.
    """
    sides = text.split("x")
    if not all(side.isdecimal() for side in sides):
        raise ValueError(f"'{text}': {SIDES}")
    return sides


def shown_sides(sides: int | str | Sequence[int]) -> str:
    """Return pixels a side, or height and width, as flags take them: ``192x256``."""
    return str(sides) if isinstance(sides, int | str) else "x".join(map(str, sides))


sides_option = partial(
    size_option, most=100_000, parse=_parsed_sides, show=shown_sides, metavar="N|YxX"
)
"""Declares pixels a side, or height and width."""


def check_sides(config: Any, name: str) -> None:
    """Raise a ConfigError if a field of settings has more numbers than height and width."""
    value = getattr(config, name)
    if value is not None and len(value) > 2:
        raise ConfigError(f"{options_of(type(config))[name].with_value(value)}: {SIDES}")


LARGEST_PADDED = 96
"""Up to this image size ``--train-crop auto`` pads and crops; above it crops and resizes."""
CROSS_ENTROPY = "cross_entropy"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_alike = ("family", "vit", "xcit")  # families whose blocks all have one shape
_staged = ("family", "swin", "cvt")  # families whose blocks come in stages


@settings
class ViTOptions:
    """What ViT has besides what all families have."""

    big_vision: bool = option(
        False,
        "Big Vision's ViT: no position for the class token, and its initial weights",
        needs=("family", "vit"),
    )
    tanh_layer: bool = option(
        False, "a linear map and tanh before the classifier", needs=("family", "vit")
    )
    head_bias: float = option(
        0.0,
        "initial bias of the classifier, such as -6.9 for a sigmoid loss over 1,000 classes",
        needs=("family", "vit"),
        metavar="F",
    )


@settings
class XCiTOptions:
    """What XCiT has besides what all families have."""

    local_patch_interaction: bool = option(
        True, "convolutions over the grid of patches in every block", needs=("family", "xcit")
    )
    conv_activation: str = option(
        "gelu",
        "activation between the convolutions, those of the patches included",
        choices=("gelu", "relu"),
        needs=("family", "xcit"),
    )
    class_layers: int = depth_option(
        2, "blocks of attention from the class token to the patches", needs=("family", "xcit")
    )
    class_attention: str = attention_option(
        "softmax", "attention of those: NAME or NAME:option=value,...", needs=("family", "xcit")
    )
    class_layers_norm_patches: bool = option(
        True,
        "norm the patches, too, between the attention and the FFN of those blocks",
        needs=("family", "xcit"),
    )


@settings
class StageOptions:
    """The stages of Swin and CvT; the defaults are those of Swin-T.

    Raises:
        ConfigError: there are not as many of the one as of the other.
    """

    stage_layers: tuple[int, ...] = depth_option(
        (2, 2, 6, 2), "number of blocks of each stage", needs=_staged, metavar="N,N"
    )
    stage_heads: tuple[int, ...] = size_option(
        (3, 6, 12, 24),
        "attention heads of the blocks of each stage; all are as wide as those of the first",
        needs=_staged,
        metavar="N,N",
    )
    window_size: int = size_option(
        7, "patches a side of the windows that attention stays inside", needs=("family", "swin")
    )

    def check(self) -> None:
        """Compare the numbers of stages."""
        if len(self.stage_heads) != len(self.stage_layers):
            raise ConfigError(
                f"--stage-heads {shown(self.stage_heads)}: expected as many numbers as in "
                f"--stage-layers {shown(self.stage_layers)}"
            )


@settings
class VisionTransformerConfig(TransformerOptions):
    """Shape of a vision transformer of any family; the defaults are ViT-Ti/16.

    Raises:
        ConfigError: settings that contradict each other.
    """

    attention: str = like(
        TransformerOptions, "attention", "softmax", flags=("--encoder-attention",)
    )
    feed_forward: str = like(TransformerOptions, "feed_forward", "gelu")
    dropout: float = like(TransformerOptions, "dropout", 0.0)
    family: str = option(
        "vit",
        f"kind of model, which --arch sets: {', '.join(vision_models.names())}",
        choices=vision_models,
        metavar="NAME",
    )
    block: str = option(
        "transformer", "the blocks", choices=vision_blocks, needs=("family", "vit"), metavar="NAME"
    )
    image_size: tuple[int, ...] = sides_option(
        (224,), "images are brought to this many pixels a side; or height and width: 192x256"
    )
    patch_size: tuple[int, ...] = sides_option(
        (16,),
        "pixels a side of a patch, which is one token; or its height and width: 16x8",
        needs=("family", "vit", "xcit", "swin"),
    )
    embed_dim: int = width_option(192, "width of the model; of its first stage, if it has several")
    layers: int = depth_option(12, "number of blocks", needs=_alike)
    heads: int = size_option(3, "attention heads of a block", needs=_alike)
    ffn_ratio: float = option(
        4.0, "inner width of the FFN in widths of the model", above=0, metavar="F"
    )
    pooling: str = option(
        "class",
        "what the classifier reads: class, an extra token; mean, the mean of the patches",
        choices=("class", "mean"),
        needs=("family", "vit"),
    )
    drop_path: float = probability_option(
        0.0,
        "stochastic depth: probability that an image skips a sublayer of the last block; it grows "
        "linearly from 0 in the first one (XCiT: the same in all; CvT: in the "
        "last stage)",
    )
    layer_scale: float = option(
        0.0,
        "initial value of a learned gain a channel on each sublayer's output; 0: no gains",
        least=0,
        metavar="F",
    )
    vit: ViTOptions = group("ViT", ViTOptions)
    xcit: XCiTOptions = group("XCiT", XCiTOptions)
    stages: StageOptions = group("stages of Swin and CvT", StageOptions)

    def check(self) -> None:
        """Compare the sizes with each other."""
        check_sides(self, "image_size")
        check_sides(self, "patch_size")
        if self.family in _alike[1:] and self.embed_dim % self.heads:
            raise ConfigError(
                f"--embed-dim {self.embed_dim} must be a multiple of --heads {self.heads}"
            )
        if self.family in _staged[1:] and self.embed_dim % self.stages.stage_heads[0]:
            raise ConfigError(
                f"--embed-dim {self.embed_dim} must be a multiple of the first of --stage-heads "
                f"{shown(self.stages.stage_heads)}"
            )
        if self.ffn_dim < 1:
            raise ConfigError(f"--ffn-ratio {self.ffn_ratio:g}: leaves no inner width")

    @property
    def ffn_dim(self) -> int:
        """The inner width of the FFN."""
        return round(self.ffn_ratio * self.embed_dim)

    @property
    def stage_head_dim(self) -> int:
        """The width of every head, where blocks come in stages."""
        return self.embed_dim // self.stages.stage_heads[0]

    @property
    def stage_dims(self) -> tuple[int, ...]:
        """The width of each stage."""
        return tuple(heads * self.stage_head_dim for heads in self.stages.stage_heads)

    @property
    def num_blocks(self) -> int:
        """The number of blocks, in the order of their indices; class attention comes last."""
        if self.family in _staged[1:]:
            return sum(self.stages.stage_layers)
        return self.layers + (self.xcit.class_layers if self.family == "xcit" else 0)

    @property
    def image_sides(self) -> tuple[int, int]:
        """Height and width of an image, in pixels."""
        return self.image_size[0], self.image_size[-1]

    @property
    def shown_size(self) -> str:
        """The size of an image for messages: ``192x256``."""
        return shown_sides(self.image_sides)

    @property
    def patch_sides(self) -> tuple[int, int]:
        """Height and width of a patch, in pixels."""
        return self.patch_size[0], self.patch_size[-1]


@settings
class PreprocessingConfig:
    """From a picture to the numbers that the model sees; training adds random changes.

    Raises:
        ConfigError: a value out of range.
    """

    train_crop: str = option(
        "auto",
        "random crop in training: padded, after adding --crop-padding; resized, a part of random "
        f"size and shape; none; auto is padded up to --image-size {LARGEST_PADDED}, then resized",
        choices=("auto", "padded", "resized", "none"),
    )
    crop_padding: int = option(
        4,
        "black pixels that the padded crop adds a side",
        least=0,
        needs=("train_crop", "auto", "padded"),
        metavar="N",
    )
    crop_min_area: float = _share(
        0.08,
        "smallest share of the picture in a resized crop",
        needs=("train_crop", "auto", "resized"),
    )
    flip: bool = option(True, "mirror half of the training images")
    eval_crop_ratio: float | None = _share(
        None,
        "share of a side that the centre crop of validation keeps "
        "(default: 0.875 where training crops are resized, otherwise 1)",
    )
    pixel_mean: tuple[float, ...] = option(
        IMAGENET_MEAN,
        "subtracted from red, green and blue (each from 0 to 1)",
        metavar="R,G,B",
    )
    pixel_std: tuple[float, ...] = option(
        IMAGENET_STD,
        "what red, green and blue are divided by afterwards",
        above=0,
        metavar="R,G,B",
    )

    def check(self) -> None:
        """See that there is a number for each colour."""
        for name in ("pixel_mean", "pixel_std"):
            value = getattr(self, name)
            if len(value) != 3:
                raise ConfigError(
                    f"{flag_of(name)} {shown(value)}: expected three numbers, as 0.5,0.5,0.5"
                )

    def crop_of(self, image_size: int) -> str:
        """Return the kind of training crop: ``padded``, ``resized`` or ``none``.

        Args:
            image_size: the longer side, in pixels.
        """
        if self.train_crop != "auto":
            return self.train_crop
        return "padded" if image_size <= LARGEST_PADDED else "resized"

    def check_fits(self, image_size: int, preset: Mapping[str, Any]) -> None:
        """Raise a ConfigError if the crop that ``auto`` stands for does not use what is set.

        Args:
            image_size: the longer side, in pixels.
            preset: what the recipe sets, which counts for other sizes, too.
        """
        crop = self.crop_of(image_size)
        for needed, name in (("padded", "crop_padding"), ("resized", "crop_min_area")):
            entry, value = options_of(PreprocessingConfig)[name], getattr(self, name)
            if crop != needed and value not in (entry.default, preset.get(name)):
                raise ConfigError(
                    f"{entry.with_value(value)} does nothing at --image-size {image_size}, where "
                    f"--train-crop auto is {crop}; it needs --train-crop {needed}"
                )

    def eval_ratio_of(self, image_size: int) -> float:
        """Return the share of a side that the centre crop of validation keeps."""
        if self.eval_crop_ratio is not None:
            return self.eval_crop_ratio
        return 0.875 if self.crop_of(image_size) == "resized" else 1.0


@settings
class ImageTaskOptions:
    """What is learnt from which images.

    Raises:
        ConfigError: a value out of range.
    """

    arch: str = arch_option(
        "vit_ti",
        architectures,
        "vit_ti, vit_s, vit_b, vit_l (deit_ti, deit_s, deit_b are the same), "
        "vit_small_bigvision_i1k and others (docs/reference/vision.md), xcit_nano_12, "
        "xcit_tiny_12, xcit_small_12, swin_tiny, swin_small, swin_base, cvt_13; also as "
        "vit_small_patch16_224",
    )
    attention_preset: str = like(AttentionPresetOptions, "attention_preset", "none")
    recipe: str = option(
        "none",
        f"settings of a published training: {', '.join(RECIPES)}; flags go before it",
        presets=RECIPES,
        metavar="NAME",
    )
    criterion: str = option(
        CROSS_ENTROPY,
        "loss per image: over all classes together, or of a sigmoid for each",
        choices=(CROSS_ENTROPY, "sigmoid_cross_entropy"),
    )
    init: str | None = option(
        None,
        "start from the public weights in a file that timm (or the model's authors) made: "
        ".safetensors, or tensors of torch.save; a head for other classes starts anew",
        files=READ,
    )
    label_smoothing: float = probability_option(
        0.0, "probability taken from the right class and spread over all; in training"
    )
    valid_data: str | None = option(
        None,
        "folders or zip files to validate on, with commas; the first set decides which checkpoint "
        "is the best (default: val, valid, validation or test in DATA, where train is beside it)",
        needs=("disable_validation", False),
        metavar="PATHS",
        files=replace(IMAGES, separator=","),
    )
    valid_fraction: float = probability_option(
        0.0,
        "hold out this share of each class of the training images as the first validation set",
        needs=("disable_validation", False),
    )
    skip_damaged_images: bool = option(
        False,
        "go on without images that cannot be decoded, each named; in training the next image "
        "takes the place of one",
    )
    batch_size: int = like(CommonOptions, "batch_size", 128, "images of a batch, per process")
    batch_size_valid: int | None = like(BatchingConfig, "batch_size_valid", None)


@settings
class VisionOptimizerConfig(OptimizerConfig):
    """The optimiser's settings with the defaults of DeiT.

    Biases, norms, the class token and positions are exempt from the weight decay.
    """

    adam_betas: tuple[float, ...] = like(OptimizerConfig, "adam_betas", (0.9, 0.999))
    weight_decay: float = like(OptimizerConfig, "weight_decay", 0.05)


@settings
class VisionScheduleConfig(ScheduleConfig):
    """The schedule's settings with the defaults of vision transformers."""

    lr: tuple[float, ...] = like(ScheduleConfig, "lr", (1e-3,))
    lr_scheduler: str = like(ScheduleConfig, "lr_scheduler", "cosine")
    lr_period_updates: float = like(
        ScheduleConfig,
        "lr_period_updates",
        -1.0,
        "updates of the first period; negative: up to the end of --max-epoch or --max-update, "
        "whichever is first",
    )
    warmup_epochs: float = option(
        0.0,
        "epochs of linear warm-up, instead of updates",
        least=0,
        needs=("warmup_updates", None),
        metavar="N",
    )
    lr_batch_size: int = option(
        0,
        "--lr, --min-lr and --warmup-init-lr (--end-learning-rate) are for updates of so many "
        "images; they are multiplied by how many times as many an update really has, over all "
        "processes; 0: they are as given",
        least=0,
        metavar="N",
    )


@settings
class VisionTrainerConfig(TrainerConfig):
    """The settings of the trainer with the defaults of vision transformers."""

    optimizer: VisionOptimizerConfig = group("optimiser", VisionOptimizerConfig)
    schedule: VisionScheduleConfig = group("learning rate", VisionScheduleConfig)

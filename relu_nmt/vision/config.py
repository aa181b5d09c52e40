"""Settings of vision models, image data and their training."""

from dataclasses import dataclass

from relu_nmt.attention.spec import known_attention
from relu_nmt.config import flag_of, group, option, settings
from relu_nmt.errors import ConfigError
from relu_nmt.optim.config import OptimizerConfig, ScheduleConfig, parse_betas, parse_numbers
from relu_nmt.training.config import TrainerConfig
from relu_nmt.vision.architectures import architectures

POOLINGS = ("class", "mean")
CROPS = ("auto", "padded", "resized", "none")
LARGEST_PADDED = 96
"""Up to this image size ``--train-crop auto`` pads and crops; above it crops and resizes."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class VisionTransformerConfig:
    """Shape of a vision transformer; the defaults are ViT-Ti/16.

    Raises:
        ConfigError: settings that contradict each other.
    """

    attention: str = option(
        "softmax",
        "attention of every block: NAME or NAME:option=value,...",
        metavar="NAME",
        parse=known_attention,
        flags=("--encoder-attention",),
    )
    image_size: int = option(224, "images are brought to this many pixels a side", metavar="N")
    patch_size: int = option(16, "pixels a side of a patch, which is one token", metavar="N")
    embed_dim: int = option(192, "width of the model", metavar="N")
    layers: int = option(12, "number of blocks", metavar="N")
    heads: int = option(3, "attention heads of a block", metavar="N")
    ffn_ratio: float = option(4.0, "inner width of the FFN in widths of the model", metavar="F")
    pooling: str = option(
        "class",
        "what the classifier reads: class, an extra token; mean, the mean of the patches",
        choices=POOLINGS,
    )
    dropout: float = option(0.0, "dropout on embeddings and sublayer outputs", metavar="P")
    attention_dropout: float = option(0.0, "dropout on attention weights", metavar="P")
    activation_dropout: float = option(0.0, "dropout inside the FFN", metavar="P")
    drop_path: float = option(
        0.0,
        "stochastic depth: probability that an image skips a sublayer of the last block; it grows "
        "linearly from 0 in the first one",
        metavar="P",
    )

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "embed_dim", "layers", "heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{flag_of(name)} {getattr(self, name)}: expected 1 or more")
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"--image-size {self.image_size} must be a multiple of --patch-size "
                f"{self.patch_size}"
            )
        if self.embed_dim % self.heads:
            raise ConfigError(
                f"--embed-dim {self.embed_dim} must be a multiple of --heads {self.heads}"
            )
        if self.ffn_dim < 1:
            raise ConfigError(f"--ffn-ratio {self.ffn_ratio:g}: leaves no inner width")
        for name in ("dropout", "attention_dropout", "activation_dropout", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{flag_of(name)} {getattr(self, name)}: expected 0 to below 1")

    @property
    def ffn_dim(self) -> int:
        """The inner width of the FFN."""
        return round(self.ffn_ratio * self.embed_dim)

    @property
    def num_patches(self) -> int:
        """The number of patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_tokens(self) -> int:
        """The number of tokens of an image, the class token included: n of every query."""
        return self.num_patches + (self.pooling == "class")


def parse_channels(text: str) -> tuple[float, ...]:
    """Return three numbers, one for each of red, green and blue.

    Raises:
        ValueError: not three numbers.
    """
    numbers = parse_numbers(text)
    if len(numbers) != 3:
        raise ValueError(f"'{text}': expected three numbers, such as 0.5,0.5,0.5")
    return numbers


@dataclass(frozen=True)
class PreprocessingConfig:
    """From a picture to the numbers that the model sees; training adds random changes.

    Raises:
        ConfigError: a value out of range.
    """

    train_crop: str = option(
        "auto",
        "random crop in training: padded, after adding --crop-padding; resized, a part of random "
        f"size and shape; none; auto is padded up to --image-size {LARGEST_PADDED}, then resized",
        choices=CROPS,
    )
    crop_padding: int = option(4, "black pixels that the padded crop adds a side", metavar="N")
    crop_min_area: float = option(
        0.08, "smallest share of the picture in a resized crop", metavar="P"
    )
    flip: bool = option(True, "mirror half of the training images")
    eval_crop_ratio: float | None = option(
        None,
        "share of a side that the centre crop of validation keeps "
        "(default: 0.875 where training crops are resized, otherwise 1)",
        metavar="P",
    )
    pixel_mean: tuple[float, ...] = option(
        IMAGENET_MEAN,
        "subtracted from red, green and blue (each from 0 to 1)",
        metavar="R,G,B",
        parse=parse_channels,
    )
    pixel_std: tuple[float, ...] = option(
        IMAGENET_STD,
        "what red, green and blue are divided by afterwards",
        metavar="R,G,B",
        parse=parse_channels,
    )

    def __post_init__(self) -> None:
        if self.crop_padding < 0:
            raise ConfigError(f"--crop-padding {self.crop_padding}: expected 0 or more")
        if not 0 < self.crop_min_area <= 1:
            raise ConfigError(f"--crop-min-area {self.crop_min_area:g}: expected above 0 to 1")
        if self.eval_crop_ratio is not None and not 0 < self.eval_crop_ratio <= 1:
            raise ConfigError(f"--eval-crop-ratio {self.eval_crop_ratio:g}: expected above 0 to 1")
        if min(self.pixel_std) <= 0:
            raise ConfigError("--pixel-std: expected numbers above 0")

    def crop_of(self, image_size: int) -> str:
        """Return the kind of training crop: ``padded``, ``resized`` or ``none``."""
        if self.train_crop != "auto":
            return self.train_crop
        return "padded" if image_size <= LARGEST_PADDED else "resized"

    def eval_ratio_of(self, image_size: int) -> float:
        """Return the share of a side that the centre crop of validation keeps."""
        if self.eval_crop_ratio is not None:
            return self.eval_crop_ratio
        return 0.875 if self.crop_of(image_size) == "resized" else 1.0


@dataclass(frozen=True)
class ImageTaskOptions:
    """What is learnt from which images.

    Raises:
        ConfigError: a value out of range.
    """

    arch: str = option(
        "vit_ti",
        "preset of the model: vit_ti, vit_s, vit_b, vit_l (deit_ti, deit_s, deit_b are other names "
        "for the same); other model flags go before it",
        flags=("-a",),
        metavar="NAME",
        presets=architectures,
    )
    label_smoothing: float = option(
        0.0, "probability taken from the right class and spread over all; in training", metavar="P"
    )
    valid_data: str | None = option(
        None,
        "folders or zip files to validate on, with commas; the first set decides which checkpoint "
        "is the best (default: val, valid, validation or test in DATA, where train is beside it)",
        metavar="PATHS",
    )
    valid_fraction: float = option(
        0.0,
        "hold out this share of each class of the training images as the first validation set",
        metavar="P",
    )
    batch_size: int = option(128, "images of a batch, per process", metavar="N")
    batch_size_valid: int | None = option(
        None, "--batch-size for validation, if another", metavar="N"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"--label-smoothing {self.label_smoothing}: expected 0 to below 1")
        if not 0 <= self.valid_fraction < 1:
            raise ConfigError(f"--valid-fraction {self.valid_fraction}: expected 0 to below 1")
        for name in ("batch_size", "batch_size_valid"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{flag_of(name)} {value}: expected 1 or more")


@dataclass(frozen=True)
class VisionOptimizerConfig(OptimizerConfig):
    """The optimiser's settings with the defaults of DeiT.

    Biases, norms, the class token and positions are exempt from the weight decay.
    """

    adam_betas: tuple[float, ...] = option(
        (0.9, 0.999), "decay rates of Adam's moments", metavar="'(B1, B2)'", parse=parse_betas
    )
    weight_decay: float = option(0.05, "decoupled weight decay", metavar="WD", flags=("--wd",))


@dataclass(frozen=True)
class VisionScheduleConfig(ScheduleConfig):
    """The schedule's settings with the defaults of vision transformers."""

    lr: tuple[float, ...] = option(
        (1e-3,),
        "learning rate (its peak); fixed also takes one per epoch: LR1,LR2,...",
        metavar="LR",
        parse=parse_numbers,
    )
    lr_scheduler: str = option(
        "cosine",
        "inverse_sqrt, cosine, polynomial_decay, fixed or reduce_lr_on_plateau",
        metavar="NAME",
    )
    lr_period_updates: float = option(
        -1.0,
        "cosine: updates of the first period; negative: up to the end of --max-epoch or "
        "--max-update, whichever is first",
        metavar="N",
    )


@settings
class VisionTrainerConfig(TrainerConfig):
    """The settings of the trainer with the defaults of vision transformers."""

    optimizer: VisionOptimizerConfig = group("optimiser", VisionOptimizerConfig)
    schedule: VisionScheduleConfig = group("learning rate", VisionScheduleConfig)

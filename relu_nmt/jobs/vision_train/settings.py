"""Settings of relu-nmt-vision-train."""

from dataclasses import replace
from pathlib import Path

import relu_nmt.vision
from relu_nmt.config import READ, REQUIRED, group, like, option, settings
from relu_nmt.config.shared import VALIDATES, BatchingConfig, batch_size_option
from relu_nmt.config.yaml_text import read_presets
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import (
    AttentionRegularizerConfig,
    arch_option,
    attention_preset_option,
    probability_option,
)
from relu_nmt.training.config import OptimizerConfig, TrainerConfig
from relu_nmt.training.schedules import ScheduleConfig
from relu_nmt.vision.config import (
    CROSS_ENTROPY,
    IMAGES,
    AugmentationConfig,
    PreprocessingConfig,
    VisionTransformerConfig,
    architectures,
)

RECIPES = read_presets(Path(relu_nmt.vision.__file__).with_name("recipes.yaml"))
"""The ``--recipe`` presets by name. docs/reference/images.md has the table."""


@settings
class VisionOptimizerConfig(OptimizerConfig):
    """The optimizer's settings with the defaults of vision transformers."""

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
        help="updates of the first period (negative: up to the end)",
    )


@settings
class VisionTrainerConfig(TrainerConfig):
    """The trainer's settings with the defaults of vision transformers."""

    budget: str | None = like(
        TrainerConfig, "budget", brings={"store_ema": True, "no_epoch_checkpoints": True}
    )
    warmup_epochs: float = option(
        0.0,
        "epochs of linear warm-up, instead of updates",
        least=0,
        needs=("warmup_updates", None),
        metavar="N",
        heading="rates by epochs and images",
    )
    lr_batch_size: int = option(
        0, "images per update for which the rates are given (0: do not scale them)", least=0
    )
    optimizer: VisionOptimizerConfig = group(
        "optimizer and averaged weights", VisionOptimizerConfig
    )
    schedule: VisionScheduleConfig = group("learning rate", VisionScheduleConfig)


@settings
class ImageTrainingSettings:
    """All settings of the training of an image classifier."""

    data: str = option(
        REQUIRED,
        "images: folder, zip file, NumPy archive or parquet file",
        metavar="DATA",
        positional=True,
        flags=("--data",),
        files=IMAGES,
    )
    arch: str = arch_option(
        "vit_ti",
        architectures,
        "vit_s, xcit_tiny_12, swin_tiny, cvt_13... (docs/reference/vision.md)",
    )
    attention_preset: str = attention_preset_option()
    recipe: str = option(
        "none",
        f"settings of a published training: {', '.join(RECIPES)}",
        presets=RECIPES,
        metavar="NAME",
    )
    criterion: str = option(
        CROSS_ENTROPY,
        "loss per image: of one softmax over the classes, or of a sigmoid for each class",
        choices=(CROSS_ENTROPY, "sigmoid_cross_entropy"),
    )
    init: str | None = option(
        None,
        "start from public weights, a file of timm or the model's authors",
        files=READ,
        needs=("finetune_from_model", None),
    )
    label_smoothing: float = probability_option(0.0, "probability that is spread over all classes")
    valid_data: str | None = option(
        None,
        "images to validate on (default: val, valid, validation or test in DATA)",
        needs=VALIDATES,
        metavar="PATHS",
        files=replace(IMAGES, separator=","),
    )
    valid_fraction: float = probability_option(
        0.0, "hold out this share of the training images to validate on", needs=VALIDATES
    )
    skip_damaged_images: bool = option(
        False, "replace images that cannot be decoded, with a warning"
    )
    batch_size: int = batch_size_option(default=128, help="images of a batch, per process")
    batch_size_valid: int | None = like(BatchingConfig, "batch_size_valid", None)
    model: VisionTransformerConfig = group("model", VisionTransformerConfig)
    regularizer: AttentionRegularizerConfig = group(
        "attention regularizer", AttentionRegularizerConfig
    )
    preprocessing: PreprocessingConfig = group("crops and normalization", PreprocessingConfig)
    augmentation: AugmentationConfig = group("augmentation", AugmentationConfig)
    trainer: VisionTrainerConfig = group("updates, limits and processes", VisionTrainerConfig)

    def check(self) -> None:
        """Compare the groups with each other."""
        # Refuse mixtures of images where a batch has only one image.
        if self.batch_size == 1:
            for name in ("mixup", "cutmix"):
                if value := getattr(self.augmentation, name):
                    raise ConfigError(
                        f"--{name} {value:g} does nothing with --batch-size 1, where there is no "
                        "other image; set it to 0, or take larger batches"
                    )
        recipe = RECIPES[self.recipe]
        self.preprocessing.check_fits(max(self.model.image_size), recipe)

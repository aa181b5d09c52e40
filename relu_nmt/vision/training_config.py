"""Settings of image data and of the training on it, and published trainings by name."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from relu_nmt.config import flag_of, group, like, option, settings, shown
from relu_nmt.config.fields import options_of
from relu_nmt.config.files import Files
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import probability_option
from relu_nmt.training.config import OptimizerConfig, TrainerConfig
from relu_nmt.training.schedules import ScheduleConfig

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif"),
    *(".webp", ".ppm", ".pgm", ".tif", ".tiff"),
)
_ENDINGS = "|".join((*IMAGE_SUFFIXES, ".zip", ".npz", ".parquet")).replace(".", "")
IMAGES = Files(names=rf"(?i:.*\.({_ENDINGS}))", deep=True)
LARGEST_PADDED = 96
"""The largest image size at which ``--train-crop auto`` is padded; above, it is resized."""
CROSS_ENTROPY = "cross_entropy"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
RAND_AUGMENT_FORMS = ("increasing", "original")
_share = partial(option, above=0, most=1, metavar="P")
_beta = partial(option, least=0, metavar="A")


@settings
class PreprocessingConfig:
    """Crops, mirroring and normalisation of pictures."""

    train_crop: str = option(
        "auto",
        f"random crop; auto: padded up to --image-size {LARGEST_PADDED}, else resized",
        choices=("auto", "padded", "resized", "none"),
    )
    crop_padding: int = option(
        4,
        "black pixels that the padded crop adds a side",
        least=0,
        needs=("train_crop", "auto", "padded"),
    )
    crop_min_area: float = _share(
        0.08,
        "smallest share of the picture in a resized crop",
        needs=("train_crop", "auto", "resized"),
    )
    flip: bool = option(True, "mirror half of the training images")
    eval_crop_ratio: float | None = _share(
        None, "share of a side that the centre crop keeps (default: 0.875 if resized)"
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
        """Check that there is a number for each colour."""
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
        """Raise a ConfigError if a setting does nothing with the crop that ``auto`` stands for.

        Settings of the recipe, ``preset``, are allowed at every size.
        """
        # Padding belongs to one kind of crop, and the smallest area to the other.
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
class AugmentationConfig:
    """Random changes of training images, besides crops and mirroring."""

    rand_augment: int = option(
        0, "number of random changes of each image (RandAugment); 0: none", least=0
    )
    rand_augment_magnitude: float = option(
        9.0,
        "strength of these changes; 10: to the ends of their ranges",
        least=0,
        needs="rand_augment",
        metavar="M",
    )
    rand_augment_std: float = option(
        0.5, "standard deviation of their strength", least=0, needs="rand_augment", metavar="S"
    )
    rand_augment_form: str = option(
        "increasing",
        "increasing (timm's inc1, DeiT), or original (Big Vision)",
        choices=RAND_AUGMENT_FORMS,
        needs="rand_augment",
    )
    color_jitter: float = option(
        0.0, "change brightness, contrast and saturation by up to this share", least=0, metavar="F"
    )
    random_erasing: float = probability_option(
        0.0, "probability that noise replaces a box of an image"
    )
    mixup: float = _beta(0.0, "mix two images and their classes by Beta(A, A); 0: none")
    cutmix: float = _beta(0.0, "paste a box of another image, area by Beta(A, A); 0: none")
    repeated_augmentation: int = option(
        1, "views of an image in a batch; an epoch has fewer images", least=1
    )

    @property
    def changes_images(self) -> bool:
        """Return True if any setting changes single images."""
        return bool(self.rand_augment or self.color_jitter or self.random_erasing)


# The parts that several recipes share: RandAugment, the trainings of timm, those of Big Vision.
_RAND_AUGMENT: dict[str, Any] = {
    "rand_augment": 2,
    "rand_augment_magnitude": 9.0,
    "rand_augment_std": 0.5,
    "rand_augment_form": "increasing",
}
_TIMM: dict[str, Any] = {
    **_RAND_AUGMENT,
    "random_erasing": 0.25,
    "mixup": 0.8,
    "cutmix": 1.0,
    "label_smoothing": 0.1,
    "eval_crop_ratio": 1.0,
    "max_epoch": 300,
    "lr": (5e-4,),
    "lr_batch_size": 512,
    "lr_scheduler": "cosine",
    "warmup_epochs": 5.0,
    "warmup_init_lr": 5e-7,
    "min_lr": 5e-6,
    "weight_decay": 0.05,
}
_BIG_VISION: dict[str, Any] = {
    "criterion": "sigmoid_cross_entropy",
    "rand_augment": 2,
    "rand_augment_std": 0.0,
    "rand_augment_form": "original",
    "crop_min_area": 0.05,
    "eval_crop_ratio": 0.875,
    "pixel_mean": (0.5, 0.5, 0.5),
    "pixel_std": (0.5, 0.5, 0.5),
    "lr": (1e-3,),
    "lr_scheduler": "cosine",
    "warmup_updates": 10_000,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
    "batch_size": 512,
}
RECIPES: dict[str, dict[str, Any]] = {
    "none": {},
    "deit": {**_TIMM, "drop_path": 0.05, "repeated_augmentation": 3},
    "xcit": {**_TIMM, "drop_path": 0.05, "repeated_augmentation": 3, "max_epoch": 400},
    "cvt": {**_TIMM, "drop_path": 0.05},
    # The stochastic depth is set by the shape: .2 for Swin-T, .5 for Swin-B.
    "swin": {**_TIMM, "eval_crop_ratio": 0.875, "warmup_epochs": 20.0, "clip_norm": 5.0},
    "bigvision_i1k": {
        **_BIG_VISION,
        "rand_augment_magnitude": 15.0,
        "mixup": 0.5,
        "max_epoch": 300,
    },
    "bigvision_i21k": {
        **_BIG_VISION,
        "rand_augment_magnitude": 10.0,
        "mixup": 0.2,
        "max_epoch": 30,
    },
    "tiny_imagenet": {
        **_RAND_AUGMENT,
        "max_epoch": 200,
        "lr": (1e-3,),
        "lr_batch_size": 512,
        "lr_scheduler": "cosine",
        "warmup_epochs": 10.0,
        "weight_decay": 0.05,
        "batch_size": 512,
    },
}
"""The ``--recipe`` presets by name; docs/reference/images.md has the table."""


@settings
class VisionTrainerConfig(TrainerConfig):
    """The trainer's settings with the defaults of vision transformers, of DeiT for the optimiser.

    Biases, norms, the class token and positions are exempt from the weight decay.
    """

    warmup_epochs: float = option(
        0.0,
        "epochs of linear warm-up, instead of updates",
        least=0,
        needs=("warmup_updates", None),
        metavar="N",
        heading="rates by epochs and images",
    )
    lr_batch_size: int = option(
        0, "images per update that the rates are given for; 0: no scaling", least=0
    )
    optimizer: OptimizerConfig = group(
        "optimiser and averaged weights",
        OptimizerConfig,
        adam_betas=(0.9, 0.999),
        weight_decay=0.05,
    )
    schedule: ScheduleConfig = group(
        "learning rate",
        ScheduleConfig,
        lr=(1e-3,),
        lr_scheduler="cosine",
        lr_period_updates=like(
            ScheduleConfig,
            "lr_period_updates",
            -1.0,
            "updates of the first period; negative: up to the end",
        ),
    )

"""Settings of augmentation, and the recipes of training by name."""

from functools import partial
from typing import Any

from relu_nmt.config import option, settings
from relu_nmt.config.files import Files
from relu_nmt.modules.config import probability_option

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif"),
    *(".webp", ".ppm", ".pgm", ".tif", ".tiff"),
)
_ENDINGS = "|".join((*IMAGE_SUFFIXES, ".zip", ".npz", ".parquet")).replace(".", "")
IMAGES = Files(names=rf"(?i:.*\.({_ENDINGS}))", deep=True)
_beta = partial(option, least=0, metavar="A")
RAND_AUGMENT_FORMS = ("increasing", "original")


@settings
class AugmentationConfig:
    """Random changes of training images, beside crops and mirroring.

    Raises:
        ConfigError: a value out of range.
    """

    rand_augment: int = option(
        0,
        "so many changes of each image, chosen at random among rotations, shifts, colours, ... "
        "(RandAugment); 0: none",
        least=0,
        metavar="N",
    )
    rand_augment_magnitude: float = option(
        9.0,
        "how strong they are; the ranges are made for 0 to 10, which is the most with increasing",
        least=0,
        needs="rand_augment",
        metavar="M",
    )
    rand_augment_std: float = option(
        0.5, "standard deviation of how strong they are", least=0, needs="rand_augment", metavar="S"
    )
    rand_augment_form: str = option(
        "increasing",
        "increasing, each with probability 1/2 and all stronger with the magnitude (timm's "
        "inc1, DeiT); original, as the paper's public code (Big Vision)",
        choices=RAND_AUGMENT_FORMS,
        needs="rand_augment",
    )
    color_jitter: float = option(
        0.0, "change brightness, contrast and saturation by up to this share", least=0, metavar="F"
    )
    random_erasing: float = probability_option(
        0.0, "probability that a box of 2 to 33 % of an image is replaced by noise"
    )
    mixup: float = _beta(
        0.0, "mean of two images and their classes, weighted by Beta(A, A); 0: none"
    )
    cutmix: float = _beta(
        0.0,
        "a box of another image, and its class, by Beta(A, A) of the area; 0: none; with both, "
        "each batch has either",
    )
    repeated_augmentation: int = option(
        1,
        "so many views of an image in a batch; an epoch has as many views as before, of fewer "
        "images",
        least=1,
        metavar="N",
    )

    @property
    def changes_images(self) -> bool:
        """Return whether single images are changed."""
        return bool(self.rand_augment or self.color_jitter or self.random_erasing)


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
    # Its stochastic depth is that of the shape: .2 for Swin-T, .5 for Swin-B.
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

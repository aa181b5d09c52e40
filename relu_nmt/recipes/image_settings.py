"""Settings of the recipes that use a trained image classifier."""

from relu_nmt.attention.spec import AttentionBackendConfig
from relu_nmt.config import REQUIRED, from_flat, group, like, option, settings
from relu_nmt.config.files import READ, WRITTEN
from relu_nmt.config.shared import CommonOptions, PrecisionOptions
from relu_nmt.errors import ConfigError
from relu_nmt.training.config import RunConfig
from relu_nmt.vision.config import check_sides, sides_option
from relu_nmt.vision.training_config import IMAGES, PreprocessingConfig

EVALUATION_BATCH = 128
JOINED_BLOCKS = 4
_checkpoint = option(
    REQUIRED,
    "checkpoint: the first word, unless --path names it",
    metavar="CKPT",
    positional=True,
    flags=("--path",),
    files=READ,
)


@settings
class ClassifierOptions(PrecisionOptions, AttentionBackendConfig):
    """Device, precision and attention back end of the classifier."""

    bf16: bool = like(PrecisionOptions, "bf16", False, "compute in bfloat16; also on the CPU")


@settings
class EvaluationOptions:
    """The images to evaluate on, and the settings of the evaluation.

    Raises:
        ConfigError: an image size is malformed.
    """

    no_progress_bar: bool = like(CommonOptions, "no_progress_bar")
    batch_size: int = option(EVALUATION_BATCH, "images of a batch", least=1, metavar="N")
    num_workers: int = like(RunConfig, "num_workers", 1)
    skip_damaged_images: bool = option(
        False, "warn about images that cannot be decoded, and go on without them"
    )
    data: tuple[str, ...] = option(
        REQUIRED,
        "images, one or more paths as of relu-nmt-vision-train; if a path has a set train and "
        "others, the others are taken",
        several=True,
        metavar="DATA",
        positional=True,
        flags=("--data",),
        files=IMAGES,
    )
    image_size: tuple[str, ...] = option(
        (),
        "resize pictures to this many pixels a side, or this height and width (192x256); several "
        "with commas (default: as in training)",
        metavar="N|YxX",
    )
    eval_crop_ratio: float | None = like(
        PreprocessingConfig,
        "eval_crop_ratio",
        None,
        "share of a side that the centre crop keeps (default: as in the training's validation)",
    )
    classes: str | None = option(
        None,
        "choose only among the classes in this file, one a line (text after a space is a remark, "
        "unless it is part of a class's name); images of classes that the model does not have "
        "count as wrong",
        files=READ,
    )
    results: str | None = option(None, "write the results to FILE as JSON", files=WRITTEN)

    @property
    def image_sides(self) -> list[tuple[int, ...] | None]:
        """The image sizes, each pixels a side or height and width; None: as in training.

        Raises:
            ConfigError: an image size is malformed.
        """
        if not self.image_size:
            return [None]
        return [
            from_flat(ClassificationOptions, {"image_size": text}).image_size
            for text in self.image_size
        ]

    def check(self) -> None:
        """Check the image sizes."""
        _ = self.image_sides


@settings
class EvaluateImagesSettings:
    """All settings of ``relu-nmt-vision-evaluate``."""

    path: str = _checkpoint
    options: EvaluationOptions = group("evaluation", EvaluationOptions)
    model: ClassifierOptions = group("model", ClassifierOptions, stored=False)


@settings
class ClassificationOptions:
    """The output of the classification, and the size of its input."""

    top_k: int = option(5, "number of classes to print for each picture", least=1, metavar="N")
    json: bool = option(False, "print JSON")
    image_size: tuple[int, ...] | None = sides_option(
        None,
        "resize pictures to this many pixels a side, or this height and width (192x256) (default: "
        "as in training)",
    )

    def check(self) -> None:
        """Check that an image has two sides."""
        check_sides(self, "image_size")


@settings
class ClassifyImagesSettings:
    """All settings of ``relu-nmt-vision-classify``."""

    path: str = _checkpoint
    images: tuple[str, ...] = option(
        REQUIRED,
        "image files",
        metavar="PHOTO",
        positional=True,
        several=True,
        flags=("--data",),
        files=READ,
    )
    options: ClassificationOptions = group("output", ClassificationOptions)
    model: ClassifierOptions = group("model", ClassifierOptions)


KNN, RIDGE, LINEAR = ("method", "knn"), ("method", "ridge"), ("method", "linear")


@settings
class ProbeOptions:
    """The method that probes frozen features, and the images."""

    no_progress_bar: bool = like(CommonOptions, "no_progress_bar")
    train: tuple[str, ...] = option(
        REQUIRED,
        "images to learn from; several data sets are evaluated one after the other, then averaged",
        several=True,
        metavar="PATH",
        files=IMAGES,
    )
    test: tuple[str, ...] = option(
        REQUIRED,
        "images to test on, for each path of --train",
        several=True,
        metavar="PATH",
        files=IMAGES,
    )
    method: str = option(
        REQUIRED,
        "knn, votes of the nearest images of --train; ridge, linear regression from a few images "
        "of each class; linear, a classifier trained on random views",
        choices=("knn", "ridge", "linear"),
    )
    neighbours: int = option(20, "number of neighbours that vote", least=1, needs=KNN, metavar="K")
    temperature: float = option(0.07, "votes are exp(cosine / T)", above=0, needs=KNN, metavar="T")
    shots: int = option(10, "images of each class", least=1, needs=RIDGE, metavar="N")
    seeds: tuple[int, ...] = option(
        (0, 1, 2), "choices of these images; accuracies are averaged", least=0, needs=RIDGE
    )
    l2: float = option(1024.0, "weight of the squared norm", above=0, needs=RIDGE)
    epochs: int = option(100, "passes over --train", least=1, needs=LINEAR, metavar="N")
    lr: float = option(
        0.001, "learning rate, which falls to 0 as a cosine", above=0, needs=LINEAR, metavar="LR"
    )
    features: str = option(
        "last",
        "last, the input of the model's classifier; joined, the class tokens of the last "
        f"{JOINED_BLOCKS} blocks, or the mean of the patches of a block without one",
        choices=("last", "joined"),
        needs=LINEAR,
    )
    seed: int = option(1, "seed of weights, order and views", least=0, needs=LINEAR, metavar="N")
    batch_size: int | None = option(
        None, "images of a batch (default: 128; with linear 1,024)", least=1, metavar="N"
    )
    num_workers: int = like(RunConfig, "num_workers", 1)
    skip_damaged_images: bool = like(EvaluationOptions, "skip_damaged_images", False)
    image_size: tuple[int, ...] | None = like(ClassificationOptions, "image_size", None)
    eval_crop_ratio: float = option(
        0.875,
        "share of a side that the centre crop keeps (224 of 256 pixels in the papers; 1 suits "
        "small images)",
        above=0,
        most=1,
        metavar="P",
    )
    results: str | None = like(EvaluationOptions, "results", None)

    def check(self) -> None:
        """Check that an image has two sides, and that each data set has both its parts."""
        check_sides(self, "image_size")
        if len(self.train) != len(self.test):
            raise ConfigError(
                f"--train has {len(self.train)} and --test {len(self.test)} data sets; give one "
                "for each, in the same order"
            )


@settings
class ProbeImagesSettings:
    """All settings of ``relu-nmt-vision-probe``."""

    path: str = _checkpoint
    options: ProbeOptions = group("probe", ProbeOptions)
    model: ClassifierOptions = group("model", ClassifierOptions, stored=False)

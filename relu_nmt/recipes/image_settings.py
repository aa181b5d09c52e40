"""Settings of the recipes that use a trained image classifier."""

from relu_nmt.attention.spec import AttentionBackendConfig
from relu_nmt.config import REQUIRED, from_flat, group, like, option, settings
from relu_nmt.config.files import READ, WRITTEN
from relu_nmt.config.shared import CommonOptions, PrecisionOptions
from relu_nmt.errors import ConfigError
from relu_nmt.training.config import RunConfig
from relu_nmt.vision.config import PreprocessingConfig, check_sides, sides_option
from relu_nmt.vision.data_config import IMAGES

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
    """How the classifier computes."""

    bf16: bool = like(PrecisionOptions, "bf16", False, "compute in bfloat16; also on the CPU")


@settings
class ReadingOptions:
    """How images are read."""

    no_progress_bar: bool = like(CommonOptions, "no_progress_bar")
    batch_size: int = option(EVALUATION_BATCH, "images of a batch", least=1, metavar="N")
    num_workers: int = like(RunConfig, "num_workers", 1)
    skip_damaged_images: bool = option(
        False, "go on without images that cannot be decoded; each is named"
    )


@settings
class EvaluationOptions(ReadingOptions):
    """On what to evaluate, and how.

    Raises:
        ConfigError: an image size is none.
    """

    data: tuple[str, ...] = option(
        REQUIRED,
        "images, as relu-nmt-vision-train takes them, one or more; where train lies beside other "
        "sets, the others are taken",
        several=True,
        metavar="DATA",
        positional=True,
        flags=("--data",),
        files=IMAGES,
    )
    image_size: tuple[str, ...] = option(
        (),
        "bring pictures to this many pixels a side, or this height and width (192x256), instead of "
        "as many as in training; several with commas",
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
        "choose among the classes in this file only, one a line (what follows a space is a "
        "remark, unless it is part of a class's name); images of classes that the model does not "
        "have count as wrong",
        files=READ,
    )
    results: str | None = option(None, "write the results to FILE as JSON", files=WRITTEN)

    @property
    def image_sides(self) -> list[tuple[int, ...] | None]:
        """The image sizes, each pixels a side or height and width; None: as in training.

        Raises:
            ConfigError: one is none.
        """
        if not self.image_size:
            return [None]
        return [
            from_flat(ClassificationOptions, {"image_size": text}).image_size
            for text in self.image_size
        ]

    def check(self) -> None:
        """See that image sizes are such."""
        _ = self.image_sides


@settings
class EvaluateImagesSettings:
    """All settings of ``relu-nmt-vision-evaluate``.

    Raises:
        ConfigError: a value out of range.
    """

    path: str = _checkpoint
    options: EvaluationOptions = group("evaluation", EvaluationOptions)
    model: ClassifierOptions = group("model", ClassifierOptions, stored=False)


@settings
class ClassificationOptions:
    """What to classify, and what to print.

    Raises:
        ConfigError: an image size has more than two sides.
    """

    top_k: int = option(5, "print so many classes a picture", least=1, metavar="N")
    json: bool = option(False, "print JSON")
    image_size: tuple[int, ...] | None = sides_option(
        None,
        "bring pictures to this many pixels a side, or this height and width (192x256), instead of "
        "as many as in training",
    )

    def check(self) -> None:
        """See that an image has two sides."""
        check_sides(self, "image_size")


@settings
class ClassifyImagesSettings:
    """All settings of ``relu-nmt-vision-classify``.

    Raises:
        ConfigError: a value out of range.
    """

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
    """How frozen features are judged, and on what.

    Raises:
        ConfigError: a value out of range.
    """

    no_progress_bar: bool = like(CommonOptions, "no_progress_bar")
    train: tuple[str, ...] = option(
        REQUIRED,
        "images to learn from; several data sets are judged one after the other, then their mean",
        several=True,
        metavar="PATH",
        files=IMAGES,
    )
    test: tuple[str, ...] = option(
        REQUIRED,
        "images to be right about, of each of --train",
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
    neighbours: int = option(20, "how many vote", least=1, needs=KNN, metavar="K")
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
        f"last, what the model's classifier reads; joined, of each of the last {JOINED_BLOCKS} "
        "blocks the class token, or the mean of the patches where it has none",
        choices=("last", "joined"),
        needs=LINEAR,
    )
    seed: int = option(1, "seed of weights, order and views", least=0, needs=LINEAR, metavar="N")
    batch_size: int | None = option(
        None, "images of a batch (default: 128; with linear 1,024)", least=1, metavar="N"
    )
    num_workers: int = like(RunConfig, "num_workers", 1)
    skip_damaged_images: bool = like(ReadingOptions, "skip_damaged_images", False)
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
        """See that an image has two sides, and that each data set has both its parts."""
        check_sides(self, "image_size")
        if len(self.train) != len(self.test):
            raise ConfigError(
                f"--train has {len(self.train)} and --test {len(self.test)} data sets; give one "
                "for each, in the same order"
            )


@settings
class ProbeImagesSettings:
    """All settings of ``relu-nmt-vision-probe``.

    Raises:
        ConfigError: a value out of range.
    """

    path: str = _checkpoint
    options: ProbeOptions = group("probe", ProbeOptions)
    model: ClassifierOptions = group("model", ClassifierOptions, stored=False)

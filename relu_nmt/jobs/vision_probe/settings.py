"""Settings of relu-nmt-vision-probe."""

from functools import partial

from relu_nmt.config import REQUIRED, group, like, option, settings
from relu_nmt.config.shared import PrecisionOptions, no_progress_bar_option
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.vision_evaluate.settings import (
    CHECKPOINT,
    ClassifyImagesSettings,
    EvaluateImagesSettings,
)
from relu_nmt.training.config import TrainerConfig
from relu_nmt.vision.config import IMAGES, check_sides

JOINED_BLOCKS = 4
# The conditions of options.
KNN = ("method", "knn")
RIDGE = ("method", "ridge")
LINEAR = ("method", "linear")
_images = partial(option, REQUIRED, several=True, metavar="PATH", files=IMAGES)


@settings
class ProbeImagesSettings:
    """All settings of ``relu-nmt-vision-probe``."""

    path: str = CHECKPOINT
    no_progress_bar: bool = no_progress_bar_option()
    train: tuple[str, ...] = _images("images to learn from (several data sets are averaged)")
    test: tuple[str, ...] = _images("images to test on, for each path of --train")
    method: str = option(
        REQUIRED,
        "nearest neighbors, ridge regression on few images, or a linear classifier",
        choices=("knn", "ridge", "linear"),
    )
    neighbors: int = option(
        20,
        "number of neighbors that vote",
        flags=("--neighbours",),
        least=1,
        needs=KNN,
        metavar="K",
    )
    temperature: float = option(0.07, "votes are exp(cosine / T)", above=0, needs=KNN, metavar="T")
    shots: int = option(10, "images of each class", least=1, needs=RIDGE)
    seeds: tuple[int, ...] = option(
        (0, 1, 2), "seeds that choose these images (accuracies are averaged)", least=0, needs=RIDGE
    )
    l2: float = option(1024.0, "weight of the squared norm", above=0, needs=RIDGE)
    epochs: int = option(100, "passes over --train", least=1, needs=LINEAR)
    lr: float = option(
        0.001, "learning rate, which falls to 0 as a cosine", above=0, needs=LINEAR, metavar="LR"
    )
    features: str = option(
        "last",
        f"last, the classifier's input; joined, the class tokens of {JOINED_BLOCKS} blocks",
        choices=("last", "joined"),
        needs=LINEAR,
    )
    seed: int = option(1, "seed of weights, order and views", least=0, needs=LINEAR)
    batch_size: int | None = option(
        None, "images of a batch (default: 128, with linear 1,024)", least=1
    )
    num_workers: int = like(TrainerConfig, "num_workers", 1)
    skip_damaged_images: bool = like(EvaluateImagesSettings, "skip_damaged_images", False)
    image_size: tuple[int, ...] | None = like(ClassifyImagesSettings, "image_size", None)
    eval_crop_ratio: float = option(
        0.875, "share of a side that the center crop keeps", above=0, most=1, metavar="P"
    )
    results: str | None = like(EvaluateImagesSettings, "results", None)
    model: PrecisionOptions = group("model", PrecisionOptions, stored=False)

    def check(self) -> None:
        """Check that an image has two sides, and that each data set has both its parts."""
        check_sides(self, "image_size")
        if len(self.train) != len(self.test):
            raise ConfigError(
                f"--train has {len(self.train)} and --test {len(self.test)} data sets; give one "
                "for each, in the same order"
            )

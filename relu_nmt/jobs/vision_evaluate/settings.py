"""Settings of relu-nmt-vision-evaluate and relu-nmt-vision-classify."""

from functools import partial
from pathlib import Path

from relu_nmt.config import READ, REQUIRED, WRITTEN, group, like, option, settings
from relu_nmt.config.fields import options_of
from relu_nmt.config.shared import PrecisionOptions, no_progress_bar_option
from relu_nmt.errors import ConfigError
from relu_nmt.training.config import TrainerConfig
from relu_nmt.vision.config import IMAGES, SIDES, PreprocessingConfig, check_sides, sides_option

EVALUATION_BATCH = 128
CHECKPOINT = option(
    REQUIRED,
    "checkpoint: the first word, unless --path names it",
    metavar="CKPT",
    positional=True,
    flags=("--path",),
    files=READ,
)
_data = partial(option, REQUIRED, several=True, positional=True, flags=("--data",))


@settings
class ClassifyImagesSettings(PrecisionOptions):
    """All settings of ``relu-nmt-vision-classify``."""

    path: str = CHECKPOINT
    images: tuple[str, ...] = _data("image files", metavar="PHOTO", files=READ)
    top_k: int = option(5, "number of classes to print for each picture", least=1)
    json: bool = option(False, "print JSON")
    attention_maps: str | None = option(
        None,
        "draw the attention of each picture in this folder, as NAME.svg",
        metavar="DIR",
        files=WRITTEN,
    )
    attention_layer: int = option(
        -1, "layer to draw, from 0, or -1 for the last", needs="attention_maps"
    )
    image_size: tuple[int, ...] | None = sides_option(
        None, "pixels a side, or height and width 192x256 (default: as in training)"
    )

    def check(self) -> None:
        """Check that an image has two sides, and that each map has its own file."""
        check_sides(self, "image_size")
        if self.attention_maps is None:
            return
        files: dict[str, str] = {}
        for image in self.images:
            other = files.setdefault(map_name(image), image)
            if other != image:
                raise ConfigError(
                    f"--attention-maps: {other} and {image} would have the same map, "
                    f"{map_name(image)}; rename one"
                )


def map_name(image: str) -> str:
    """Return the name of the file with the map of a picture."""
    return f"{Path(image).stem}.svg"


@settings
class EvaluateImagesSettings:
    """All settings of ``relu-nmt-vision-evaluate``."""

    path: str = CHECKPOINT
    no_progress_bar: bool = no_progress_bar_option()
    batch_size: int = option(EVALUATION_BATCH, "images of a batch", least=1)
    num_workers: int = like(TrainerConfig, "num_workers", 1)
    skip_damaged_images: bool = option(
        False, "leave out images that cannot be decoded, with a warning"
    )
    data: tuple[str, ...] = _data(
        "images, as for relu-nmt-vision-train (all sets but train)",
        metavar="DATA",
        files=IMAGES,
    )
    image_size: tuple[str, ...] = option(
        (),
        "pixels a side, or 192x256, several with commas (default: as in training)",
        metavar="N|YxX",
    )
    eval_crop_ratio: float | None = like(
        PreprocessingConfig,
        "eval_crop_ratio",
        None,
        "share of a side that the center crop keeps (default: as in training)",
    )
    classes: str | None = option(
        None, "file with the classes to choose among, one a line", files=READ
    )
    results: str | None = option(None, "write the results to FILE as JSON", files=WRITTEN)
    model: PrecisionOptions = group("model", PrecisionOptions, stored=False)

    @property
    def image_sides(self) -> list[tuple[int, ...] | None]:
        """The image sizes, each pixels a side or height and width. None: as in training."""
        entry = options_of(ClassifyImagesSettings)["image_size"]
        sides = [entry.read(text) for text in self.image_size]
        for size in sides:
            if len(size) > 2:
                raise ConfigError(f"{entry.with_value(size)}: {SIDES}")
        return sides or [None]

    def check(self) -> None:
        """Check the image sizes."""
        _ = self.image_sides

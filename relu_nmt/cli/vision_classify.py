"""Classify pictures of any size.

  relu-nmt-vision-classify photo.jpg another.png --path checkpoints/checkpoint_best.safetensors

A line for each: its name and the likeliest classes with their probabilities, separated by tabs.
"""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.config import READ, REQUIRED, option, settings
from relu_nmt.config.shared import PrecisionOptions
from relu_nmt.vision.config import check_sides, sides_option

EVALUATION_BATCH = 128
CHECKPOINT = option(
    REQUIRED,
    "checkpoint: the first word, unless --path names it",
    metavar="CKPT",
    positional=True,
    flags=("--path",),
    files=READ,
)


@settings
class ClassifyImagesSettings(PrecisionOptions):
    """All settings of ``relu-nmt-vision-classify``."""

    path: str = CHECKPOINT
    images: tuple[str, ...] = option(
        REQUIRED,
        "image files",
        metavar="PHOTO",
        positional=True,
        several=True,
        flags=("--data",),
        files=READ,
    )
    top_k: int = option(5, "number of classes to print for each picture", least=1)
    json: bool = option(False, "print JSON")
    image_size: tuple[int, ...] | None = sides_option(
        None, "pixels a side, or height and width 192x256 (default: as in training)"
    )

    def check(self) -> None:
        """Check that an image has two sides."""
        super().check()
        check_sides(self, "image_size")


main = RecipeCommand(
    "relu-nmt-vision-classify",
    __doc__,
    ClassifyImagesSettings,
    "evaluate_images.classify",
)

if __name__ == "__main__":
    raise SystemExit(main())

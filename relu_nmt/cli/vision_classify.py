"""relu-nmt-vision-classify: classify pictures with a trained model."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.image_settings import ClassifyImagesSettings

DESCRIPTION = """\
Classify pictures of any size:

  relu-nmt-vision-classify photo.jpg another.png --path checkpoints/checkpoint_best.safetensors

A line for each: its name and the likeliest classes with their probabilities, separated by tabs.
"""

main = RecipeCommand(
    "relu-nmt-vision-classify", DESCRIPTION, ClassifyImagesSettings, "classify_images"
)

if __name__ == "__main__":
    raise SystemExit(main())

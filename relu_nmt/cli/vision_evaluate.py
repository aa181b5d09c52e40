"""relu-nmt-vision-evaluate: top-1 and top-5 accuracy of an image classifier."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.image_settings import EvaluateImagesSettings

DESCRIPTION = """\
Evaluate an image classifier on folders of images, at its own size and others:

  relu-nmt-vision-evaluate images/test.zip --path checkpoints/checkpoint_best.safetensors \\
      --image-size 224,288,384 --results accuracy.json

Accuracies are in percent.
"""

main = RecipeCommand(
    "relu-nmt-vision-evaluate", DESCRIPTION, EvaluateImagesSettings, "evaluate_images"
)

if __name__ == "__main__":
    raise SystemExit(main())

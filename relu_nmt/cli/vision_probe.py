"""relu-nmt-vision-probe: probe the frozen features of an image model."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.image_settings import ProbeImagesSettings

DESCRIPTION = """\
Probe the features of a model on images of any classes, without training it:

  relu-nmt-vision-probe --path CKPT --train pets/train --test pets/test --method knn
  relu-nmt-vision-probe --path CKPT --train pets/train --test pets/test --method ridge --shots 5
  relu-nmt-vision-probe --path CKPT --train pets/train --test pets/test --method linear --epochs 100
  relu-nmt-vision-probe --path CKPT --train {pets,cars}/train --test {pets,cars}/test --method ridge

Accuracies are in percent; those of ridge are the mean over choices of 10 images of each class. For
several data sets the mean is also printed.
"""

main = RecipeCommand("relu-nmt-vision-probe", DESCRIPTION, ProbeImagesSettings, "probe_images")

if __name__ == "__main__":
    raise SystemExit(main())

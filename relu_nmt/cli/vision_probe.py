"""Probe the features of a model on images of any classes, without training it.

  relu-nmt-vision-probe --path CKPT --train pets/train --test pets/test --method knn
  relu-nmt-vision-probe --path CKPT --train pets/train --test pets/test --method ridge --shots 5
  relu-nmt-vision-probe --path CKPT --train pets/train --test pets/test --method linear --epochs 100
  relu-nmt-vision-probe --path CKPT --train {pets,cars}/train --test {pets,cars}/test --method ridge

Accuracies are in percent, with ridge the mean over choices of 10 images of each class. For several
data sets the mean is also printed.
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.vision_probe.settings import ProbeImagesSettings

main = Command(
    "relu-nmt-vision-probe", __doc__, ProbeImagesSettings, "relu_nmt.jobs.vision_probe.job:run"
)

if __name__ == "__main__":
    raise SystemExit(main())

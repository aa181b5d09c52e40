r"""Evaluate an image classifier on folders of images, at its own size and others.

  relu-nmt-vision-evaluate images/test.zip --path checkpoints/checkpoint_best.safetensors \
      --image-size 224,288,384 --results accuracy.json

Accuracies are in percent.
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.vision_evaluate.settings import EvaluateImagesSettings

main = Command(
    "relu-nmt-vision-evaluate",
    __doc__,
    EvaluateImagesSettings,
    "relu_nmt.jobs.vision_evaluate.job:run",
)

if __name__ == "__main__":
    raise SystemExit(main())

"""Classify pictures of any size.

  relu-nmt-vision-classify photo.jpg another.png --path checkpoints/checkpoint_best.safetensors

A line for each: its name and the likeliest classes with their probabilities, separated by tabs.
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.vision_evaluate.settings import ClassifyImagesSettings

main = Command(
    "relu-nmt-vision-classify",
    __doc__,
    ClassifyImagesSettings,
    "relu_nmt.jobs.vision_evaluate.job:classify",
)

if __name__ == "__main__":
    raise SystemExit(main())

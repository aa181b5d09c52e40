"""relu-nmt-vision-train: train an image classifier on class folders."""

import argparse
from collections.abc import Sequence

from relu_nmt.attention.config import AttentionBackendConfig, AttentionRegularizerConfig
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.cli.training_flags import TRAINER_OPTIONS, trainer_config
from relu_nmt.config import add_options, from_namespace
from relu_nmt.recipes.training_settings import ImageTrainingSettings
from relu_nmt.vision.architectures import architectures
from relu_nmt.vision.config import (
    ImageTaskOptions,
    PreprocessingConfig,
    VisionOptimizerConfig,
    VisionScheduleConfig,
    VisionTransformerConfig,
)

DESCRIPTION = """\
Train an image classifier on a folder or zip file that holds class folders (cat/1.jpg, dog/1.jpg),
or folders train and val that hold them:

  relu-nmt-vision-train images.zip --valid-fraction 0.1 --arch vit_ti --image-size 32 \\
      --patch-size 4 --attention sima --batch-size 128 --lr 1e-3 --warmup-updates 500 \\
      --max-epoch 30 --best-checkpoint-metric accuracy --save-dir checkpoints

The same command goes on where it was stopped. In the log wps is images a second, losses are in
bits, and accuracy (top-1) is in percent. Several processes:
torchrun --nproc-per-node N -m relu_nmt.cli.vision_train ... (the batch size is that of each).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-vision-train", DESCRIPTION, user_modules=True)
    parser.add_argument("data", help="folder or zip file of images")
    for config_class, title in (
        (ImageTaskOptions, "images and loss"),
        (VisionTransformerConfig, "model"),
        (AttentionRegularizerConfig, "attention regulariser"),
        (AttentionBackendConfig, "attention back end"),
        (PreprocessingConfig, "augmentation and normalisation"),
        (VisionOptimizerConfig, "optimiser"),
        (VisionScheduleConfig, "learning rate"),
        *TRAINER_OPTIONS,
    ):
        add_options(parser, config_class, title)
    return run_command(parser, _run, argv)


def read_settings(arguments: argparse.Namespace) -> ImageTrainingSettings:
    """Return the settings: typed flags, then those of ``--arch``, then the defaults.

    Raises:
        ConfigError: settings that contradict each other.
    """
    task = from_namespace(ImageTaskOptions, arguments)
    return ImageTrainingSettings(
        data=arguments.data,
        backend=from_namespace(AttentionBackendConfig, arguments),
        task=task,
        model=from_namespace(VisionTransformerConfig, arguments, architectures[task.arch]),
        regularizer=from_namespace(AttentionRegularizerConfig, arguments),
        trainer=trainer_config(arguments, VisionOptimizerConfig, VisionScheduleConfig),
        preprocessing=from_namespace(PreprocessingConfig, arguments),
    )


def _run(arguments: argparse.Namespace) -> int:
    settings = read_settings(arguments)
    from relu_nmt.recipes import train_images

    return train_images.run(settings).exit_code


if __name__ == "__main__":
    raise SystemExit(main())

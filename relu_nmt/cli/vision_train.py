"""relu-nmt-vision-train: train an image classifier on class folders."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relu_nmt.attention.backend_config import AttentionBackendConfig
from relu_nmt.attention.regularizer_config import AttentionRegularizerConfig
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.cli.training_run import (
    TRAINER_OPTIONS,
    checkpoint_to_continue,
    report_size,
    train_in_process_group,
    trainer_config,
)
from relu_nmt.config import add_options, from_namespace, to_dict
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.training.config import TrainerConfig
from relu_nmt.vision.architectures import architectures
from relu_nmt.vision.config import (
    ImageTaskOptions,
    PreprocessingConfig,
    VisionOptimizerConfig,
    VisionScheduleConfig,
    VisionTransformerConfig,
)

if TYPE_CHECKING:
    from relu_nmt.training.distributed import ProcessGroup
    from relu_nmt.training.trainer import Trainer
    from relu_nmt.vision.batches import ImageBatches
    from relu_nmt.vision.images import ImageSet
    from relu_nmt.vision.vision_transformer import VisionTransformer

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


@dataclass(frozen=True)
class Settings:
    """All settings of the command, by purpose; a checkpoint keeps all but the back end."""

    data: str
    backend: AttentionBackendConfig
    task: ImageTaskOptions
    model: VisionTransformerConfig
    regularizer: AttentionRegularizerConfig
    preprocessing: PreprocessingConfig
    trainer: TrainerConfig

    def to_args(self) -> dict[str, Any]:
        """Return them as what a checkpoint stores."""
        names = ("task", "model", "regularizer", "preprocessing", "trainer")
        return {"data": self.data, **{name: to_dict(getattr(self, name)) for name in names}}


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


def read_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings: typed flags, then those of ``--arch``, then the defaults.

    Raises:
        ConfigError: settings that contradict each other.
    """
    task = from_namespace(ImageTaskOptions, arguments)
    return Settings(
        arguments.data,
        from_namespace(AttentionBackendConfig, arguments),
        task,
        from_namespace(VisionTransformerConfig, arguments, architectures[task.arch]),
        from_namespace(AttentionRegularizerConfig, arguments),
        from_namespace(PreprocessingConfig, arguments),
        trainer_config(arguments, VisionOptimizerConfig, VisionScheduleConfig),
    )


def with_cosine_period(config: TrainerConfig, batches: int, processes: int) -> TrainerConfig:
    """Let the cosine schedule end with the training, after ``--max-epoch`` or ``--max-update``.

    Args:
        config: all settings of the trainer.
        batches: batches of an epoch, over all processes.
        processes: number of processes.
    """
    run, schedule = config.run, config.schedule
    limits = [run.max_update] if run.max_update else []
    if run.max_epoch:
        per_update = [run.update_freq_of(e + 1) * processes for e in range(run.max_epoch)]
        limits.append(sum(-(-batches // count) for count in per_update))
    if schedule.lr_scheduler != "cosine" or schedule.lr_period_updates > 0 or not limits:
        return config
    # The next period begins one update after the last one.
    period = float(max(1, min(limits) + 1 - schedule.warmup))
    return dataclasses.replace(
        config, schedule=dataclasses.replace(schedule, lr_period_updates=period)
    )


def _run(arguments: argparse.Namespace) -> int:
    settings = read_settings(arguments)
    return train_in_process_group(settings.trainer, lambda group: _Training(settings, group))


class _Training:
    """Makes the parts of an image training."""

    def __init__(self, settings: Settings, process: ProcessGroup) -> None:
        from relu_nmt.training.log import TrainingLog
        from relu_nmt.vision.augmentation import ImageTransform

        self.settings = settings
        self.process = process
        self.transform = ImageTransform(settings.preprocessing, settings.model.image_size)
        self.reporter = TrainingLog(settings.trainer.logging, quiet=not process.is_first)

    def trainer(self) -> Trainer:
        """Return the trainer of a new model."""
        from relu_nmt.training.batches import TrainingData
        from relu_nmt.training.trainer import Trainer
        from relu_nmt.vision.loading import describe_task
        from relu_nmt.vision.objective import ImageObjective

        settings = self.settings
        train_set, valid_sets = self._images()
        self._check_checkpoint(train_set)
        model = self._model(len(train_set.classes))
        train = self._batches(train_set, settings.task.batch_size, settings.trainer.run.seed)
        valid_size = settings.task.batch_size_valid or settings.task.batch_size
        trainer = Trainer(
            model,
            ImageObjective(model, settings.task.label_smoothing, settings.regularizer),
            TrainingData(
                train,
                {name: self._batches(s, valid_size, None) for name, s in valid_sets.items()},
                scorers={},
            ),
            with_cosine_period(settings.trainer, train.num_batches, self.process.world_size),
            {
                "model_config": to_dict(settings.model),
                "task": describe_task(train_set.classes, settings.preprocessing),
                "args": settings.to_args(),
            },
            self.process,
            self.reporter,
        )
        self.reporter.say(
            f"training on {self.process.world_size} device(s) ({self.process.device.type}); "
            f"images per device = {settings.task.batch_size}"
        )
        return trainer

    def _images(self) -> tuple[ImageSet, dict[str, ImageSet]]:
        """Return the training images and the validation sets by name.

        Raises:
            ConfigError: there is nothing to validate on.
            DataError: a path is missing, or its images do not fit the others.
        """
        from relu_nmt.vision.images import add_set, hold_out, open_images, with_classes_of

        options, data = self.settings.task, self.settings.data
        train, *others = open_images(data).values()
        held = []
        if options.valid_fraction:
            train, held_out = hold_out(train, options.valid_fraction, "valid")
            held = [held_out]
        if options.valid_data is not None:
            others = [_validation_part(open_images(p)) for p in options.valid_data.split(",")]
        # The log has lines of its own that are called train.
        sets = {"train": train}
        if not self.settings.trainer.validation.disable_validation:
            for images in held + others[: 1 if options.valid_data is None else None]:
                sets = add_set(sets, with_classes_of(images, train))
            if len(sets) == 1:
                raise ConfigError(
                    f"{data}: no images to validate on; give --valid-data PATH, "
                    "--valid-fraction 0.1, or --disable-validation"
                )
        for name, images in sets.items():
            self._report_images(name, images)
        return train, {name: images for name, images in sets.items() if images is not train}

    def _report_images(self, name: str, images: ImageSet) -> None:
        self.reporter.say(
            f"{images.tree.origin}: {name}: {len(images):,} images of {len(images.classes)} classes"
        )
        if images.num_ignored:
            self.reporter.say(
                f"{images.num_ignored:,} other files there are left out: no image by their names, "
                "or not in a class folder"
            )

    def _batches(self, images: ImageSet, batch_size: int, seed: int | None) -> ImageBatches:
        from relu_nmt.vision.batches import ImageBatches

        return ImageBatches(images, self.transform, batch_size, seed)

    def _model(self, num_classes: int) -> VisionTransformer:
        """Return a new model; its size is printed."""
        import torch

        from relu_nmt.attention.backends.choice import set_attention_backend
        from relu_nmt.vision.vision_transformer import VisionTransformer

        config, say = self.settings.model, self.reporter.say
        torch.manual_seed(self.settings.trainer.run.seed)
        model = VisionTransformer(config, num_classes)
        set_attention_backend(model, self.settings.backend.attention_backend)
        say(
            f"model: {self.settings.task.arch}, attention {config.attention}, "
            f"{config.num_tokens} tokens an image"
        )
        report_size(model, say)
        return model

    def _check_checkpoint(self, images: ImageSet) -> None:
        """Compare the checkpoint to go on from with these images.

        Raises:
            CheckpointError: it tells other classes apart.
        """
        from relu_nmt.training.checkpoint import read_metadata
        from relu_nmt.vision.loading import classes_of

        path = checkpoint_to_continue(self.settings.trainer)
        if path is None:
            return
        if classes_of(read_metadata(path), path) != tuple(images.classes):
            raise CheckpointError(
                f"{path}: trained with other classes than those of {self.settings.data}; choose "
                "another --save-dir for a fresh start"
            )


def _validation_part(sets: Mapping[str, ImageSet]) -> ImageSet:
    """Return what is to be validated on where train and val lie side by side, or the only set."""
    first, *others = sets.values()
    return others[0] if others else first


if __name__ == "__main__":
    raise SystemExit(main())

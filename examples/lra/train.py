r"""Train a classifier of a task of Long Range Arena, with any registered attention.

    python examples/lra/train.py lra/data --task listops-small --attention softmax \
        --save-dir lra/listops-small/softmax

Tasks: listops, pathfinder (generated in the folder), image, text, retrieval (from files in the
folder, see README.md). Each task has the size of the paper, or is smaller with -small. The same
command continues a training.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from classifier import ClassifierConfig, SequenceClassifier, SequenceObjective
from tasks import SPLITS, TASKS, SequenceBatches, open_task

from relu_nmt.cli.command import Command
from relu_nmt.config import REQUIRED, group, like, option, settings
from relu_nmt.config.shared import batch_size_option
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.jobs.training import training_run
from relu_nmt.modules.config import (
    AttentionRegularizerConfig,
    attention_preset_option,
)
from relu_nmt.training.batches import TrainingData
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.training.config import OptimizerConfig, TrainerConfig
from relu_nmt.training.save_dir import TrainingResult
from relu_nmt.training.schedules import ScheduleConfig

SMALL = "-small"


def preset(batch: int, steps: int, warmup: int, counts: Sequence[int], **changes: Any) -> dict:
    """Return the settings of a task: batch, updates, warm-up updates, and samples per split."""
    values: dict[str, Any] = {
        "batch_size": batch,
        "max_update": steps,
        "total_num_update": steps,
        "warmup_updates": warmup,
        "validate_interval_updates": max(1, steps // 10),
    }
    for split, count in zip(SPLITS, counts, strict=True):
        values[f"num_{split}"] = count
    return {**values, **changes}


def small(length: int, batch: int = 32) -> dict:
    """Return settings for one CPU core: shorter sequences and a higher learning rate."""
    counts = (9_600, 500, 500)
    return preset(batch, 600, 60, counts, length=length, lr="1e-3", validate_interval_updates=200)


PRESETS = {
    "listops": preset(32, 5_000, 1_000, (96_000, 2_000, 2_000)),
    "text": preset(32, 20_000, 8_000, (25_000, 25_000, 25_000)),
    "retrieval": preset(32, 30_000, 800, (147_086, 18_090, 17_437)),
    "image": preset(256, 35_000, 175, (45_000, 5_000, 10_000)),
    "pathfinder": preset(256, 62_400, 312, (160_000, 20_000, 20_000)),
    "listops-small": small(500),
    "text-small": small(1_000),
    "retrieval-small": small(1_000, batch=16),
    "image-small": small(1_024),
    "pathfinder-small": small(1_024),
}
"""Steps and batches of the public code of Nystromformer, also used by "Rethinking Attention"."""


@settings
class TaskOptions:
    """The task of a training, and its samples and batches."""

    attention_preset: str = attention_preset_option()
    task: str = option(
        "listops-small",
        f"{', '.join(TASKS)}. With {SMALL} sequences are shorter, and sequences and updates are "
        "fewer. Other flags win over this one",
        presets=PRESETS,
        metavar="NAME",
    )
    length: int | None = option(
        None,
        "longest sequence in tokens, padded to the next power of two. Expressions of "
        "listops have a quarter to all of this length (default: the paper's)",
        least=16,
    )
    num_train: int = option(9_600, "training samples (at most, if they are files)", least=1)
    num_valid: int = option(500, "samples to validate on", least=1)
    num_test: int = option(500, "samples to test on, at each validation", least=1)
    batch_size: int = batch_size_option(default=32, help="samples of a batch, per process")

    @property
    def name(self) -> str:
        """The name in ``TASKS``."""
        return self.task.removesuffix(SMALL)

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return self.length or TASKS[self.name].length

    @property
    def width(self) -> int:
        """The length of the padded sequences in tokens."""
        return 1 << (self.longest - 1).bit_length()

    def check(self) -> None:
        """Check that images are whole."""
        pixels = TASKS[self.name].length
        if self.name in ("image", "pathfinder") and self.longest != pixels:
            raise ConfigError(f"--length {self.length}: {self.task} has {pixels} pixels")


@settings
class LraOptimizerConfig(OptimizerConfig):
    """The optimizer's settings with the defaults of this benchmark."""

    adam_betas: tuple[float, ...] = like(OptimizerConfig, "adam_betas", (0.9, 0.999))
    adam_eps: float = like(OptimizerConfig, "adam_eps", 1e-6)


@settings
class LraScheduleConfig(ScheduleConfig):
    """The schedule's settings: the rate rises and falls in straight lines."""

    lr: tuple[float, ...] = like(ScheduleConfig, "lr", (1e-4,))
    lr_scheduler: str = like(ScheduleConfig, "lr_scheduler", "polynomial_decay")


@settings
class LraTrainerConfig(TrainerConfig):
    """The trainer's settings: the most accurate and the last model are kept."""

    best_checkpoint_metric: str = like(TrainerConfig, "best_checkpoint_metric", "accuracy")
    no_epoch_checkpoints: bool = like(TrainerConfig, "no_epoch_checkpoints", True)
    optimizer: LraOptimizerConfig = group("optimizer and averaged weights", LraOptimizerConfig)
    schedule: LraScheduleConfig = group("learning rate", LraScheduleConfig)


@settings
class LraSettings:
    """All settings of a training."""

    data: str = option(REQUIRED, "folder of the task's files", metavar="DATA", positional=True)
    task: TaskOptions = group("task", TaskOptions)
    model: ClassifierConfig = group("model", ClassifierConfig)
    regularizer: AttentionRegularizerConfig = group(
        "attention regularizer", AttentionRegularizerConfig
    )
    trainer: LraTrainerConfig = group("trainer", LraTrainerConfig)


def run(settings: LraSettings) -> TrainingResult:
    """Train up to a limit or a signal, from a checkpoint if the folder has one.

    Raises:
        DataError: files are missing or damaged.
        CheckpointError: the checkpoint to continue from belongs to another task.
    """
    with training_run(settings, progress=True) as training:
        options = settings.task
        described = {"name": "long_range_arena", "task": options.name, "length": options.longest}
        path = training.checkpoint
        if path is not None and read_metadata(path).get("task") != described:
            raise CheckpointError(
                f"{path}: of another task or length; choose another --save-dir for a fresh start"
            )
        counts = {split: getattr(options, f"num_{split}") for split in SPLITS}
        folder = Path(settings.data)
        samples = open_task(options.name, folder, options.longest, counts, training.say)
        for split, of_split in samples.items():
            training.say(f"{options.name}: {split}: {len(of_split):,} samples")
        model = training.new_model(
            lambda: SequenceClassifier(settings.model, TASKS[options.name], options.width),
            settings.trainer,
        )
        training.say(f"attention {settings.model.attention}, {options.width} tokens")
        training.say_size(model)
        batches = {}
        for split, of_split in samples.items():
            seed = settings.trainer.seed if split == "train" else None
            batches[split] = SequenceBatches(of_split, options.width, options.batch_size, seed)
        batch_size = f"samples per device = {options.batch_size}"
        objective = SequenceObjective(model, 0.0, settings.regularizer)
        data = TrainingData(batches.pop("train"), batches)
        return training.trainer(objective, data, settings, batch_size, described).train()


main = Command("lra", __doc__, LraSettings, run)

if __name__ == "__main__":
    sys.exit(main())

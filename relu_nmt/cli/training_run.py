"""What the training commands have in common, whatever they train."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from relu_nmt.config import from_namespace
from relu_nmt.optim.config import OptimizerConfig, ScheduleConfig
from relu_nmt.peak_memory import peak_gpu_bytes
from relu_nmt.training.config import (
    CheckpointConfig,
    DistributedConfig,
    EmaConfig,
    LoggingConfig,
    RunConfig,
    TrainerConfig,
    ValidationConfig,
)

if TYPE_CHECKING:
    from torch import nn

    from relu_nmt.training.distributed import ProcessGroup
    from relu_nmt.training.log import TrainingLog
    from relu_nmt.training.trainer import Trainer

SIGNAL_EXIT_CODE = 128
"""What a signal adds to, as in a shell."""

TRAINER_OPTIONS = (
    (RunConfig, "updates and limits"),
    (ValidationConfig, "validation"),
    (CheckpointConfig, "checkpoints"),
    (EmaConfig, "averaged weights"),
    (LoggingConfig, "log"),
    (DistributedConfig, "several processes"),
)
"""Options of every training command, with the titles that they have in ``--help``."""


def trainer_config(
    arguments: argparse.Namespace,
    optimizer: type[OptimizerConfig] = OptimizerConfig,
    schedule: type[ScheduleConfig] = ScheduleConfig,
) -> TrainerConfig:
    """Return the settings of the trainer.

    Args:
        arguments: the typed flags.
        optimizer: its config, which may have defaults of its own.
        schedule: the same of the learning rate.
    """
    return TrainerConfig(
        run=from_namespace(RunConfig, arguments),
        optimizer=from_namespace(optimizer, arguments),
        schedule=from_namespace(schedule, arguments),
        validation=from_namespace(ValidationConfig, arguments),
        checkpoint=from_namespace(CheckpointConfig, arguments),
        logging=from_namespace(LoggingConfig, arguments),
        ema=from_namespace(EmaConfig, arguments),
        distributed=from_namespace(DistributedConfig, arguments),
    )


class Run(Protocol):
    """A training whose parts are made."""

    reporter: TrainingLog

    def trainer(self) -> Trainer:
        """Return the trainer, ready to begin."""


def train_in_process_group(config: TrainerConfig, make_run: Callable[[ProcessGroup], Run]) -> int:
    """Join the other processes, make a training, run it; return the command's exit code."""
    from relu_nmt.training.distributed import join_processes

    process = join_processes(config.run.cpu)
    try:
        run = make_run(process)
        results = run.trainer().train()
        if (peak := peak_gpu_bytes()) is not None:
            run.reporter.say(f"peak GPU memory: {peak:,} bytes")
    finally:
        process.close()
    return 0 if results.signal is None else SIGNAL_EXIT_CODE + results.signal


def report_size(model: nn.Module, say: Callable[[str], None]) -> None:
    """Print the number of parameters."""
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    say(f"num. shared model params: {total:,} (num. trained: {trained:,})")


def checkpoint_to_continue(config: TrainerConfig) -> Path | None:
    """Return the checkpoint that training will start from, ``None`` for a fresh start."""
    from relu_nmt.training.checkpoint_manager import CheckpointFolder

    path = CheckpointFolder(config.checkpoint, config.validation).restore_path()
    finetuned = config.checkpoint.finetune_from_model
    return path or (Path(finetuned) if finetuned else None)

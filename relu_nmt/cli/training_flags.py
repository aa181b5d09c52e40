"""The flags that every training command has."""

import argparse

from relu_nmt.config import from_namespace
from relu_nmt.optim.config import OptimizerConfig, ScheduleConfig
from relu_nmt.training.config import (
    CheckpointConfig,
    DistributedConfig,
    EmaConfig,
    LoggingConfig,
    RunConfig,
    TrainerConfig,
    ValidationConfig,
)

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

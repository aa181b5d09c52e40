"""The parts of a training that have a state of their own: what a checkpoint stores and restores."""

from dataclasses import dataclass

import torch
from torch import nn

from relu_nmt.optim.optimizers import build_optimizer
from relu_nmt.optim.schedules import Schedule, build_schedule
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.ema import WeightAverage
from relu_nmt.training.precision import Precision
from relu_nmt.training.stopping import Patience


@dataclass
class Components:
    """Model and optimiser with everything that steers them.

    Args:
        model: the model whose weights are trained and stored.
        optimizer: of its trainable parameters.
        schedule: learning rate.
        precision: number format and loss scale.
        patience: early stopping.
        average: averaged weights, None without EMA.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    precision: Precision
    patience: Patience
    average: WeightAverage | None


def build_components(model: nn.Module, config: TrainerConfig, process: ProcessGroup) -> Components:
    """Return the parts for a model that is on its device already.

    Raises:
        ConfigError: settings that contradict each other or the device.
    """
    maximize = config.validation.maximize
    return Components(
        model,
        build_optimizer(model, config.optimizer),
        build_schedule(config.schedule, config.run.max_update, maximize),
        Precision(config.run, process.device, process.world_size),
        Patience(config.run.patience, maximize),
        WeightAverage(model, config.ema) if config.ema.store_ema else None,
    )

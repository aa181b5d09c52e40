"""What a checkpoint stores of a running training: where it stands, and the parts with a state."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from relu_nmt.errors import CheckpointError
from relu_nmt.optim.optimizers import build_optimizer
from relu_nmt.optim.schedules import Schedule, build_schedule
from relu_nmt.training.averaging import WeightAverage
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.meters import Meters
from relu_nmt.training.precision import Precision
from relu_nmt.training.stopping import Patience


@dataclass
class TrainingState:
    """Where a training stands: all that an exact resume needs besides tensors.

    Args:
        epoch: the epoch being trained, from 1.
        batch_offset: batches of it that are done, over all processes.
        num_batches: batches of it; 0 before it is planned.
        num_updates: updates made.
        seconds: time of running, over all resumes.
        best_metric: name of the metric that ``best_score`` is of.
        best_score: best validation score so far.
        patience: best score and validations since, of early stopping.
        schedule: state of the learning-rate schedule.
        precision: state of the loss scale.
        inner: meters since the last log line.
        epoch_meters: meters since the start of the epoch.

    Example:
        >>> state = TrainingState(epoch=2, batch_offset=10, num_batches=40)
        >>> state.begin_epoch(20), state.batch_offset
        (True, 5)
    """

    epoch: int = 1
    batch_offset: int = 0
    num_batches: int = 0
    num_updates: int = 0
    seconds: float = 0.0
    best_metric: str | None = None
    best_score: float | None = None
    patience: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, Any] = field(default_factory=dict)
    inner: Meters = field(default_factory=Meters)
    epoch_meters: Meters = field(default_factory=Meters)

    def begin_epoch(self, num_batches: int) -> bool:
        """Note the number of batches; if it changed since the checkpoint, move the offset along.

        Returns:
            whether it changed in the middle of an epoch, so that the position is approximate.
        """
        changed = self.batch_offset > 0 and self.num_batches not in (0, num_batches)
        if changed:
            self.batch_offset = round(self.batch_offset * num_batches / self.num_batches)
        self.num_batches = num_batches
        return changed

    def next_epoch(self) -> None:
        """Move to the start of the next epoch."""
        self.epoch += 1
        self.batch_offset = 0
        self.num_batches = 0
        self.epoch_meters = Meters()

    def is_better(self, score: float, maximize: bool) -> bool:
        """Say whether a validation score is at least as good as the best so far."""
        if math.isnan(score):
            return False
        if self.best_score is None:
            return True
        return score >= self.best_score if maximize else score <= self.best_score

    def to_dict(self) -> dict[str, Any]:
        """Return the state as what JSON can hold."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("inner", "epoch_meters"):
            values[name] = values[name].state()
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str) -> "TrainingState":
        """Return the state that :meth:`to_dict` described.

        Raises:
            CheckpointError: ``values`` is not such a description; names the file ``origin``.
        """
        try:
            meters = {n: Meters.from_state(values[n]) for n in ("inner", "epoch_meters")}
            return cls(**{**values, **meters})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{origin}: its training state cannot be read ({error}); it was written by "
                "another version of relu_nmt, use it with --finetune-from-model"
            ) from error


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
    optimizer: Optimizer
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

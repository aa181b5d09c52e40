"""The position and counts of a running training, and the average of its weights."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.config.stored import checked
from relu_nmt.errors import IN_BRACKETS, CheckpointError, reporting
from relu_nmt.training import distributed
from relu_nmt.training.checkpoint import weights_alone_advice
from relu_nmt.training.config import OptimizerConfig, TrainerConfig
from relu_nmt.training.log import Meters


@dataclass
class TrainingState:
    """The position and counts of a training: all that an exact resume needs besides tensors."""

    epoch: int = 1
    batch_offset: int = 0  # batches of this epoch that are done, over all processes
    num_batches: int = 0  # batches of this epoch. 0 before it is planned
    num_updates: int = 0
    seconds: float = 0.0  # time of running, over all resumes
    best_metric: str | None = None
    best_score: float | None = None
    best_subset: str | None = None  # validation set of the best score. None in earlier checkpoints
    best_signature: str | None = None  # None for losses, and in earlier checkpoints
    bad_validations: int = 0  # validations since a better score, for early stopping
    schedule: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, float] = field(default_factory=dict)  # state of the loss scale
    inner: Meters = field(default_factory=Meters)  # meters since the last log line
    epoch_meters: Meters = field(default_factory=Meters)
    # A signal came with the last update, so that validation and saving that were due are missing.
    interrupted: bool = False

    def begin_epoch(self, num_batches: int) -> bool:
        """Set the number of batches. Return True, and scale the offset, if it changed midway."""
        changed = self.batch_offset > 0 and self.num_batches not in (0, num_batches)
        if changed:
            self.batch_offset = round(self.batch_offset * num_batches / self.num_batches)
        self.num_batches = num_batches
        return changed

    def begin_next_epoch(self) -> None:
        """Move to the beginning of the next epoch, which is not planned yet."""
        self.epoch += 1
        self.epoch_meters = Meters()
        self.batch_offset = self.num_batches = 0

    def add_score(self, score: float, maximize: bool) -> bool:
        """Count a validation score. Return True if it is at least as good as the best so far."""
        best = self.best_score
        sign = 1 if maximize else -1
        better = not math.isnan(score) and (best is None or sign * score > sign * best)
        self.bad_validations += 1
        if better:
            self.best_score = score
            self.bad_validations = 0
        return better or score == best

    def reset(self, config: TrainerConfig) -> None:
        """Set back what the flags ``--reset-...`` name, and the best score of another metric."""
        if config.reset_optimizer:
            self.num_updates = 0
        if config.reset_dataloader:
            self.epoch = 1
            self.batch_offset = self.num_batches = 0
        if config.reset_meters:
            self.inner = Meters()
            self.epoch_meters = Meters()
            self.seconds = 0.0
        is_other = self.best_metric != config.best_checkpoint_metric
        if config.reset_meters or config.reset_optimizer or is_other:
            self.best_metric = config.best_checkpoint_metric
            self.best_score = None
            self.bad_validations = 0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str) -> "TrainingState":
        """Return the state that ``dataclasses.asdict`` described. Errors name ``origin``."""
        stored = dict(values)
        advice = f"it was written by another version of relu_nmt; {weights_alone_advice(origin)}"
        text = f"{origin}: its training state cannot be read"
        wrong = (KeyError, TypeError, ValueError)
        with reporting(text, CheckpointError, wrong, IN_BRACKETS, advice):
            # Checkpoints of earlier versions hold the best score a second time, together with the
            # count.
            patience = stored.pop("patience", None)
            if patience:
                stored["bad_validations"] = patience["bad_validations"]
            # All versions have both meters. A state without them is damaged.
            return checked(cls, {name: stored[name] for name in ("inner", "epoch_meters")} | stored)


class WeightAverage:
    """The average a <- decay * a + (1 - decay) * w of a model's weights. Empty without EMA.

    At averaging number t the decay is at most (1 + t) / (10 + t), so that the average of a short
    training forgets the random start. With ``--ema-start-update``, fairseq's way to do so, the
    decay is always ``--ema-decay``. The statistics of BatchNorm are averaged with the parameters.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self._config = config
        self._parameters = averaged_tensors(model) if config.store_ema else {}
        self._averages = {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self, num_updates: int) -> None:
        """Add the weights after update ``num_updates`` (from 1) to the average."""
        config = self._config
        if not self._averages or num_updates % config.ema_update_freq:
            return
        decay = config.ema_decay
        if num_updates < config.ema_start_update:
            decay = 0.0
        elif config.ema_start_update == 0:
            count = num_updates // config.ema_update_freq
            decay = min(decay, (1 + count) / (10 + count))
        averages = [distributed.local_part(tensor) for tensor in self._averages.values()]
        weights = [distributed.local_part(tensor) for tensor in self._parameters.values()]
        torch._foreach_lerp_(averages, weights, weight=1 - decay)

    @contextmanager
    def applied(self) -> Iterator[dict[str, Tensor]]:
        """Put the average into the model inside the block. Yield the raw weights."""
        self._swap()
        try:
            yield self._averages
        finally:
            self._swap()

    @torch.no_grad()
    def restart(self) -> None:
        """Make the average equal to the model's present weights."""
        for name, parameter in self._parameters.items():
            self._averages[name].copy_(parameter)

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchange weights and averages in place, since sharding reads this memory."""
        for name, parameter in self._parameters.items():
            weights = distributed.local_part(parameter)
            average = distributed.local_part(self._averages[name])
            copy = weights.clone()
            weights.copy_(average)
            average.copy_(copy)


def averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that an average covers: parameters and the statistics of BatchNorm."""
    return dict(model.named_parameters()) | running_statistics(model)


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the running means and variances of BatchNorm by name, where it tracks them."""
    statistics: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d) and module.track_running_stats:
            statistics[f"{name}.running_mean"] = module.get_buffer("running_mean")
            statistics[f"{name}.running_var"] = module.get_buffer("running_var")
    return statistics

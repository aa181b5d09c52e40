"""What a checkpoint stores of a running training, from there to the checkpoint, and back."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.errors import CheckpointError
from relu_nmt.optim.optimizers import build_optimizer
from relu_nmt.optim.schedules import build_schedule
from relu_nmt.training.averaging import WeightAverage
from relu_nmt.training.checkpoint import Checkpoint, check_fit, load_checkpoint, load_weights
from relu_nmt.training.config import CheckpointConfig, TrainerConfig
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.meters import Meters
from relu_nmt.training.precision import Precision

OPTIMIZER_PREFIX = "optimizer."
RAW_PREFIX = "train.model."


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
        bad_validations: validations since a better score, for early stopping.
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
    bad_validations: int = 0
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

    def add_score(self, score: float, maximize: bool) -> bool:
        """Take in a validation score; say whether it is at least as good as the best so far."""
        best, sign = self.best_score, 1 if maximize else -1
        better = not math.isnan(score) and (best is None or sign * score > sign * best)
        self.bad_validations = 0 if better else self.bad_validations + 1
        if better:
            self.best_score = score
        return better or score == best

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
            known = {**values, **meters}
            # Earlier checkpoints hold the best score a second time, together with the count.
            if patience := known.pop("patience", None):
                known["bad_validations"] = patience["bad_validations"]
            return cls(**known)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{origin}: its training state cannot be read ({error}); it was written by "
                "another version of relu_nmt, use it with --finetune-from-model"
            ) from error


class Components:
    """Model and optimiser with everything that steers them.

    Args:
        model: the model whose weights are trained and stored, on its device already.
        config: settings of optimiser, schedule, precision and average.
        process: this process.

    Raises:
        ConfigError: settings that contradict each other or the device.
    """

    def __init__(self, model: nn.Module, config: TrainerConfig, process: ProcessGroup) -> None:
        self.model = model
        self.optimizer = build_optimizer(model, config.optimizer)
        maximize = config.validation.maximize
        self.schedule = build_schedule(config.schedule, config.run.max_update, maximize)
        self.precision = Precision(config.run, process.device, process.world_size)
        self.average = WeightAverage(model, config.ema) if config.ema.store_ema else None

    def decoding_weights(self) -> AbstractContextManager[dict[str, Tensor]]:
        """Return the context in which the model has the weights to validate and decode with.

        It yields the raw weights where these are others, averaged ones.
        """
        return nullcontext({}) if self.average is None else self.average.applied()


@contextmanager
def snapshot(
    parts: Components,
    state: TrainingState,
    description: Mapping[str, Any],
    with_optimizer: bool = True,
) -> Iterator[Checkpoint]:
    """Give the checkpoint of a running training, to be written inside the ``with`` block.

    Its tensors are the live ones, not copies.

    Args:
        parts: what is stored.
        state: where training stands.
        description: what else the checkpoint tells (``model_config``, ``task``, ``args``).
        with_optimizer: store the optimiser's tensors too.
    """
    state.schedule = parts.schedule.state()
    state.precision = parts.precision.state()
    metadata = {**description, "training_state": state.to_dict()}
    training = optimizer_tensors(parts.model, parts.optimizer) if with_optimizer else {}
    with parts.decoding_weights() as raw:
        training |= {RAW_PREFIX + name: tensor for name, tensor in raw.items()}
        yield Checkpoint(parts.model.state_dict(), metadata, training)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's tensors as ``optimizer.PARAMETER.KEY``."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{OPTIMIZER_PREFIX}{names[parameter]}.{key}": torch.as_tensor(value)
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    }


def restore(
    parts: Components,
    path: Path | None,
    config: CheckpointConfig,
    best_metric: str,
    say: Callable[[str], None],
) -> TrainingState:
    """Bring the parts to where a checkpoint left off, and return the state.

    Args:
        parts: changed in place.
        path: the checkpoint to go on from; None for a fresh start.
        config: what is reset, and the model to start from.
        best_metric: name of the metric that makes a checkpoint the best.
        say: prints a message.

    Raises:
        CheckpointError: the file cannot be read or does not fit.
    """
    fresh = TrainingState(best_metric=best_metric)
    if path is None and config.finetune_from_model:
        origin = config.finetune_from_model
        load_weights(parts.model, load_checkpoint(origin).model_tensors, origin)
        _average_from_here(parts)
        say(f"start from the weights of {origin}")
        return fresh
    if path is None:
        return fresh
    checkpoint = load_checkpoint(path, with_training_state=True)
    if "training_state" not in checkpoint.metadata:
        raise CheckpointError(
            f"{path}: holds weights only (averaged or exported), so training cannot go on from "
            "it; start from them with --finetune-from-model"
        )
    state = TrainingState.from_dict(checkpoint.metadata["training_state"], str(path))
    _restore_tensors(parts, checkpoint, config, str(path))
    if not config.reset_optimizer:
        parts.precision.load_state(state.precision)
        if not config.reset_lr_scheduler:
            parts.schedule.load_state(state.schedule)
    _reset(state, config, best_metric)
    say(f"go on from {path} (epoch {state.epoch} @ {state.num_updates} updates)")
    return state


def _restore_tensors(
    parts: Components, checkpoint: Checkpoint, config: CheckpointConfig, origin: str
) -> None:
    load_weights(parts.model, checkpoint.model_tensors, origin)
    # The stored model is the averaged one, if there is an average.
    _average_from_here(parts)
    raw = {
        name.removeprefix(RAW_PREFIX): tensor
        for name, tensor in checkpoint.training_tensors.items()
        if name.startswith(RAW_PREFIX)
    }
    if raw:
        parameters = dict(parts.model.named_parameters())
        check_fit(parameters, raw, origin)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(raw[name])
    if not config.reset_optimizer:
        _load_optimizer(parts.model, parts.optimizer, checkpoint.training_tensors, origin)


def _average_from_here(parts: Components) -> None:
    if parts.average is not None:
        parts.average.restart()


def _reset(state: TrainingState, config: CheckpointConfig, best_metric: str) -> None:
    """Forget what the flags tell to forget."""
    if config.reset_optimizer:
        state.num_updates = 0
    if config.reset_dataloader:
        state.epoch, state.batch_offset, state.num_batches = 1, 0, 0
    if config.reset_meters:
        state.inner, state.epoch_meters, state.seconds = Meters(), Meters(), 0.0
    if config.reset_meters or config.reset_optimizer or state.best_metric != best_metric:
        state.best_metric, state.best_score, state.bad_validations = best_metric, None, 0


def _load_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    training_tensors: Mapping[str, Tensor],
    origin: str,
) -> None:
    """Restore the optimiser's tensors; its settings stay those of the flags."""
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for name, tensor in training_tensors.items():
        if name.startswith(OPTIMIZER_PREFIX):
            parameter, key = name.removeprefix(OPTIMIZER_PREFIX).rsplit(".", 1)
            by_parameter.setdefault(parameter, {})[key] = tensor
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    keys = {key for tensors in by_parameter.values() for key in tensors}
    shapes = {names[parameter]: parameter.shape for parameter in order}
    fits = by_parameter.keys() == shapes.keys() and all(
        tensors.keys() == keys and all(t.shape in ((), shapes[name]) for t in tensors.values())
        for name, tensors in by_parameter.items()
    )
    if not fits:
        raise CheckpointError(
            f"{origin}: the checkpoint holds no optimiser state for this model; add "
            "--reset-optimizer, or start from its weights with --finetune-from-model"
        )
    state = {index: by_parameter[names[parameter]] for index, parameter in enumerate(order)}
    # load_state_dict copies the tensors to the parameters' devices.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})

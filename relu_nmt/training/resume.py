"""From a running training to a checkpoint, and back."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.errors import CheckpointError
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint
from relu_nmt.training.config import CheckpointConfig
from relu_nmt.training.meters import Meters
from relu_nmt.training.state import Components, TrainingState

OPTIMIZER_PREFIX = "optimizer."
RAW_PREFIX = "train.model."
SHOWN_NAMES = 3


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
    state.patience = parts.patience.state()
    metadata = {**description, "training_state": state.to_dict()}
    training = optimizer_tensors(parts.model, parts.optimizer) if with_optimizer else {}
    if parts.average is None:
        yield Checkpoint(parts.model.state_dict(), metadata, training)
        return
    with parts.average.applied() as raw:
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
    if not config.reset_meters:
        parts.patience.load_state(state.patience)
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
        _check_fit(parameters, raw, origin)
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
        state.best_metric, state.best_score = best_metric, None


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Copy stored weights into the model.

    Raises:
        CheckpointError: names or shapes differ.
    """
    _check_fit(model.state_dict(), tensors, origin)
    model.load_state_dict(tensors)


def _check_fit(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], origin: str) -> None:
    """Compare names and shapes.

    Raises:
        CheckpointError: they differ.
    """
    unlike = [
        f"{name} {list(tensors[name].shape)} instead of {list(own[name].shape)}"
        for name in own
        if name in tensors and own[name].shape != tensors[name].shape
    ]
    missing = [name for name in own if name not in tensors]
    foreign = [name for name in tensors if name not in own]
    for what, names in (("has", unlike), ("lacks", missing), ("has also", foreign)):
        if names:
            more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
            raise CheckpointError(
                f"{origin}: the checkpoint does not fit the model: it {what} "
                f"{', '.join(names[:SHOWN_NAMES])}{more}; give the same --arch, model flags and "
                "data, or another --save-dir for a fresh start"
            )


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

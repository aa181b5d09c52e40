"""From a running training to a checkpoint."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.training.checkpoint import Checkpoint
from relu_nmt.training.components import Components
from relu_nmt.training.state import TrainingState

OPTIMIZER_PREFIX = "optimizer."
RAW_PREFIX = "train.model."


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
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{OPTIMIZER_PREFIX}{names[parameter]}.{key}": torch.as_tensor(value)
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    }

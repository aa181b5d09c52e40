"""Averaged weights: a moving average during training, and the mean of several checkpoints."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.training.checkpoint import SUFFIX, Checkpoint, load_checkpoint
from relu_nmt.training.config import EmaConfig


class WeightAverage:
    """The average a <- decay * a + (1 - decay) * w of a model's parameters.

    Args:
        model: the model; its buffers are not averaged.
        config: decay and when to average.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.ones_(model.weight)
        >>> average = WeightAverage(model, EmaConfig(store_ema=True, ema_decay=0.9))
        >>> _ = nn.init.zeros_(model.weight)
        >>> average.update(num_updates=1)
        >>> with average.applied():
        ...     print(round(model.weight.item(), 3))
        0.9
    """

    def __init__(self, model: nn.Module, config: EmaConfig) -> None:
        self._parameters = dict(model.named_parameters())
        self._config = config
        self._averages = {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self, num_updates: int) -> None:
        """Take in the weights after update ``num_updates`` (from 1)."""
        if num_updates % self._config.ema_update_freq:
            return
        share = 1.0 if num_updates < self._config.ema_start_update else 1 - self._config.ema_decay
        torch._foreach_lerp_(
            list(self._averages.values()), list(self._parameters.values()), weight=share
        )

    @contextmanager
    def applied(self) -> Iterator[dict[str, Tensor]]:
        """Put the averages into the model; yields the raw weights, which come back afterwards."""
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

    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.data, self._averages[name] = self._averages[name], parameter.data


def average_checkpoints(paths: Sequence[str | os.PathLike[str]]) -> Checkpoint:
    """Return a checkpoint for decoding with the mean weights, computed in float64.

    What is no floating-point number is taken from the first checkpoint; so are the settings and
    the task. Weights that are tied stay tied.

    Args:
        paths: one checkpoint or more; one at a time is in memory.

    Raises:
        ConfigError: no checkpoint given.
        CheckpointError: a file is missing or damaged, or of another model or task.
    """
    if not paths:
        raise ConfigError("no checkpoints to average; give --inputs")
    first = load_checkpoint(paths[0])
    sums: dict[int, Tensor] = {}  # by the identity of the first checkpoint's tensor: tied ones once
    for path in paths:
        checkpoint = first if path is paths[0] else load_checkpoint(path)
        _check_same_model(first, paths[0], checkpoint, path)
        added = set()
        for name, own in first.model_tensors.items():
            if id(own) in added or not own.is_floating_point():
                continue
            added.add(id(own))
            value = checkpoint.model_tensors[name].double()
            sums[id(own)] = sums[id(own)] + value if id(own) in sums else value
    means = {
        id(own): (sums[id(own)] / len(paths)).to(own.dtype) if id(own) in sums else own
        for own in first.model_tensors.values()
    }
    metadata = {k: v for k, v in first.metadata.items() if k != "training_state"}
    metadata["averaged"] = [os.path.basename(path) for path in paths]
    return Checkpoint({k: means[id(own)] for k, own in first.model_tensors.items()}, metadata)


def _check_same_model(
    first: Checkpoint,
    first_path: str | os.PathLike[str],
    other: Checkpoint,
    path: str | os.PathLike[str],
) -> None:
    for key, what in (("model_config", "model settings"), ("task", "dictionaries or tokenisation")):
        if first.metadata.get(key) != other.metadata.get(key):
            raise CheckpointError(
                f"{path}: other {what} than {first_path}; only checkpoints of one model on one "
                "data folder can be averaged"
            )
    own, others = (
        {name: tensor.shape for name, tensor in checkpoint.model_tensors.items()}
        for checkpoint in (first, other)
    )
    if own != others:
        different = sorted(own.items() ^ others.items())[0][0]
        raise CheckpointError(f"{path}: the weight '{different}' does not fit that of {first_path}")


def last_checkpoints(
    folder: str | os.PathLike[str], count: int, by_updates: bool, upper_bound: int | None = None
) -> list[Path]:
    """Return the last ``count`` checkpoints of a folder, the newest first.

    Args:
        folder: the ``--save-dir`` of a training run.
        count: how many.
        by_updates: those saved by updates (``checkpoint_3_15000``), not by epochs
            (``checkpoint7``).
        upper_bound: last epoch or update to take; None for any.

    Raises:
        CheckpointError: the folder is missing or has fewer such checkpoints.
    """
    pattern = re.compile(
        (r"checkpoint_\d+_(\d+)" if by_updates else r"checkpoint(\d+)") + re.escape(SUFFIX)
    )
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot read the folder: {error.strerror}") from error
    numbered = [(int(m[1]), name) for name in names if (m := pattern.fullmatch(name))]
    numbered = [pair for pair in numbered if upper_bound is None or pair[0] <= upper_bound]
    if len(numbered) < count:
        kind = "updates" if by_updates else "epochs"
        bound = "" if upper_bound is None else f" up to {upper_bound}"
        raise CheckpointError(
            f"{folder}: {len(numbered)} checkpoints saved by {kind}{bound}, but {count} are asked "
            "for"
        )
    return [Path(folder) / name for _, name in sorted(numbered, reverse=True)[:count]]

"""The moving average of the weights during training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

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

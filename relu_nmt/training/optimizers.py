"""Optimisers, made from parameter groups and their options, and the average of the weights.

One of your own is most easily a subclass of ``torch.optim.Optimizer``, made with (groups, options);
without a ``Config`` it is made with the groups only. The trainer sets the learning rate of every
group before each step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.config import option, settings
from relu_nmt.config.classes import chosen_part
from relu_nmt.training import OPTIMIZERS
from relu_nmt.training.config import OptimizerConfig
from relu_nmt.training.distributed import own_part


@settings(flags=False)
class AdamConfig:
    """Options of :class:`Adam`."""

    beta1: float = option(0.9, "decay rate of the first moment", least=0, below=1)
    beta2: float = option(0.98, "decay rate of the second moment", least=0, below=1)
    eps: float = option(1e-8, "added to the denominator", above=0)


@OPTIMIZERS.register("adamw")
@OPTIMIZERS.register("adam")
class Adam(torch.optim.AdamW):
    """Adam with decoupled weight decay: w <- w - lr * (weight_decay * w + Adam's step).

    Args:
        groups: parameters with their ``weight_decay``.
        config: decay rates of the moments, and eps.

    Reference: Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2. fairseq's
    adam is the same up to eps, which it adds before the second moment's bias correction.
    """

    Config = AdamConfig

    def __init__(self, groups: list[dict[str, Any]], config: AdamConfig) -> None:
        # The fused kernel exists for these devices and floating-point weights only.
        fused = all(
            p.device.type in ("cpu", "cuda") and p.is_floating_point()
            for group in groups
            for p in group["params"]
        )
        betas = (config.beta1, config.beta2)
        super().__init__(groups, lr=0.0, betas=betas, eps=config.eps, fused=fused)


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimiser of the model's trainable parameters.

    Weight decay acts on all of them, as in fairseq, except on those whose attribute
    ``no_weight_decay`` is true.

    Raises:
        ConfigError: unknown optimiser or option.
    """
    decayed: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            (exempt if getattr(parameter, "no_weight_decay", False) else decayed).append(parameter)
    groups = [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in ((decayed, config.weight_decay), (exempt, 0.0))
        if parameters
    ]
    # Pass options only to optimisers that have settings of their own.
    make, options = chosen_part(config, "optimizer")
    optimizer: torch.optim.Optimizer = make(groups) if options is None else make(groups, options)
    return optimizer


class WeightAverage:
    """The average a <- decay * a + (1 - decay) * w of a model's weights; empty without EMA.

    Args:
        model: the model; the statistics of BatchNorm are averaged with its parameters.
        config: start, interval and decay of the average.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.ones_(model.weight)
        >>> average = WeightAverage(model, OptimizerConfig(store_ema=True, ema_decay=0.9))
        >>> _ = nn.init.zeros_(model.weight)
        >>> average.update(num_updates=1)
        >>> with average.applied():
        ...     print(round(model.weight.item(), 3))
        0.9
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self._parameters: dict[str, Tensor] = averaged_tensors(model) if config.store_ema else {}
        self._config = config
        self._averages = {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self, num_updates: int) -> None:
        """Add the weights after update ``num_updates`` (from 1) to the average."""
        if not self._averages or num_updates % self._config.ema_update_freq:
            return
        share = 1.0 if num_updates < self._config.ema_start_update else 1 - self._config.ema_decay
        averages, weights = (
            [own_part(tensor) for tensor in tensors.values()]
            for tensors in (self._averages, self._parameters)
        )
        torch._foreach_lerp_(averages, weights, weight=share)

    @contextmanager
    def applied(self) -> Iterator[dict[str, Tensor]]:
        """Put the average into the model inside the block; yields the raw weights."""
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
        """Exchange weights and averages in place: sharding gathers from the same memory."""
        for name, parameter in self._parameters.items():
            weights, average = own_part(parameter), own_part(self._averages[name])
            kept = weights.clone()
            weights.copy_(average)
            average.copy_(kept)


def averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that an average covers: parameters and the statistics of BatchNorm."""
    found: dict[str, Tensor] = dict(model.named_parameters())
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            for own in ("running_mean", "running_var"):
                found[f"{name}.{own}"] = module.get_buffer(own)
    return found

"""Optimisers, made from parameter groups and their options.

One of your own is most easily a subclass of ``torch.optim.Optimizer``, made with (groups, options);
without a ``Config`` it is made with the groups only. The trainer sets the learning rate of every
group before each step.
"""

from typing import Any

import torch
from torch import nn

from relu_nmt.config import option, settings
from relu_nmt.config.classes import chosen_part
from relu_nmt.training import OPTIMIZERS
from relu_nmt.training.config import OptimizerConfig


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
    make, options = chosen_part(config, "optimizer")
    optimizer: torch.optim.Optimizer = make(groups) if options is None else make(groups, options)
    return optimizer

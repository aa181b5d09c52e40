"""Optimisers, built from their settings."""

import torch
from torch import nn

from relu_nmt.training.optimization import OPTIMIZERS, OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimiser of the model's trainable parameters.

    Weight decay acts on all of them, as in fairseq, except on those whose attribute
    ``no_weight_decay`` is true.

    Raises:
        ConfigError: unknown optimiser.
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
    return OPTIMIZERS.get(config.optimizer)(groups, config)


@OPTIMIZERS.register("adamw")
@OPTIMIZERS.register("adam")
def adam(groups: list[dict], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay: w <- w - lr * (weight_decay * w + Adam's step).

    Reference: Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2. fairseq's
    adam is the same up to eps, which it adds before the second moment's bias correction.
    """
    beta1, beta2 = config.adam_betas
    # torch's one-pass kernel is not for every device and type.
    fused = all(
        p.device.type in ("cpu", "cuda") and p.is_floating_point()
        for group in groups
        for p in group["params"]
    )
    return torch.optim.AdamW(groups, lr=0.0, betas=(beta1, beta2), eps=config.adam_eps, fused=fused)

import torch

from relu_nmt.config import option, settings
from relu_nmt.training import OPTIMIZERS


@settings(flags=False)
class SignConfig:
    momentum: float = option(0.9, "decay rate of the averaged gradient", least=0, below=1)


@OPTIMIZERS.register("sign")
class SignDescent(torch.optim.Optimizer):
    """w <- w - lr * sign(the averaged gradient)."""

    Config = SignConfig

    def __init__(self, groups, config):
        super().__init__(groups, {"lr": 0.0, "momentum": config.momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    average = state.setdefault("average", torch.zeros_like(weight))
                    average.lerp_(weight.grad, 1 - group["momentum"])
                    weight.sub_(group["lr"] * average.sign())

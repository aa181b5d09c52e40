"""The optimizers, their groups of parameters, and the parts of a model that do not learn.

An optimizer of your own is most easily a subclass of ``torch.optim.Optimizer``. It is called with
(groups, options), and without a ``Config`` with the groups only. Before each step the update sets
the learning rate of every group.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.config import option
from relu_nmt.config.classes import with_own_config
from relu_nmt.config.parts import chosen_part
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.training import OPTIMIZERS
from relu_nmt.training.checkpoint import weights_alone_advice, without_prefix
from relu_nmt.training.config import OptimizerConfig
from relu_nmt.training.distributed import local_part, part_like

PREFIX = "optimizer."
"""Beginning of the names of an optimizer's tensors in a checkpoint."""


@OPTIMIZERS.register("adamw")
@OPTIMIZERS.register("adam")
@with_own_config
class Adam(torch.optim.AdamW):
    """Adam with decoupled weight decay: w <- w - lr * (weight_decay * w + Adam's step).

    Reference: Kingma and Ba 2015, algorithm 1. Loshchilov and Hutter 2019, algorithm 2. fairseq's
    adam is the same up to eps, which it adds before the second moment's bias correction.
    """

    beta1: float = option(0.9, "decay rate of the first moment", least=0, below=1)
    beta2: float = option(0.98, "decay rate of the second moment", least=0, below=1)
    eps: float = option(1e-8, "added to the denominator", above=0)

    def __init__(self, groups: list[dict[str, Any]], config: Any) -> None:
        # The fused kernel exists for these devices and floating-point weights only.
        fused = True
        for group in groups:
            for p in group["params"]:
                fused = fused and p.device.type in ("cpu", "cuda") and p.is_floating_point()
        betas = (config.beta1, config.beta2)
        super().__init__(groups, lr=0.0, betas=betas, eps=config.eps, fused=fused)


@OPTIMIZERS.register("adafactor")
@with_own_config
class Adafactor(torch.optim.Adafactor):
    """PyTorch's Adafactor: squared gradients by row and column, steps relative to the weights.

    Sharded weights are a ConfigError.

    Reference: Shazeer and Stern 2018, algorithm 5.
    """

    beta2_decay: float = option(-0.8, "exponent of the step, for the decay of squares", below=0)
    eps: float = option(1e-3, "least size of the weights to which the step is relative", above=0)
    clip: float = option(1.0, "largest root mean square of a step divided by the rate", above=0)

    def __init__(self, groups: list[dict[str, Any]], config: Any) -> None:
        for group in groups:
            if any(local_part(p) is not p for p in group["params"]):
                raise ConfigError(
                    "--optimizer adafactor needs whole matrices; leave out --ddp-backend "
                    "fully_sharded"
                )
        eps = (None, config.eps)
        super().__init__(groups, lr=0.0, beta2_decay=config.beta2_decay, eps=eps, d=config.clip)


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer of the model's trainable parameters.

    As in fairseq, weight decay acts on all of them, except those with a true ``no_weight_decay``.
    Each group has its ``lr_scale``, from ``--lr-scales``.
    """
    scale_of: dict[nn.Parameter, float] = {}
    for part, scale in config.scale_by_part.items():
        scale_of |= dict.fromkeys(parameters_of(model, part, "--lr-scales"), scale)
    # Group by exemption and rate, the exempt ones last.
    by_kind: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            exempt = getattr(parameter, "no_weight_decay", False)
            by_kind.setdefault((exempt, scale_of.get(parameter, 1.0)), []).append(parameter)
    groups = []
    for exempt, scale in sorted(by_kind):
        decay = 0.0 if exempt else config.weight_decay
        parameters = by_kind[exempt, scale]
        groups.append({"params": parameters, "weight_decay": decay, "lr_scale": scale})
    # Pass options only to optimizers that have settings of their own.
    make, options = chosen_part(config, "optimizer")
    arguments = [groups] if options is None else [groups, options]
    optimizer: torch.optim.Optimizer = make(*arguments)
    return optimizer


def freeze(model: nn.Module, config: OptimizerConfig) -> None:
    """Exclude the parts of ``--freeze`` from training. Their weights stay as they are."""
    for part in config.freeze:
        for parameter in parameters_of(model, part, "--freeze"):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f"--freeze {','.join(config.freeze)}: nothing is left to train; name fewer"
        )


def parameters_of(model: nn.Module, part: str, flag: str) -> list[nn.Parameter]:
    """Return the parameters whose names begin with ``part``, or of all ``embeddings``."""
    if part == "embeddings":
        parameters: list[nn.Parameter] = []
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                parameters += module.parameters()
    else:
        named = model.named_parameters(remove_duplicate=False)
        parameters = [p for name, p in named if f"{name}.".startswith(f"{part}.")]
    if not parameters:
        parts = dict.fromkeys(name.split(".")[0] for name, _ in model.named_parameters())
        raise ConfigError(f"{flag} {part}: the model's parts are embeddings, {', '.join(parts)}")
    return parameters


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's tensors as ``optimizer.PARAMETER.KEY``."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            tensors[f"{PREFIX}{names[parameter]}.{key}"] = torch.as_tensor(value)
    return tensors


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], path: Path
) -> None:
    """Restore the tensors of :func:`optimizer_tensors` from the training tensors of a checkpoint.

    Frozen parts are left out. New parts begin without state. Tensors that do not fit the model are
    a CheckpointError.
    """
    # Group the tensors by parameter, and keep the tensors of trained ones.
    stored: dict[str, dict[str, Tensor]] = {}
    for name, tensor in without_prefix(tensors, PREFIX).items():
        owner, key = name.rsplit(".", 1)
        stored.setdefault(owner, {})[key] = tensor
    parameters = dict(model.named_parameters())
    index_of: dict[nn.Parameter, int] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            index_of[parameter] = len(index_of)
    trained = {name: parameters[name] for name in stored if parameters.get(name) in index_of}
    # Adafactor has other tensors for vectors than for matrices.
    keys: dict[bool, set[str]] = {}
    for name, parameter in trained.items():
        keys.setdefault(parameter.dim() > 1, set()).update(stored[name])
    # Compare names and shapes. A parameter without a gradient in any update has no state.
    fits = bool(stored) and stored.keys() <= parameters.keys()
    for name, parameter in trained.items():
        fits = fits and stored[name].keys() == keys[parameter.dim() > 1]
        for tensor in stored[name].values():
            # A scalar fits, and a tensor of the weight's shape with some dimensions averaged.
            sizes = zip(tensor.shape, parameter.shape, strict=False)
            fits = fits and tensor.dim() in (0, parameter.dim())
            fits = fits and all(size in (1, full_size) for size, full_size in sizes)
    if not fits:
        raise CheckpointError(
            f"{path}: the checkpoint holds no optimizer state for this model; add "
            f"--reset-optimizer, or {weights_alone_advice(path)}"
        )
    # Number the parameters as PyTorch does, cutting tensors to this process's part.
    state: dict[int, dict[str, Tensor]] = {}
    for name, parameter in trained.items():
        values = state[index_of[parameter]] = {}
        for key, tensor in stored[name].items():
            values[key] = part_like(tensor, parameter)
    # load_state_dict copies the tensors to the parameters' devices.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})

"""Weights, gradients and optimiser in parts, one a process: models that do not fit one device.

PyTorch's FSDP2 does it: each layer is a unit whose weights are gathered when it runs, and given
back afterwards. All code here takes models that are not sharded, too, and leaves them as they are.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:  # importing these takes as long as torch itself: it is left to who shards
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def process_mesh(device: torch.device, world_size: int) -> "DeviceMesh":
    """Return all processes in a row, for :func:`shard`."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (world_size,))


def shard(objective: nn.Module, device: torch.device, mesh: "DeviceMesh") -> nn.Module:
    """Leave each process its part of the weights of an objective, on its device; returns it.

    Only one layer at a time is whole on the device meanwhile. Every parameter is cut along its
    first dimension, and is the same parameter with its attributes under the same name afterwards.

    Args:
        objective: gives the loss; its weights are the same in all processes.
        device: where this process computes.
        mesh: the processes.

    Reference: Zhao et al. 2023, "PyTorch FSDP: experiences on scaling fully sharded data parallel";
    Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models",
    section 5 (stage 3).
    """
    from torch.distributed.fsdp import fully_shard

    attributes = {name: dict(vars(one)) for name, one in objective.named_parameters()}
    for unit in [*_layers(objective), objective]:
        fully_shard(unit, mesh=mesh)
    objective.to(device)  # what belongs to no unit; all parts lose their attributes by it
    for name, parameter in objective.named_parameters():
        vars(parameter).update(attributes[name])
    return objective


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of the outermost lists of layers; lists of stages are looked into."""
    for child in module.children():
        if isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _layers(child)


def is_sharded(module: nn.Module) -> "TypeGuard[FSDPModule]":
    """Say whether processes hold parts of a module's weights."""
    return hasattr(module, "unshard")


def _is_part(tensor: Tensor) -> "TypeGuard[DTensor]":
    return hasattr(tensor, "full_tensor")


def exchanging(objective: nn.Module, exchange: bool) -> AbstractContextManager[None]:
    """Return the context of a forward and backward pass.

    Args:
        objective: of one process or several.
        exchange: processes exchange their gradients; otherwise each adds to its own, which of a
            sharded model are whole until then.
    """
    if is_sharded(objective):
        objective.set_requires_gradient_sync(exchange)
    elif isinstance(objective, DistributedDataParallel) and not exchange:
        return objective.no_sync()
    return nullcontext()


@contextmanager
def whole_weights(objective: nn.Module) -> Iterator[None]:
    """Give each process all weights inside the block, so that each may run what it likes.

    All processes enter and leave it together.
    """
    units = [module for module in objective.modules() if is_sharded(module)]
    for unit in units:
        unit.unshard()
        unit.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for number, unit in enumerate(units):
            # The first one, the objective's own, is needed again as soon as backward begins.
            unit.set_reshard_after_forward(number > 0, recurse=False)
        give_back(objective)


def give_back(objective: nn.Module) -> None:
    """Give back gathered weights: they would outlive a change of the parts."""
    for module in objective.modules():
        if is_sharded(module):
            module.reshard()


def own_part(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor, without a copy."""
    return tensor.to_local() if _is_part(tensor) else tensor


def part_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return this process's part of a whole tensor, cut as another one of this shape is.

    Args:
        tensor: the same in all processes.
        other: perhaps in parts; scalars are not.
    """
    if not _is_part(other) or not tensor.dim():
        return tensor
    from torch.distributed.tensor import distribute_tensor

    tensor = tensor.to(other.device)
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)


def whole_tensors(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Return tensors as wholes, gathered from the processes' parts, of which all must call this.

    What is one tensor under several names stays one.

    Args:
        tensors: by name, the same names in all processes.
        keep: this process wants them; otherwise it only helps, and what it gets is not whole.
    """
    whole: dict[int, Tensor] = {}
    for tensor in tensors.values():
        value = tensor.detach()
        if _is_part(value) and id(tensor) not in whole:
            # One at a time is whole on the device.
            gathered = value.full_tensor()
            value = gathered.cpu() if keep else gathered.new_empty(0)
        whole.setdefault(id(tensor), value)
    return {name: whole[id(tensor)] for name, tensor in tensors.items()}

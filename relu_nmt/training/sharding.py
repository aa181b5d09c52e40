"""Sharded weights, gradients and optimiser, a part in each process, for models above one device.

PyTorch's FSDP2 gathers the weights of each layer when it runs, and frees them afterwards. All
functions here also take models that are not sharded, and leave these unchanged.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:  # these take as long to import as torch; only sharded training imports them
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def process_mesh(device: torch.device, world_size: int) -> "DeviceMesh":
    """Return a mesh of all processes in a row, for :func:`shard`."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (world_size,))


def shard(objective: nn.Module, device: torch.device, mesh: "DeviceMesh") -> nn.Module:
    """Reduce an objective to this process's part of its weights, on the device; return it.

    Every parameter is cut along its first dimension, and keeps its name and attributes. Only one
    layer at a time is whole on the device.

    Args:
        objective: the loss; its weights are the same in all processes.
        device: the device of this process.
        mesh: all processes.

    Reference: Zhao et al. 2023, "PyTorch FSDP: experiences on scaling fully sharded data parallel";
    Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models",
    section 5 (stage 3).
    """
    from torch.distributed.fsdp import fully_shard

    # Keep the attributes, such as no_weight_decay, to restore them at the end.
    attributes = {name: dict(vars(one)) for name, one in objective.named_parameters()}
    # Shard layers before the whole, which then takes only the remaining weights.
    for unit in [*_layers(objective), objective]:
        fully_shard(unit, mesh=mesh)
    objective.to(device)  # moves tensors outside of all units; parameters lose their attributes
    for name, parameter in objective.named_parameters():
        vars(parameter).update(attributes[name])
    return objective


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers in the outermost lists of layers, inside of lists of stages too."""
    for child in module.children():
        if isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _layers(child)


def is_sharded(module: nn.Module) -> "TypeGuard[FSDPModule]":
    """Return True if each process holds a part of a module's weights."""
    return hasattr(module, "unshard")


def _is_part(tensor: Tensor) -> "TypeGuard[DTensor]":
    return hasattr(tensor, "full_tensor")


def exchanging(objective: nn.Module, exchange: bool) -> AbstractContextManager[None]:
    """Return the context of a forward and backward pass.

    Args:
        objective: the (wrapped) objective.
        exchange: processes exchange their gradients; if False each adds to its own, which are whole
            in a sharded model until the exchange.
    """
    if is_sharded(objective):
        objective.set_requires_gradient_sync(exchange)
    elif isinstance(objective, DistributedDataParallel) and not exchange:
        return objective.no_sync()
    return nullcontext()


@contextmanager
def whole_weights(objective: nn.Module) -> Iterator[None]:
    """Give each process all weights inside the block, so that each may run on its own.

    All processes enter and leave the block together.
    """
    units = [module for module in objective.modules() if is_sharded(module)]
    # Gather each unit's weights, and keep them after its forward pass.
    for unit in units:
        unit.unshard()
        unit.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for number, unit in enumerate(units):
            # The first unit, the objective itself, is needed again when backward begins.
            unit.set_reshard_after_forward(number > 0, recurse=False)
        give_back(objective)


def give_back(objective: nn.Module) -> None:
    """Free gathered weights, which would go stale when the parts change."""
    for module in objective.modules():
        if is_sharded(module):
            module.reshard()


def own_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, without a copy."""
    return tensor.to_local() if _is_part(tensor) else tensor


def part_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return this process's part of a whole tensor, cut in the same way as ``other``.

    Args:
        tensor: the same in all processes.
        other: a tensor of this shape, which may be sharded; scalars are not cut.
    """
    if not _is_part(other) or not tensor.dim():
        return tensor
    from torch.distributed.tensor import distribute_tensor

    tensor = tensor.to(other.device)
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)


def whole_tensors(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Return whole tensors, gathered from the parts of all processes, which all call this.

    One tensor under several names stays one tensor.

    Args:
        tensors: tensors by name, with the same names in all processes.
        keep: return whole tensors to this process; otherwise it only sends its parts.
    """
    whole: dict[int, Tensor] = {}
    for tensor in tensors.values():
        value = tensor.detach()
        if _is_part(value) and id(tensor) not in whole:
            # Only one tensor at a time is whole on the device.
            gathered = value.full_tensor()
            value = gathered.cpu() if keep else gathered.new_empty(0)
        whole.setdefault(id(tensor), value)
    return {name: whole[id(tensor)] for name, tensor in tensors.items()}

"""The processes that train together, one or several of torchrun, and the signals to them.

With ``--ddp-backend fully_sharded`` each process holds only its part of weights, gradients and
optimizer. PyTorch's FSDP2 gathers the weights of each layer when it runs, and frees them
afterwards. The functions for it leave models that are not sharded unchanged.
"""

import ctypes
import gc
import importlib
import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from relu_nmt.errors import ConfigError, TrainingError
from relu_nmt.io.process import BETWEEN_LOOKS
from relu_nmt.training.config import ALLOW_UNUSED, FULLY_SHARDED

if TYPE_CHECKING:  # importing them takes as long as torch, so only sharded training does
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

M_TRIM_THRESHOLD = -1  # in glibc's malloc.h
M_MMAP_THRESHOLD = -3
MOST_PROCESSES = 1_000_000
MOST_WAITING = 300.0  # seconds that a process waits for other processes
QUIET_WAITING = 3.0  # seconds before it says so
LOST_PEER = "Connection closed by peer"  # the message of gloo after another process has ended


@dataclass
class ProcessGroup:
    """This process among those that train together, and its device. Rank 0 writes and logs."""

    rank: int
    world_size: int
    device: torch.device
    _meshes: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def is_first(self) -> bool:
        """True if this process writes files and logs."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes (in place)."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Set each tensor to its mean over all processes."""
        if self.world_size > 1 and tensors:
            means = self.sum(torch.cat([tensor.flatten() for tensor in tensors])) / self.world_size
            parts = means.split([tensor.numel() for tensor in tensors])
            for tensor, mean in zip(tensors, parts, strict=True):
                tensor.copy_(mean.view_as(tensor))

    def gather(self, value: Any) -> list[Any]:
        """Return every process's value, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def wrap(self, objective: nn.Module, backend: str) -> nn.Module:
        """Return the objective on the device, with gradients averaged in the backward pass."""
        if self.world_size == 1:
            return objective.to(self.device)
        if backend == FULLY_SHARDED:
            if hasattr(objective, "unshard"):  # sharded already
                return objective
            from torch.distributed.device_mesh import init_device_mesh

            self._meshes.append(init_device_mesh(self.device.type, (self.world_size,)))
            return shard(objective, self.device, self._meshes[-1])
        with warnings.catch_warnings():
            # Each process keeps its own buffers, since growing tables may differ in size. The flag
            # that PyTorch 2.13 advises instead would send the buffers once.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return DistributedDataParallel(
                objective.to(self.device),
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=backend in ALLOW_UNUSED,
            )

    def close(self) -> None:
        """Leave the group and end its threads before Python ends. First drop wrapped objectives."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()
            for mesh in self._meshes:  # PyTorch's caches keep them
                getattr(mesh, "_pg_registry", {}).clear()
            gc.collect()  # sharded models refer to themselves


def join_processes(cpu: bool) -> ProcessGroup:
    """Return this process's group, which torchrun's variables describe. ``cpu`` uses no GPU."""
    on_gpu = torch.cuda.is_available() and not cpu
    device = torch.device("cpu")
    backend = "gloo"
    if on_gpu:
        device = torch.device("cuda", 0)
        backend = "nccl"
    else:
        keep_freed_memory()
    world_size = _environment_number("WORLD_SIZE", 1, MOST_PROCESSES, default=1)
    if world_size == 1:
        return ProcessGroup(0, 1, device)
    rank = _environment_number("RANK", 0, world_size - 1)
    local_rank = _environment_number("LOCAL_RANK", 0, world_size - 1, default=rank)
    if on_gpu:
        # Give each process of the machine its own GPU.
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"process {local_rank} of this machine has no GPU: there are "
                f"{torch.cuda.device_count()}; lower torchrun's --nproc-per-node, or add --cpu"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    # Import it before the group exists: default arguments in it would hold the group for ever.
    importlib.import_module("torch.distributed.nn")
    # The agent of torchrun has a store and watches its processes. Processes without an agent meet
    # here.
    store = None if "TORCHELASTIC_USE_AGENT_STORE" in os.environ else _meet(rank, world_size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    return ProcessGroup(rank, world_size, device)


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed CPU tensors: the system would clear it at every reuse."""
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, -1)


def _environment_number(name: str, smallest: int, largest: int, default: int | str = "") -> int:
    text = os.environ.get(name, str(default))
    with suppress(ValueError):
        if smallest <= int(text) <= largest:
            return int(text)
    raise _wrong_variable(name, f"{smallest} to {largest}")


def _wrong_variable(name: str, expected: str) -> ConfigError:
    return ConfigError(
        f"WORLD_SIZE is set, but {name} is '{os.environ.get(name, '')}'; start several processes "
        f"with torchrun --nproc-per-node N, which sets it ({expected}), or unset WORLD_SIZE"
    )


def _meet(rank: int, world_size: int) -> dist.TCPStore:
    """Return the store of process 0 when all processes are there. Print for which ones it waits."""
    host = os.environ.get("MASTER_ADDR", "")
    if not host:
        raise _wrong_variable("MASTER_ADDR", "the machine of process 0")
    port = _environment_number("MASTER_PORT", 1, 65535)
    address = f"MASTER_ADDR {host}, MASTER_PORT {port}"
    store: dist.TCPStore | None = None
    missing = [0]
    is_told = False
    started = time.monotonic()
    # Poll, since a call that waits does not react to Ctrl-C.
    while missing:
        seconds = time.monotonic() - started
        missing_text = f"process {', '.join(map(str, missing))} of {world_size}"
        if seconds > QUIET_WAITING and not is_told:
            is_told = True
            print(
                f"process {rank} waits for {missing_text} ({address})", file=sys.stderr, flush=True
            )
        if seconds > MOST_WAITING:
            raise TrainingError(
                f"{missing_text} did not come in {MOST_WAITING:.0f} s ({address}); "
                "start all processes"
            )
        # A store that finds no server writes the trace of its C++ code to standard error.
        if store is None and rank > 0 and not _answers(host, port):
            time.sleep(BETWEEN_LOOKS)
            continue
        try:
            if store is None:
                timeout = timedelta(seconds=QUIET_WAITING)
                store = dist.TCPStore(host, port, None, rank == 0, timeout, wait_for_workers=False)
                store.set(str(rank), "")
            missing = [other for other in range(world_size) if not store.check([str(other)])]
        except dist.DistError as error:
            if rank == 0:
                reason = str(error).partition("\n")[0]
                raise ConfigError(f"{address}: cannot be used: {reason}") from error
        if missing:
            time.sleep(BETWEEN_LOOKS)
    assert store is not None, "process 0 has come"
    store.set_timeout(dist.default_pg_timeout)
    return store


def _answers(host: str, port: int) -> bool:
    """Return whether a server accepts connections there."""
    with suppress(OSError), socket.create_connection((host, port), timeout=QUIET_WAITING):
        return True
    return False


def shard(objective: nn.Module, device: torch.device, mesh: "DeviceMesh") -> nn.Module:
    """Cut an objective down to this process's part of its weights, on the device. Return it.

    Every parameter is cut along its first dimension, and keeps its name and attributes. Only one
    layer at a time is whole on the device.

    Reference: Zhao et al. 2023, "PyTorch FSDP: experiences on scaling fully sharded data parallel".
    Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models",
    section 5 (stage 3).
    """
    from torch.distributed.fsdp import fully_shard

    # Keep the attributes, such as no_weight_decay, to restore them at the end.
    attributes = {name: dict(vars(parameter)) for name, parameter in objective.named_parameters()}
    # Shard layers first. The whole objective then takes only the remaining weights.
    for unit in [*_layers(objective), objective]:
        fully_shard(unit, mesh=mesh)
    objective.to(device)  # also tensors outside of all units. Parameters lose their attributes here
    for name, parameter in objective.named_parameters():
        vars(parameter).update(attributes[name])
    return objective


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers in the outermost lists of layers, inside of lists of stages too."""
    for child in module.children():
        # Containers have no forward, which sharding needs.
        containers = (nn.ModuleList, nn.ModuleDict)
        if isinstance(module, nn.ModuleList) and not isinstance(child, containers):
            yield child
        else:
            yield from _layers(child)


def is_sharded(module: nn.Module) -> "TypeGuard[FSDPModule]":
    """Return True if each process holds a part of a module's weights."""
    return hasattr(module, "unshard")


def _is_part(tensor: Tensor) -> "TypeGuard[DTensor]":
    return hasattr(tensor, "full_tensor")


def exchanging(objective: nn.Module, exchange: bool) -> AbstractContextManager[None]:
    """Return the context of a pass. Processes ``exchange`` gradients in it, or keep them."""
    if is_sharded(objective):
        objective.set_requires_gradient_sync(exchange)
    elif isinstance(objective, DistributedDataParallel) and not exchange:
        return objective.no_sync()
    return nullcontext()


@contextmanager
def whole_weights(objective: nn.Module) -> Iterator[None]:
    """Give each process all weights inside the block. All processes enter and leave it together."""
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
    """Free gathered weights, which become wrong when the parts change."""
    for module in objective.modules():
        if is_sharded(module):
            module.reshard()


def local_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, without a copy."""
    return tensor.to_local() if _is_part(tensor) else tensor


def part_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return this process's part of a whole tensor, cut like ``other``. Scalars are not cut."""
    if not _is_part(other) or not tensor.dim():
        return tensor
    from torch.distributed.tensor import distribute_tensor

    tensor = tensor.to(other.device)
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)


def whole_tensors(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Return whole tensors, gathered from all processes, or empty ones without ``keep``."""
    tensor_of: dict[int, Tensor] = {}
    for tensor in tensors.values():
        value = tensor.detach()
        if _is_part(value) and id(tensor) not in tensor_of:
            # Only one tensor at a time is whole on the device.
            gathered = value.full_tensor()
            value = gathered.cpu() if keep else gathered.new_empty(0)
        tensor_of.setdefault(id(tensor), value)
    return {name: tensor_of[id(tensor)] for name, tensor in tensors.items()}

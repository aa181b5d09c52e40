"""The processes that train together, one or those of torchrun, and the signals to them."""

import ctypes
import gc
import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from relu_nmt.errors import ConfigError
from relu_nmt.io.process import handle_stop_signals
from relu_nmt.training.config import ALLOW_UNUSED, FULLY_SHARDED
from relu_nmt.training.sharding import process_mesh, shard

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
LOST_PEER = "Connection closed by peer"
"""The message of gloo after another process has ended."""


@dataclass
class ProcessGroup:
    """This process among those that train together, and its device.

    Args:
        rank: number of this process; 0 writes and logs.
        world_size: number of processes.
        device: the device of this process.

    Example:
        >>> process = ProcessGroup(0, 1, torch.device("cpu"))
        >>> process.is_first, process.gather("a share")
        (True, ['a share'])
    """

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
            means = torch.cat([tensor.flatten() for tensor in tensors])
            dist.all_reduce(means)
            means /= self.world_size
            for tensor, mean in zip(
                tensors, means.split([t.numel() for t in tensors]), strict=True
            ):
                tensor.copy_(mean.view_as(tensor))

    def gather(self, value: Any) -> list[Any]:
        """Return every process's value, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, value: Any) -> Any:
        """Return the value of process 0 in all processes."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def wrap(self, objective: nn.Module, backend: str) -> nn.Module:
        """Return the objective on the device, its gradients averaged in the backward pass.

        Args:
            objective: gives the loss; the same in all processes.
            backend: ``--ddp-backend``.
        """
        if self.world_size == 1:
            return objective.to(self.device)
        if backend == FULLY_SHARDED:
            self._meshes.append(process_mesh(self.device, self.world_size))
            return shard(objective, self.device, self._meshes[-1])
        with warnings.catch_warnings():
            # Each process keeps its own buffers, as tables that grow may differ in size. The flag
            # that PyTorch 2.13 advises instead would send them once.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return DistributedDataParallel(
                objective.to(self.device),
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=backend in ALLOW_UNUSED,
            )

    def close(self) -> None:
        """Leave the group and end its threads, which would abort Python if they worked at its end.

        The threads end with the last reference to the group, so drop wrapped objectives before.
        """
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()
            for mesh in self._meshes:  # PyTorch's caches keep them
                getattr(mesh, "_pg_registry", {}).clear()
            gc.collect()  # sharded models refer to themselves


def join_processes(cpu: bool) -> ProcessGroup:
    """Return this process's group, from torchrun's environment variables if they are set.

    Args:
        cpu: compute on the CPU even if there is a GPU.

    Raises:
        ConfigError: the environment variables are incomplete, or there are fewer GPUs than
            processes.
    """
    on_gpu = torch.cuda.is_available() and not cpu
    if not on_gpu:
        keep_freed_memory()
    world_size = _environment_number("WORLD_SIZE", 1)
    if world_size == 1:
        return ProcessGroup(0, 1, torch.device("cuda:0" if on_gpu else "cpu"))
    # Number the process overall, and on its machine, to choose its GPU.
    rank = _environment_number("RANK", None)
    local_rank = _environment_number("LOCAL_RANK", rank)
    device = torch.device("cpu")
    if on_gpu:
        # Give each process of the machine a GPU of its own.
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"process {local_rank} of this machine has no GPU: there are "
                f"{torch.cuda.device_count()}; lower torchrun's --nproc-per-node, or add --cpu"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    # Import it before the group exists: defaults of its functions would hold the group for ever.
    importlib.import_module("torch.distributed.nn")
    dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=world_size)
    return ProcessGroup(rank, world_size, device)


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed CPU tensors; does nothing with another C library.

    By default glibc returns memory to the system after each update, and the system clears it again.
    The memory of tensors above 32 MB, glibc's own limit, still goes back.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, -1)


def _environment_number(name: str, default: int | None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise ConfigError(
            f"WORLD_SIZE is set, but {name} is '{text or ''}'; start several processes with "
            "torchrun --nproc-per-node N"
        ) from None


class SignalWatch:
    """Records STOP_SIGNALS, so that the update can be finished and a checkpoint written.

    A second SIGINT interrupts at once. Only the main thread of a program can receive signals; in
    other threads this does nothing.

    Example:
        >>> with SignalWatch() as watch:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(watch.received)
        15
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._old: dict[int, Any] = {}

    def __enter__(self) -> "SignalWatch":
        if threading.current_thread() is threading.main_thread():
            self._old = handle_stop_signals(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.received = number

"""Back ends of attention: each mechanism declares its own, and one function chooses.

A back end is a run-time choice (``--attention-backend``), never part of a checkpoint.
``reference``, ``blockwise`` and ``triton`` compute pointwise attention, ``rows`` mechanisms whose
weights need whole rows of scores. ``tuned`` holds the measured constants.
"""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from relu_nmt.attention.kernels import tuned
from relu_nmt.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from relu_nmt.attention.base import Attention


@dataclass(frozen=True)
class Backend:
    """One way to compute a mechanism.

    A mechanism's ``backends`` map names to these, the fastest first. The last one is the
    reference, which solves every problem.

    Args:
        solve: takes a problem of the mechanism and returns its answer.
        supports: returns True if it can solve a problem; otherwise the next back end gets it.
        preferred: returns True if ``auto`` may take it for a problem.
        require: raises a ConfigError if it cannot run on a device (``None``: on any), although the
            user named it.
        centers: True if it subtracts the means of centered scores itself.
    """

    solve: Callable[[Any], Any]
    supports: Callable[[Any], bool] = lambda problem: True
    preferred: Callable[[Any], bool] = lambda problem: True
    require: Callable[[torch.device | None], None] = lambda device: None
    centers: bool = False


def add_backend(mechanism: "type[Attention]", name: str, backend: Backend) -> None:
    """Put a back end before the other ones of a mechanism and of its subclasses."""
    mechanism.backends = {name: backend, **mechanism.backends}


def choose_backend(attention: "Attention", problem: Any) -> Backend:
    """Return the back end for a problem: the one that the user named, or the fastest for ``auto``.

    If it cannot solve the problem (only the reference returns weights, for example), the next one
    of the mechanism gets it.

    Raises:
        ConfigError: the mechanism has no such back end, or it cannot run here.
        MissingExtraError: it is not installed.
    """
    name, backends = attention.backend, attention.backends
    reached = name == "auto"
    if not reached:
        check_backend(attention, name)
        backends[name].require(problem.q.device)
    # Start at the named back end, and take the first that can.
    for each, backend in backends.items():
        reached = reached or each == name
        # Ask ``supports`` last: it takes longer.
        if reached and (name != "auto" or backend.preferred(problem)) and backend.supports(problem):
            break
    return backend


def check_backend(attention: "Attention", name: str) -> None:
    """Raise a ConfigError unless the mechanism has a back end of this name, or it is ``auto``."""
    names = ["auto", *(attention.backends or ["reference"])]
    if name not in names:
        raise ConfigError(
            f"--attention-backend {name}: {attention.name} has no such back end; choose one of "
            + ", ".join(names)
        )


def set_attention_backend(model: nn.Module, name: str) -> None:
    """Let the back end called ``name`` compute every attention in ``model``.

    Raises:
        ConfigError: an attention has no such back end.
        MissingExtraError: it is not installed.
    """
    from relu_nmt.attention.base import Attention

    for module in model.modules():
        if isinstance(module, Attention):
            check_backend(module, name)
            # Refuse a missing package now, not in the first batch.
            if name in module.backends:
                module.backends[name].require(None)
            module.backend = name


def many_pairs(problem: Any) -> bool:
    """Return True if the matrix of weights is so large that blocks are faster."""
    num_queries, num_keys = problem.q.size(2), problem.k.size(2)
    if problem.q.is_cpu:
        return min(num_queries, num_keys) >= tuned.CPU_LEAST_LENGTH
    return num_queries * num_keys >= tuned.GPU_LEAST_PAIRS


def prefers_triton(problem: Any) -> bool:
    """Return True if Triton's kernels are the fastest for a problem."""
    return problem.q.is_cuda and many_pairs(problem)


def require_triton(device: torch.device | None) -> None:
    """Raise an error if Triton is not installed or does not run on a device."""
    if importlib.util.find_spec("triton") is None:
        raise MissingExtraError(
            "--attention-backend triton: Triton is not installed; "
            "pip install 'relu-nmt[triton]', or choose blockwise"
        )
    # Accept GPUs, unknown devices, and Triton's interpreter on the CPU.
    if device is None or device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        return
    raise ConfigError(
        f"--attention-backend triton needs a GPU, but the model is on {device.type}; "
        "choose auto or blockwise"
    )

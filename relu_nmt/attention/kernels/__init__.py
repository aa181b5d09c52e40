"""Back ends of attention: each mechanism declares its own, and one function chooses.

A back end is a run-time choice (``--attention-backend``), never part of a checkpoint.
``reference``, ``blockwise`` and ``triton`` compute pointwise attention, ``rows`` mechanisms whose
weights need whole rows of scores. ``tuned`` holds the measured constants.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from relu_nmt.errors import ConfigError

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

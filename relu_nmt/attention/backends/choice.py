"""Which back end computes a pointwise attention."""

import importlib.util
import os
from collections.abc import Callable

from torch import nn

from relu_nmt.attention.backend_config import BACKENDS
from relu_nmt.attention.backends import reference
from relu_nmt.attention.backends.problem import PointwiseProblem, PointwiseResult
from relu_nmt.attention.base import Attention
from relu_nmt.errors import ConfigError, MissingExtraError

Backend = Callable[[PointwiseProblem], PointwiseResult]


def choose_backend(name: str, problem: PointwiseProblem) -> Backend:
    """Return the back end called ``name``; ``auto`` takes the fastest for the problem."""
    return reference.pointwise


def set_attention_backend(model: nn.Module, name: str) -> None:
    """Let every attention in ``model`` be computed by the back end called ``name``.

    Raises:
        ConfigError: no such back end.
        MissingExtraError: it is ``triton``, which is not installed.
    """
    if name not in BACKENDS:
        raise ConfigError(f"--attention-backend {name}: choose one of {', '.join(BACKENDS)}")
    if name == "triton":
        _require_triton()
    for module in model.modules():
        if isinstance(module, Attention):
            module.backend = name


def _require_triton() -> None:
    if not _has_triton():
        raise MissingExtraError(
            "--attention-backend triton: Triton is not installed; "
            "pip install 'relu-nmt[triton]', or choose blockwise"
        )


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _runs_triton(device: str) -> bool:
    return device == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"

"""Which back end computes a pointwise attention."""

import importlib.util
import os
from collections.abc import Callable

from torch import nn

from relu_nmt.attention.backend_config import BACKENDS
from relu_nmt.attention.backends import blockwise, reference
from relu_nmt.attention.backends.problem import PointwiseProblem, PointwiseResult
from relu_nmt.attention.base import Attention
from relu_nmt.errors import ConfigError, MissingExtraError

CPU_LEAST_PAIRS = 512 * 512
"""Pairs of a query and a key of one head from which on blocks are faster on a CPU."""
GPU_LEAST_PAIRS = 128 * 128

Backend = Callable[[PointwiseProblem], PointwiseResult]


def choose_backend(name: str, problem: PointwiseProblem) -> Backend:
    """Return the back end called ``name``; ``auto`` takes the fastest for the problem.

    Only the reference has the weights, so it serves whoever asks for them, whatever the name; and
    only it knows trees of hypotheses, whose queries are few. A problem that Triton's kernels cannot
    solve (of float64, say) is left to ``blockwise``.

    Raises:
        ConfigError: ``triton`` is asked for by name and the tensors are not on a GPU.
        MissingExtraError: ``triton`` is asked for by name and not installed.
    """
    is_tree = problem.visibility.ancestry is not None
    if name == "reference" or problem.need.weights or problem.bias is not None or is_tree:
        return reference.pointwise
    device = problem.q.device.type
    if name == "auto":
        if _is_small(problem):
            return reference.pointwise
        if device != "cuda" or not _has_triton():
            return blockwise.pointwise
    elif name == "blockwise":
        return blockwise.pointwise
    else:
        _require_triton()
        if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ConfigError(
                f"--attention-backend triton needs a GPU, but the model is on {device}; "
                "choose auto or blockwise"
            )
    from relu_nmt.attention.backends import triton

    return triton.pointwise if triton.supports(problem) else blockwise.pointwise


def _is_small(problem: PointwiseProblem) -> bool:
    """Whether the reference is at least as fast: its matrix of weights still fits into caches."""
    queries, keys = problem.q.size(2), problem.k.size(2)
    if problem.q.device.type == "cpu":
        return queries * keys < CPU_LEAST_PAIRS
    return queries * keys < GPU_LEAST_PAIRS


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

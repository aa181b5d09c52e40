"""Attention whose rows of weights sum to 1: softmax, the baseline, sparsemax and the entmax family.

Weights of sparsemax and entmax can be exactly zero. They are p = [(alpha - 1) z - t]_+^(1 / (alpha
- 1)) with the threshold t that makes the sum 1: alpha = 2 is sparsemax, and alpha toward 1
approaches softmax. The mechanisms find t in different ways. A constant added to all scores changes
nothing, so the scores are shifted to a maximum of 0, where t lies between -1 and 0.

Reference: Martins and Astudillo 2016, "From softmax to sparsemax", algorithm 1. Peters, Niculae
and Martins 2019, "Sparse sequence-to-sequence models", algorithms 1 and 2. (ReLUFormer's
appendix C names the two ends of alpha the other way round.)
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import (
    Attention,
    AttentionConfig,
    AttentionOutput,
    AttentionProblem,
    Backend,
    Capabilities,
    without_autocast,
)
from relu_nmt.attention.kernels import reference, tuned
from relu_nmt.config import option, settings
from relu_nmt.errors import ConfigError

FLOOR = -2.0
"""Raise lower shifted scores to this value, which still has probability 0. Then no -inf of a masked
key enters a sum, and no low score costs precision."""

BISECTIONS = 30
"""Steps for a general alpha. They leave an error of 1e-9, and a Newton step squares it."""


class NormalizedAttention(Attention):
    """out = f(q k^T / sqrt(d)) v, with a map f from rows of scores to rows that sum to 1.

    A subclass defines :meth:`normalize`, which is f. A query that sees no key gets output 0.
    """

    capabilities = Capabilities(scores=True)
    backends: ClassVar[Mapping[str, Backend]] = {
        # Blocks cannot return the whole matrix of weights.
        "blockwise": Backend(
            reference.blocks_of_rows, lambda p: not p.need.weights, reference.needs_blocks
        ),
        "reference": Backend(reference.whole_rows),
    }

    def normalize(self, scores: Tensor) -> Tensor:
        """Map scores [B, H, Nq, Nk] to weights over the last dimension, both float32 or wider.

        Masked keys have the score -inf. At least one score of every row is finite.
        """
        raise TypeError(f"{type(self).__name__} must define normalize")

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        return self.backend_for(problem).solve(problem)

    def weights(self, problem: AttentionProblem) -> Tensor:
        visibility = problem.visibility
        # These maps depend on small differences, but 16-bit scores near 10 are rounded by 0.03.
        with without_autocast(problem.q.device):
            dtype = torch.promote_types(problem.q.dtype, torch.float32)
            q, k = problem.q.to(dtype), problem.k.to(dtype)
            scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-1, -2)
            if problem.bias is not None:
                scores = scores + problem.bias.values()
        # Hide keys by -inf. Rows without visible keys see all, and then get 0.
        mask = visibility.score_mask(scores.dtype)
        if mask is not None:
            scores = scores.add_(mask)
        return visibility.without_empty_rows(self.normalize(scores))


@attentions.register("softmax")
class SoftmaxAttention(NormalizedAttention):
    """softmax(q k^T / sqrt(d)) v.

    Reference: Vaswani et al. 2017, "Attention is all you need", Eq. 1.

    Example:
        >>> from relu_nmt.attention.base import AttentionConfig
        >>> from relu_nmt.attention.masks import Visibility
        >>> attend = SoftmaxAttention(AttentionConfig(), num_heads=1, head_dim=1, dropout=0.0)
        >>> q, v = torch.zeros(1, 1, 2, 1), torch.tensor([[[[1.0], [3.0]]]])
        >>> attend(q, q, v, Visibility(2, 2)).values.flatten().tolist()
        [2.0, 2.0]
    """

    backends: ClassVar[Mapping[str, Backend]] = {
        "fused": Backend(reference.fused, reference.supports_fused, tuned.fused_pays),
        **NormalizedAttention.backends,
    }

    def normalize(self, scores: Tensor) -> Tensor:
        """Return softmax of each row."""
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))


@attentions.register("sparsemax")
class SparsemaxAttention(NormalizedAttention):
    """p = [z - t]_+ with z = q k^T / sqrt(d) and t such that sum p = 1. Output p v.

    Sorting finds t exactly. The key with the largest score gets all the weight once its lead is 1.

    Reference: Martins and Astudillo 2016, Eq. 2 and algorithm 1.
    """

    alpha: ClassVar[float] = 2.0

    def normalize(self, scores: Tensor) -> Tensor:
        """Return entmax of each row, with the ``alpha`` of the class."""
        return entmax(scores, self.alpha)


@attentions.register("entmax15")
class Entmax15Attention(SparsemaxAttention):
    """p = [z / 2 - t]_+^2 with z = q k^T / sqrt(d) and t such that sum p = 1. Output p v.

    Reference: Peters, Niculae and Martins 2019, algorithm 2.
    """

    alpha = 1.5


@attentions.register("entmax")
class EntmaxAttention(NormalizedAttention):
    """p = [(alpha - 1) z - t]_+^(1 / (alpha - 1)), z = q k^T / sqrt(d), sum p = 1. Output p v.

    Except for alpha 1.5 and 2, bisection finds t, which takes about 30 passes over the scores.

    Reference: Peters, Niculae and Martins 2019, definition 1 and algorithm 1.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention entmax:alpha=1.3``."""

        alpha: float = option(1.5, "2 is sparsemax, toward 1 it approaches softmax")

        def check(self) -> None:
            """Raise a ConfigError for alpha 1, which is softmax, and values out of range."""
            if not 1 < self.alpha <= 2:
                hint = " (alpha=1 is the attention 'softmax')" if self.alpha == 1 else ""
                raise ConfigError(
                    f"alpha={self.alpha:g}: expected a number above 1, at most 2{hint}"
                )

    def normalize(self, scores: Tensor) -> Tensor:
        """Return alpha-entmax of each row."""
        return entmax(scores, self.config.alpha)


def entmax(scores: Tensor, alpha: float) -> Tensor:
    """Return alpha-entmax of scores [..., n], float32 or wider. It can be differentiated twice.

    Scores may be -inf where the result must be 0, but not in a whole row. Rows with NaN or infinite
    scores become NaN. The thresholds of alpha 1.5 and 2 are exact, by sorting.
    """
    return _Entmax.apply(scores.to(torch.promote_types(scores.dtype, torch.float32)), alpha)


class _Entmax(torch.autograd.Function):
    """The Jacobian is diag(r) - r r^T / sum(r), r = p^(2 - alpha) where p > 0 and 0 elsewhere."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: float) -> Tensor:
        shifted = scores - scores.amax(-1, keepdim=True)
        x = (shifted * (alpha - 1)).clamp_min_(FLOOR)
        if alpha == 2.0:
            threshold = _sparsemax_threshold(x)
        elif alpha == 1.5:
            threshold = _entmax15_threshold(x)
        else:
            threshold = _threshold_by_bisection(x, alpha)
        # Correct the rounding of sums over thousands of keys by a Newton step on sum(p) = 1.
        p = _probabilities(x, threshold, alpha)
        slope = _power_on_support(p, 2 - alpha).sum(-1, keepdim=True) / (alpha - 1)
        threshold = threshold + (p.sum(-1, keepdim=True) - 1) / slope
        p = _probabilities(x, threshold, alpha)
        p = p / p.sum(-1, keepdim=True)
        # Keep only the result: the backward pass needs no scores.
        ctx.alpha = alpha
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # p is this function's own output, so autograd can differentiate the lines below.
        (p,) = ctx.saved_tensors
        r = _power_on_support(p, 2 - ctx.alpha)
        # Subtract the weighted mean, since changes of p sum to 0.
        mean = (gradient * r).sum(-1, keepdim=True) / r.sum(-1, keepdim=True)
        return r * (gradient - mean), None


def _probabilities(x: Tensor, threshold: Tensor, alpha: float) -> Tensor:
    rectified = (x - threshold).clamp_min_(0)
    if alpha != 2.0:
        rectified.pow_(1 / (alpha - 1))
    return rectified


def _power_on_support(p: Tensor, exponent: float) -> Tensor:
    """Return p^exponent where p > 0, else 0, without the infinite derivative at 0."""
    support = p > 0
    if exponent == 0:
        return support.to(p.dtype)
    return torch.where(support, p, 1.0).pow(exponent).masked_fill(~support, 0.0)


def _counts_from_one(x: Tensor) -> Tensor:
    return torch.arange(1, x.size(-1) + 1, dtype=x.dtype, device=x.device)


def _sparsemax_threshold(x: Tensor) -> Tensor:
    """Return t [..., 1] = (sum of the k largest - 1) / k, for the support size k."""
    # The support is the longest prefix of sorted scores above its own threshold.
    largest = x.sort(-1, descending=True).values
    sums = largest.cumsum(-1)
    size = (1 + _counts_from_one(x) * largest > sums).sum(-1, keepdim=True)
    # If scores are NaN, no key is in the support, and the result is NaN.
    return (sums.gather(-1, (size - 1).clamp_min(0)) - 1) / size


def _entmax15_threshold(x: Tensor) -> Tensor:
    """Return t [..., 1]: the mean of the k largest less sqrt((1 - their scatter) / k)."""
    largest = x.sort(-1, descending=True).values
    k = _counts_from_one(x)
    mean = largest.cumsum(-1) / k
    scatter = largest.square().cumsum(-1) - k * mean.square()  # sum of squared deviations
    thresholds = mean - ((1 - scatter) / k).clamp_min(0).sqrt()
    size = (thresholds <= largest).sum(-1, keepdim=True)
    return thresholds.gather(-1, (size - 1).clamp_min(0))


def _threshold_by_bisection(x: Tensor, alpha: float) -> Tensor:
    """Return t [..., 1] by halving the interval between max - 1 and max - (1/n)^(alpha - 1)."""
    low = x.new_full((*x.shape[:-1], 1), -1.0)
    width = 1.0 - x.size(-1) ** (1 - alpha)
    for _ in range(BISECTIONS):
        width /= 2
        middle = low + width
        too_much = _probabilities(x, middle, alpha).sum(-1, keepdim=True) >= 1
        low = torch.where(too_much, middle, low)
    return low

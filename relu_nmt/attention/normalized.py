"""Attention whose rows of weights sum to 1: the base class, and softmax, the baseline."""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import (
    Attention,
    AttentionOutput,
    AttentionProblem,
    Backend,
    Capabilities,
    without_autocast,
)
from relu_nmt.attention.kernels import reference
from relu_nmt.attention.masks import biased


class NormalizedAttention(Attention):
    """out = f(q k^T / sqrt(d)) v, with a map f from rows of scores to rows that sum to 1.

    A subclass defines :meth:`normalize`, which is f. A query that sees no key gets output 0.
    """

    capabilities = Capabilities(scores=True)
    backends: ClassVar[Mapping[str, Backend]] = {
        "blockwise": Backend(
            reference.blocks_of_rows, reference.supports_blocks, reference.needs_blocks
        ),
        "reference": Backend(reference.whole_rows),
    }

    def normalize(self, scores: Tensor) -> Tensor:
        """Map scores [B, H, Nq, Nk] to weights over the last dimension, both float32 or wider.

        Masked keys have the score -inf; at least one score of every row is finite.
        """
        raise TypeError(f"{type(self).__name__} must define normalize")

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """See :meth:`Attention.attend`."""
        return self.backend_for(problem).solve(problem)

    def weights(self, problem: AttentionProblem) -> Tensor:
        """See :meth:`Attention.weights`."""
        visibility = problem.visibility
        # These maps depend on small differences, but 16-bit scores near 10 are rounded by 0.03.
        with without_autocast(problem.q.device):
            dtype = torch.promote_types(problem.q.dtype, torch.float32)
            q, k = problem.q.to(dtype), problem.k.to(dtype)
            scores = biased((q / math.sqrt(self.head_dim)) @ k.transpose(-1, -2), problem.bias)
        # Hide keys by -inf; rows without visible keys see all, and then get 0.
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
        "fused": Backend(reference.fused, reference.supports_fused, reference.prefers_fused),
        **NormalizedAttention.backends,
    }

    def normalize(self, scores: Tensor) -> Tensor:
        """Return softmax of each row."""
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))

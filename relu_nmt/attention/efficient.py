"""Efficient attention: softmax of the queries over channels and of the keys over tokens."""

import math

import torch
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Capabilities
from relu_nmt.attention.kernel_features import FeatureAttention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.token_axis import key_column


@attentions.register("efficient")
class EfficientAttention(FeatureAttention):
    """out = softmax_channels(q) (softmax_tokens(k)^T v), without d^(-1/2).

    The matrix softmax_channels(q) softmax_tokens(k)^T, which is never computed, has rows that sum
    to 1.

    Reference: Shen et al. 2021, "Efficient Attention: Attention with Linear Complexities",
    section 3.2 (softmax normalisation).
    """

    capabilities = Capabilities(
        causal=False, reason="it normalises each channel of the keys over the whole token axis"
    )

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """See :meth:`FeatureAttention.features`."""
        real = key_column(visibility)
        if real is not None:
            # Let a sample without keys see all of them: its softmax would be NaN.
            seen = real | ~real.any(2, keepdim=True)
            k = k.masked_fill(~seen, -math.inf)
        return q.softmax(-1), k.softmax(2)

    def divisor(self, totals: Tensor) -> Tensor:
        """Return ones: the rows already sum to 1."""
        return torch.ones_like(totals)

"""ReLUFormer attention: rectified scores, scaled by the number of visible keys."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import NOTHING, Attention, AttentionOutput, Capabilities, Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.stats import row_statistics
from relu_nmt.config import option
from relu_nmt.dropout import dropout
from relu_nmt.errors import ConfigError


@dataclass(frozen=True)
class ReLUFormerConfig:
    """Settings of :class:`ReLUFormerAttention`."""

    gamma: float = option(1.0, "divisor of the weights; the paper does not print its value")

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and self.gamma > 0):
            raise ConfigError(f"gamma={self.gamma}: expected a positive number")


@attentions.register("reluformer")
class ReLUFormerAttention(Attention):
    """s_ij = ReLU(q_i k_j / sqrt(d)) / (gamma sqrt(n_i / 2)), output sum_j s_ij v_j.

    n_i is the number of keys that query i may see: the real keys of the sentence, i + 1 at
    causal position i, the number of cached keys in step-by-step decoding. For independent
    standard normal scores and values the output then has variance 1 / gamma^2 whatever the
    length (Theorem 4.1). A row may be all zeros; its output is 0.

    Reference: ReLUFormer, Eq. 5-6.

    Example:
        >>> import torch
        >>> attend = ReLUFormerAttention(ReLUFormerConfig(), num_heads=1, head_dim=1, dropout=0.0)
        >>> one = torch.ones(1, 1, 2, 1)
        >>> attend(one, one, one, Visibility(2, 2)).values.flatten().tolist()
        [2.0, 2.0]
    """

    Config = ReLUFormerConfig
    capabilities = Capabilities(causal=True, cross=True, non_negative=True)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, need: Need = NOTHING
    ) -> AttentionOutput:
        """See :meth:`Attention.forward`."""
        exact = torch.promote_types(q.dtype, torch.float32)
        scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-1, -2)  # [B, H, Nq, Nk]
        rectified = scores.relu()
        if visibility.mask is not None:
            rectified = rectified.masked_fill(~visibility.mask, 0.0)
        # The scale is one factor a row, so it is cheaper on the output than on the weights.
        counts = visibility.counts.to(exact).clamp_min(1)
        row_scale = (counts / 2).rsqrt() / self.config.gamma  # [B or 1, 1, Nq or 1]
        rows = row_statistics(rectified, visibility, row_scale) if need.statistics else None
        values = dropout(rectified, self.active_dropout) @ v
        values = (values * row_scale[..., None]).to(v.dtype)
        weights = rectified.to(exact) * row_scale[..., None] if need.weights else None
        return AttentionOutput(values, weights, rows)

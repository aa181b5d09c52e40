"""Softmax attention, the baseline."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import NOTHING, Attention, AttentionOutput, Capabilities, Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.stats import row_statistics, row_sums
from relu_nmt.dropout import dropout

CPU_HALF_FUSED_LENGTH = 512
"""From this many keys on the fused kernel is the faster one on a CPU in bfloat16; with 16 keys it
takes 15 times as long as two matrix products (forward and backward)."""


@attentions.register("softmax")
class SoftmaxAttention(Attention):
    """softmax(q k^T / sqrt(d)) v.

    PyTorch's fused kernel is used where it is faster, unless weights or statistics are asked for.

    Reference: Vaswani et al. 2017, "Attention is all you need", Eq. 1.
    """

    capabilities = Capabilities(causal=True, cross=True, non_negative=True)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, need: Need = NOTHING
    ) -> AttentionOutput:
        """See :meth:`Attention.forward`."""
        slow_when_fused = (
            q.device.type == "cpu" and q.dtype.itemsize == 2 and k.size(2) < CPU_HALF_FUSED_LENGTH
        )
        if need.rows or need.weights or slow_when_fused:
            return self._with_weights(q, k, v, visibility, need)
        only_causal = visibility.causal and visibility.key_mask is None and q.size(2) == k.size(2)
        values = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if only_causal else visibility.normalizable_mask,
            dropout_p=self.active_dropout,
            is_causal=only_causal,
        )
        if visibility.empty_rows is not None:
            values = values.masked_fill(visibility.empty_rows, 0.0)
        return AttentionOutput(values)

    def _with_weights(
        self, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, need: Need
    ) -> AttentionOutput:
        scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-1, -2)
        if visibility.normalizable_mask is not None:
            scores = scores.masked_fill(~visibility.normalizable_mask, -math.inf)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        if visibility.empty_rows is not None:
            weights = weights.masked_fill(visibility.empty_rows, 0.0)
        rows = row_statistics(row_sums(weights, need), visibility) if need.rows else None
        values = dropout(weights, self.active_dropout).to(v.dtype) @ v
        return AttentionOutput(values, weights if need.weights else None, rows)

"""Softmax attention, the baseline."""

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import NOTHING, AttentionOutput, Need
from relu_nmt.attention.bias import ScoreBias
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.normalized import NormalizedAttention

CPU_HALF_FUSED_LENGTH = 512
"""From this many keys on the fused kernel is the faster one on a CPU in bfloat16; with 16 keys it
takes 15 times as long as two matrix products (forward and backward)."""


@attentions.register("softmax")
class SoftmaxAttention(NormalizedAttention):
    """softmax(q k^T / sqrt(d)) v.

    PyTorch's fused kernel is used where it is faster, unless weights or statistics are asked for.

    Reference: Vaswani et al. 2017, "Attention is all you need", Eq. 1.
    """

    def normalize(self, scores: Tensor) -> Tensor:
        """Return softmax of each row."""
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visibility: Visibility,
        *,
        bias: ScoreBias | None = None,
        need: Need = NOTHING,
    ) -> AttentionOutput:
        """See :meth:`Attention.forward`."""
        slow_when_fused = (
            q.device.type == "cpu" and q.dtype.itemsize == 2 and k.size(2) < CPU_HALF_FUSED_LENGTH
        )
        if need.rows or need.weights or bias is not None or slow_when_fused:
            return super().forward(q, k, v, visibility, bias=bias, need=need)
        only_causal = (
            visibility.hides_later and visibility.key_mask is None and q.size(2) == k.size(2)
        )
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

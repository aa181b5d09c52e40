"""Softmax attention, the baseline."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.kernels import Backend, rows
from relu_nmt.attention.normalized import NormalizedAttention


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
        "fused": Backend(rows.fused, rows.supports_fused, rows.prefers_fused),
        **NormalizedAttention.backends,
    }

    def normalize(self, scores: Tensor) -> Tensor:
        """Return softmax of each row."""
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))

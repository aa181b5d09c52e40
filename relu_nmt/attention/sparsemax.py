"""Sparsemax attention: weights that sum to 1 and can be exactly zero."""

from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.normalized import NormalizedAttention
from relu_nmt.attention.sparse_maps import sparsemax


@attentions.register("sparsemax")
class SparsemaxAttention(NormalizedAttention):
    """p = [z - t]_+ with z = q k^T / sqrt(d) and t such that sum p = 1; output p v.

    It has no options. The key with the largest score gets all the weight once its lead is 1.

    Reference: Martins and Astudillo 2016, "From softmax to sparsemax", Eq. 2 and algorithm 1.

    Example:
        >>> import torch
        >>> from relu_nmt.attention.base import AttentionConfig
        >>> from relu_nmt.attention.masks import Visibility
        >>> attend = SparsemaxAttention(AttentionConfig(), num_heads=1, head_dim=1, dropout=0.0)
        >>> q, k = torch.ones(1, 1, 1, 1), torch.tensor([[[[0.5], [0.0], [-2.0]]]])
        >>> attend(q, k, torch.tensor([[[[4.0], [8.0], [1.0]]]]), Visibility(1, 3)).values.item()
        5.0
    """

    def normalize(self, scores: Tensor) -> Tensor:
        """Return sparsemax of each row."""
        return sparsemax(scores)

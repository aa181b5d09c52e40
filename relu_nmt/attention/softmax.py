"""Softmax attention, the baseline."""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import AttentionOutput, AttentionProblem
from relu_nmt.attention.kernels import Backend
from relu_nmt.attention.normalized import NormalizedAttention

CPU_HALF_FUSED_LENGTH = 512
"""From this many keys on the fused kernel is the faster one on a CPU in bfloat16; with 16 keys it
takes 15 times as long as two matrix products (forward and backward)."""


def fused(problem: AttentionProblem) -> AttentionOutput:
    """Compute softmax attention by PyTorch's fused kernel."""
    q, k, visibility = problem.q, problem.k, problem.visibility
    only_causal = visibility.hides_later and visibility.key_mask is None and q.size(2) == k.size(2)
    values = F.scaled_dot_product_attention(
        q,
        k,
        problem.v,
        attn_mask=None if only_causal else visibility.score_mask(q.dtype),
        dropout_p=problem.dropout,
        is_causal=only_causal,
    )
    if visibility.empty_rows is not None:
        values = values.masked_fill(visibility.empty_rows, 0.0)
    return AttentionOutput(values)


def fused_supports(problem: AttentionProblem) -> bool:
    """Return whether only outputs are asked for; a bias would have to be made as a whole matrix."""
    return problem.bias is None and not (problem.need.rows or problem.need.weights)


def fused_is_faster(problem: AttentionProblem) -> bool:
    """Return whether it is worth its overhead."""
    q = problem.q
    is_half_on_cpu = q.is_cpu and q.dtype.itemsize == 2
    return not is_half_on_cpu or problem.k.size(2) >= CPU_HALF_FUSED_LENGTH


@attentions.register("softmax")
class SoftmaxAttention(NormalizedAttention):
    """softmax(q k^T / sqrt(d)) v.

    PyTorch's fused kernel is used where it is faster, unless weights or statistics are asked for or
    the scores have a bias.

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
        "fused": Backend(fused, fused_supports, fused_is_faster),
        **NormalizedAttention.backends,
    }

    def normalize(self, scores: Tensor) -> Tensor:
        """Return softmax of each row."""
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))

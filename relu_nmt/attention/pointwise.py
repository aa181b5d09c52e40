"""What all attentions with pointwise weights share: weights c_i h(q_i k_j / sqrt(d))."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from relu_nmt.attention.backends.choice import choose_backend
from relu_nmt.attention.backends.problem import PointwiseProblem
from relu_nmt.attention.base import NOTHING, Attention, AttentionOutput, Capabilities, Need
from relu_nmt.attention.bias import ScoreBias
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise_maps import PointwiseMap
from relu_nmt.attention.stats import row_statistics


class PointwiseAttention(Attention):
    """out_i = g sum_j c(n_i) h(q_i k_j / sqrt(d)) v_j, for any h, c and learnable factor g.

    A subclass gives ``map`` and defines :meth:`row_scale`; it may define :meth:`gain`.

    Args:
        config: the subclass's settings.
        num_heads: H.
        head_dim: d.
        dropout: probability of dropping a weight in training.
        map: h.
    """

    capabilities = Capabilities(scores=True)

    def __init__(
        self, config: Any, num_heads: int, head_dim: int, dropout: float, map: PointwiseMap
    ) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        self.map = map
        self.capabilities = dataclasses.replace(self.capabilities, non_negative=map.non_negative)

    def row_scale(self, counts: Tensor) -> Tensor:
        """Return c(n) of the numbers n >= 1 of visible keys, float32, of the same shape."""
        raise TypeError(f"{type(self).__name__} must define row_scale")

    def gain(self) -> Tensor | None:
        """Return the learnable factor g, [1] or [H], if there is one."""
        return None

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
        exact = torch.promote_types(q.dtype, torch.float32)
        row_scale = self.row_scale(visibility.counts.to(exact).clamp_min(1))
        problem = PointwiseProblem(
            q / math.sqrt(self.head_dim),
            k,
            v,
            self.map,
            visibility,
            bias,
            row_scale,
            self.active_dropout,
            need,
        )
        result = choose_backend(self.backend, problem)(problem)
        values, weights = result.values, result.weights
        gain = self.gain()
        if gain is not None:
            gain = gain[:, None, None]  # [H or 1, 1, 1]
            values = (values * gain).to(values.dtype)
            weights = weights * gain if weights is not None else None
            row_scale = row_scale * gain[..., 0]
        rows = None
        if result.sums is not None:
            rows = row_statistics(result.sums, visibility, row_scale)
        return AttentionOutput(values, weights, rows)

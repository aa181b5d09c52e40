"""Rectified linear attention (ReLA): unscaled rectified scores and a norm on the joined heads."""

import torch
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.base import AttentionConfig
from relu_nmt.attention.pointwise import PointwiseAttention, pointwise_maps
from relu_nmt.config import option, settings

EPSILON = 1e-6


@attentions.register("rela")
class RelaAttention(PointwiseAttention):
    """RMSNorm(o), or RMSNorm(o) * sigmoid(w * o), where o joins sum_j ReLU(z_ij) v_j of all heads.

    z = q k^T / sqrt(d). RMSNorm(o) = g * o / sqrt(mean(o^2) + 1e-6) over all D channels, with the
    gain g [D]. The weights need no scale, as the norm removes it. Their sums therefore grow with
    the length, and float16 holds no more than 65504. A row that is zero in all heads stays zero.

    Reference: Zhang, Titov and Sennrich 2021, "Sparse attention with linear units", section 3. The
    norm spans the heads, as in their code, which trains the gated form. w starts at 1, g at
    ``gain``. eps is ours. Near o = 0 it makes the norm's slope 1000.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention rela:gated=true``."""

        gated: bool = option(False, "multiply the norm's output by sigmoid(w * o)")
        gain: float = option(1.0, "initial gain of the norm, small in the variant ReLA-i")

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout, pointwise_maps.get("relu"))
        self.degree = None  # the norm removes every factor
        embed_dim = num_heads * head_dim
        self.norm_gain = nn.Parameter(torch.full((embed_dim,), config.gain))
        self.gate_weight = None
        if config.gated:
            self.gate_weight = nn.Parameter(torch.ones(embed_dim))

    def row_scale(self, counts: Tensor) -> Tensor:
        """Return 1."""
        return torch.ones_like(counts)

    def finish(self, joined: Tensor, x: Tensor) -> Tensor:
        """Normalize the joined heads [B, Nq, D] in float32, and gate them."""
        exact = joined.to(torch.promote_types(joined.dtype, torch.float32))
        root = (exact.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
        output = self.norm_gain * exact * root
        if self.gate_weight is not None:
            output = output * (self.gate_weight * exact).sigmoid()
        return output.to(joined.dtype)

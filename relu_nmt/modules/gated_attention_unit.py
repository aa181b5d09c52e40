"""The gated attention unit: one layer in place of attention and feed-forward network."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.masks import Visibility


class GatedAttentionUnit(nn.Module):
    """out = (u * (A v)) W_o, with A = n^-alpha h(q k^T / sqrt(s)) of a single head.

    u = silu(x W_u) and v = silu(x W_v) have width e, 2 D in the paper; q = b * g1 + b1 and
    k = b * g2 + b2 share the base b = silu(x W_b) of width s. With 6 D^2 + s D weights, two units
    take the place of attention (4 D^2) and feed-forward network (8 D^2). Like a sublayer, a unit
    has neither norm nor residual connection; put it in
    :class:`relu_nmt.modules.transformer_layer.Residual`.

    The gains start at 1 and the shifts at 0, so that scores are of order 1.

    Args:
        embed_dim: D.
        inner_dim: e.
        attention: the mechanism that computes A v, ``pointwise`` with a single head of width s; h
            is ``relu2`` in the paper.

    Reference: Hua et al. 2022, "Transformer quality in linear time", section 2.2; Wortsman et al.
    2023, "Replacing softmax with ReLU in vision transformers", Fig. 4, in one of two readings.
    Deviations: the optional relative position bias is left out; the length divides the weights,
    as n^-alpha, not the scores; the gains start at 1.

    Example:
        >>> from relu_nmt.attention.base import build_attention
        >>> from relu_nmt.attention.spec import AttentionSpec
        >>> spec = AttentionSpec.parse("pointwise:h=relu2,qk_norm=false")
        >>> unit = GatedAttentionUnit(8, 16, build_attention(spec, "encoder", 0, 1, 4, 0.0))
        >>> tuple(unit(torch.zeros(2, 5, 8), Visibility(5, 5)).shape)
        (2, 5, 8)
    """

    def __init__(self, embed_dim: int, inner_dim: int, attention: Attention) -> None:
        super().__init__()
        key_dim = attention.head_dim
        self.widths = [inner_dim, inner_dim, key_dim]
        self.in_proj = nn.Linear(embed_dim, sum(self.widths), bias=False)  # W_u, W_v and W_b
        self.query_gain = nn.Parameter(torch.ones(key_dim))
        self.query_shift = nn.Parameter(torch.zeros(key_dim))
        self.key_gain = nn.Parameter(torch.ones(key_dim))
        self.key_shift = nn.Parameter(torch.zeros(key_dim))
        self.attention = attention
        self.out_proj = nn.Linear(inner_dim, embed_dim, bias=False)
        for weight in (*self.in_proj.weight.split(self.widths), self.out_proj.weight):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, visibility: Visibility) -> Tensor:
        """Map [B, N, D] to [B, N, D].

        Args:
            x: the states.
            visibility: which positions each position may see; it may be causal.
        """
        u, v, base = F.silu(self.in_proj(x)).split(self.widths, dim=-1)
        q = (base * self.query_gain + self.query_shift).to(v.dtype)[:, None]  # [B, 1, N, s]
        k = (base * self.key_gain + self.key_shift).to(v.dtype)[:, None]
        q, k = self.attention.map_queries(q), self.attention.map_keys(k)
        values = self.attention(q, k, v[:, None], visibility).values.squeeze(1)  # [B, N, e]
        return self.out_proj(u * values)

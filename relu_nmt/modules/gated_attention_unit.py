"""The gated attention unit: one layer in place of attention and feed-forward network."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, AttentionOutput, Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.scaled_pointwise import ScaledPointwiseAttention, ScaledPointwiseConfig
from relu_nmt.config import option
from relu_nmt.errors import ConfigError


@dataclass(frozen=True)
class GatedAttentionUnitConfig:
    """Settings of :class:`GatedAttentionUnit`."""

    expansion: int = option(2, "inner width e as a multiple of D")
    key_dim: int = option(128, "width s of the queries and keys")
    h: str = option("relu2", "the map of the scores, as of the attention 'pointwise'")
    alpha: float = option(1.0, "weights are divided by n^alpha")

    def __post_init__(self) -> None:
        for name in ("expansion", "key_dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected 1 or more")


class GatedAttentionUnit(nn.Module):
    """out = (u * (A v)) W_o, with A = n^-alpha h(q k^T / sqrt(s)) of a single head.

    u = silu(x W_u) and v = silu(x W_v) have width e = 2 D; q = b * g1 + b1 and k = b * g2 + b2
    share the base b = silu(x W_b) of width s = 128. With 6 D^2 + s D weights, two units take the
    place of attention (4 D^2) and feed-forward network (8 D^2). Like a sublayer, a unit has
    neither norm nor residual connection; put it in :class:`relu_nmt.modules.residual.Residual`.

    h and alpha are those of :class:`ScaledPointwiseAttention`, which computes A v with any back
    end. The gains start at 1 and the shifts at 0, so that scores are of order 1.

    Args:
        embed_dim: D.
        config: widths, h and alpha.
        dropout: probability of dropping a weight of A in training.

    Reference: Hua et al. 2022, "Transformer quality in linear time", section 2.2 (h is relu2);
    Wortsman et al. 2023, "Replacing softmax with ReLU in vision transformers", Fig. 4, in one of
    two readings. Deviations: the optional relative position bias is left out; the length divides
    the weights, as n^-alpha, not the scores; the gains start at 1.

    Example:
        >>> unit = GatedAttentionUnit(8)
        >>> unit(torch.zeros(2, 5, 8), Visibility(5, 5)).values.shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        config: GatedAttentionUnitConfig | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        config = config or GatedAttentionUnitConfig()
        inner_dim = config.expansion * embed_dim
        self.widths = [inner_dim, inner_dim, config.key_dim]
        self.in_proj = nn.Linear(embed_dim, sum(self.widths), bias=False)  # W_u, W_v and W_b
        self.query_gain = nn.Parameter(torch.ones(config.key_dim))
        self.query_shift = nn.Parameter(torch.zeros(config.key_dim))
        self.key_gain = nn.Parameter(torch.ones(config.key_dim))
        self.key_shift = nn.Parameter(torch.zeros(config.key_dim))
        pointwise = ScaledPointwiseConfig(h=config.h, alpha=config.alpha, qk_norm=False)
        self.attention = ScaledPointwiseAttention(pointwise, 1, config.key_dim, dropout)
        self.out_proj = nn.Linear(inner_dim, embed_dim, bias=False)
        for weight in (*self.in_proj.weight.split(self.widths), self.out_proj.weight):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, visibility: Visibility, need: Need = NOTHING) -> AttentionOutput:
        """Map x [B, N, D]; ``values`` of the result is [B, N, D].

        Args:
            x: [B, N, D].
            visibility: which positions each position may see; it may be causal.
            need: what to return besides the values; weights are [B, 1, N, N].
        """
        u, v, base = F.silu(self.in_proj(x)).split(self.widths, dim=-1)
        q = (base * self.query_gain + self.query_shift).to(v.dtype)
        k = (base * self.key_gain + self.key_shift).to(v.dtype)
        output = self.attention(q[:, None], k[:, None], v[:, None], visibility, need=need)
        output.values = self.out_proj(u * output.values.squeeze(1))
        return output

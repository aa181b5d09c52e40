"""Blocks of gated attention units (GAU), for a ViT without feed-forward networks."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.config.registry import Spec
from relu_nmt.errors import ConfigError
from relu_nmt.modules.transformer_layer import Residual
from relu_nmt.vision import vision_blocks
from relu_nmt.vision.base import Grid, block_config, drop_path_rates, initialize, mechanism
from relu_nmt.vision.config import VisionTransformerConfig

BASE_DIM = 128  # width of queries and keys of gated attention units in the paper


class GatedAttentionUnit(nn.Module):
    """out = (u * (A v)) W_o, with A = n^-alpha h(q k^T / sqrt(s)) of a single head.

    u = silu(x W_u) and v = silu(x W_v) have width e, 2 D in the paper. q = b * g1 + b1 and
    k = b * g2 + b2 share the base b = silu(x W_b) of width s. With 6 D^2 + s D weights, two units
    take the place of attention (4 D^2) and feed-forward network (8 D^2). Like a sublayer, a unit
    has neither norm nor residual connection. The gains start at 1 and the shifts at 0, so that
    scores are of order 1. ``attention`` computes A v: ``pointwise`` with a single head of width s.
    The paper has ``relu2`` as h.

    Reference: Hua et al. 2022, "Transformer quality in linear time", section 2.2. Wortsman et al.
    2023, "Replacing softmax with ReLU in vision transformers", Fig. 4, in one of two readings.
    Deviations: there is no optional relative position bias. The length divides the weights, as
    n^-alpha, not the scores. The gains start at 1.

    Example:
        >>> from relu_nmt.attention.base import build_attention
        >>> spec = Spec.parse("pointwise:h=relu2,qk_norm=false")
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
        self.draw_by_xavier()

    def matrices(self) -> tuple[Tensor, ...]:
        """Return W_u, W_v, W_b and W_o. The first three are views of one parameter."""
        return (*self.in_proj.weight.split(self.widths), self.out_proj.weight)

    def draw_by_xavier(self) -> None:
        """Draw each matrix from Xavier's uniform distribution."""
        for weight in self.matrices():
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, visibility: Visibility) -> Tensor:
        """Map [B, N, D] to [B, N, D]. The visibility may be causal."""
        # u and v: [B, N, e]. base: [B, N, s].
        u, v, base = F.silu(self.in_proj(x)).split(self.widths, dim=-1)
        # Add the axis of the single head: [B, 1, N, s].
        q = (base * self.query_gain + self.query_shift).to(v.dtype)[:, None]
        k = (base * self.key_gain + self.key_shift).to(v.dtype)[:, None]
        q, k = self.attention.map_queries(q), self.attention.map_keys(k)
        values = self.attention(q, k, v[:, None], visibility).values.squeeze(1)  # [B, N, e]
        return self.out_proj(u * values)


@vision_blocks.register("gau")
class GatedBlock(nn.Module):
    """Two gated attention units in place of attention and feed-forward network.

    Queries and keys have the paper's width of 128, whatever the number of heads. The inner width of
    a unit is half the width of the feed-forward network.

    Raises:
        ConfigError: the attention is not an ungated ``pointwise`` without ``output_norm``, or there
            are settings of a feed-forward network.

    Reference: Hua et al. 2022, "Transformer quality in linear time", section 2.2.
    """

    def __init__(self, config: VisionTransformerConfig, index: int) -> None:
        super().__init__()
        spec = Spec.parse(config.attention)
        if spec.name != "pointwise" or spec.options.get("gate", "none") != "none":
            raise ConfigError(
                f"--block gau has a gate of its own and works with --attention pointwise:h=relu2 "
                f"(or another h) without one, not with --attention {config.attention}"
            )
        usual = ("gelu", "gelu-tanh") if config.big_vision else ("gelu",)
        if config.activation_dropout or config.feed_forward not in usual:
            raise ConfigError(
                "--block gau has no feed-forward network; leave out --activation-dropout and "
                "--feed-forward"
            )
        dim = config.embed_dim
        inner_dim = max(1, config.ffn_dim // 2)
        units = [
            GatedAttentionUnit(dim, inner_dim, mechanism(config, layer, 1, BASE_DIM))
            for layer in (2 * index, 2 * index + 1)
        ]
        if units[0].attention.config.output_norm:
            raise ConfigError(
                f"--attention {config.attention}: --block gau has no joined heads; leave out "
                "output_norm"
            )
        # Draw all matrices like the linear maps of other blocks.
        for unit in units:
            initialize(*unit.matrices())
        self.units = nn.ModuleList(units)
        rate = drop_path_rates(config.drop_path, config.layers)[index]
        layer_config = block_config(config, dim, rate)
        residuals = nn.ModuleList(Residual(layer_config) for _ in units)
        self.residuals = cast(Sequence[Residual], residuals)

    def forward(self, x: Tensor, visibility: Visibility, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]."""
        for unit, residual in zip(self.units, self.residuals, strict=True):
            x = residual(x, unit, visibility)
        return x

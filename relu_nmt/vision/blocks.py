"""The parts of vision transformers: patches, the registered blocks and the gated attention unit.

A block is a module made with (config, index of the block). Its ``forward(x, visibility, grid)``
maps tokens [B, N, D] to [B, N, D]; the last height * width of the N tokens are the patches of the
``grid``, row by row, those before them class tokens.
"""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.errors import ConfigError
from relu_nmt.modules.multihead import SelfAttention
from relu_nmt.modules.transformer_layer import LayerConfig, Residual, TransformerLayer
from relu_nmt.vision import vision_blocks
from relu_nmt.vision.base import NORM_EPS, Grid, initialize, whole_patches
from relu_nmt.vision.config import VisionTransformerConfig

BASE_DIM = 128
"""Width of queries and keys of gated attention units in the paper."""


class PatchEmbedding(nn.Module):
    """A linear map of each patch: the convolution whose stride is its width, as one product.

    Args:
        sides: height and width of a patch, in pixels.
        embed_dim: D.
    """

    def __init__(self, sides: tuple[int, int], embed_dim: int) -> None:
        super().__init__()
        self.sides = sides
        self.projection = nn.Linear(3 * sides[0] * sides[1], embed_dim)
        initialize(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Map images [B, 3, Y, X] to patches [B, N, D], row by row, and their grid."""
        height, width = self.sides
        images = whole_patches(images, self.sides)
        # [B, 3, Y/P, P, X/P, P] -> [B, Y/P, X/P, 3, P, P], in the order of a convolution's weight.
        patches = images.unflatten(3, (-1, width)).unflatten(2, (-1, height))
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3)
        grid = Grid(patches.size(1), patches.size(2))
        return self.projection(patches.flatten(1, 2)), grid


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation, which takes a single value a channel by the running statistics.

    So a last batch of one image trains, too, where its map is 1 x 1.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, height, width] to the same shape."""
        if x.numel() > x.size(1):
            return super().forward(x)
        mean, variance = self.running_mean, self.running_var
        return F.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.eps)


def pre_norm(
    config: VisionTransformerConfig, embed_dim: int, drop_path: float, norm_eps: float = NORM_EPS
) -> LayerConfig:
    """Return shape and placement of the parts of a pre-norm block.

    Args:
        config: the model's settings.
        embed_dim: width of the block.
        drop_path: probability that an image skips a branch.
        norm_eps: of the norms.
    """
    return LayerConfig(
        config,
        embed_dim,
        round(config.ffn_ratio * embed_dim),
        norm_eps=norm_eps,
        normalize_before=True,
        drop_path=drop_path,
        layer_scale=config.layer_scale,
    )


def growing(rate: float, index: int, count: int) -> float:
    """Return the rate of stochastic depth of one of ``count`` blocks.

    It grows from 0 in the first one to ``rate`` in the last; an only one is the last.
    """
    return rate if count == 1 else rate * index / (count - 1)


def mechanism(config: VisionTransformerConfig, layer: int, num_heads: int) -> Attention:
    """Return the attention of a block, with heads of the usual width."""
    spec, head_dim = AttentionSpec.parse(config.attention), config.embed_dim // config.heads
    dropout = config.attention_dropout
    return build_attention(spec, "encoder", layer, num_heads, head_dim, dropout, "--attention")


@vision_blocks.register("transformer")
class TransformerBlock(nn.Module):
    """Self-attention and feed-forward network, each in a pre-norm residual branch.

    Args:
        config: the model's settings.
        index: number of the block, from 0.

    Reference: Dosovitskiy et al. 2021, "An image is worth 16x16 words", Eq. 2 and 3.
    """

    def __init__(self, config: VisionTransformerConfig, index: int) -> None:
        super().__init__()
        attention = SelfAttention(config.embed_dim, mechanism(config, index, config.heads))
        drop_path = growing(config.drop_path, index, config.layers)
        placement = pre_norm(config, config.embed_dim, drop_path)
        self.layer = TransformerLayer(placement, attention)
        linears = [m for m in self.layer.feed_forward.modules() if isinstance(m, nn.Linear)]
        initialize(*(m.weight for m in (attention.qkv, attention.out_proj, *linears)))

    def forward(self, x: Tensor, visibility: Visibility, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]."""
        return self.layer(x, visibility)


@vision_blocks.register("gau")
class GatedBlock(nn.Module):
    """Two gated attention units in place of attention and feed-forward network.

    Their queries and keys have the paper's width of 128, whatever the heads, and they are half as
    wide inside as the feed-forward network that they replace.

    Args:
        config: the model's settings.
        index: number of the block, from 0.

    Raises:
        ConfigError: the attention is another than an ungated ``pointwise``, or there are settings
            of a feed-forward network.

    Reference: Hua et al. 2022, "Transformer quality in linear time", section 2.2.
    """

    def __init__(self, config: VisionTransformerConfig, index: int) -> None:
        super().__init__()
        spec = AttentionSpec.parse(config.attention)
        if spec.name != "pointwise" or spec.options.get("gate", "none") != "none":
            raise ConfigError(
                f"--block gau has a gate of its own and works with --attention pointwise:h=relu2 "
                f"(or another h) without one, not with --attention {config.attention}"
            )
        usual = ("gelu", "gelu-tanh") if config.vit.big_vision else ("gelu",)
        if config.activation_dropout or config.feed_forward not in usual:
            raise ConfigError(
                "--block gau has no feed-forward network; leave out --activation-dropout and "
                "--feed-forward"
            )
        drop_path = growing(config.drop_path, index, config.layers)
        placement = pre_norm(config, config.embed_dim, drop_path)
        inner_dim = max(1, config.ffn_dim // 2)
        units = [
            GatedAttentionUnit(
                config.embed_dim,
                inner_dim,
                build_attention(
                    spec, "encoder", layer, 1, BASE_DIM, config.attention_dropout, "--attention"
                ),
            )
            for layer in (2 * index, 2 * index + 1)
        ]
        for unit in units:
            initialize(*unit.matrices())
        self.units = nn.ModuleList(units)
        residuals = nn.ModuleList(Residual(placement) for _ in units)
        self.residuals = cast(Sequence[Residual], residuals)

    def forward(self, x: Tensor, visibility: Visibility, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]."""
        for unit, residual in zip(self.units, self.residuals, strict=True):
            x = residual.add(x, unit(residual.before(x), visibility))
        return x


class GatedAttentionUnit(nn.Module):
    """out = (u * (A v)) W_o, with A = n^-alpha h(q k^T / sqrt(s)) of a single head.

    u = silu(x W_u) and v = silu(x W_v) have width e, 2 D in the paper; q = b * g1 + b1 and
    k = b * g2 + b2 share the base b = silu(x W_b) of width s. With 6 D^2 + s D weights, two units
    take the place of attention (4 D^2) and feed-forward network (8 D^2). Like a sublayer, a unit
    has neither norm nor residual connection; put it in
    :class:`~relu_nmt.modules.transformer_layer.Residual`.

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
        self.draw_by_xavier()

    def matrices(self) -> tuple[Tensor, ...]:
        """Return W_u, W_v, W_b and W_o; the first three are views of one parameter."""
        return (*self.in_proj.weight.split(self.widths), self.out_proj.weight)

    def draw_by_xavier(self) -> None:
        """Draw each matrix by Xavier's uniform distribution."""
        for weight in self.matrices():
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

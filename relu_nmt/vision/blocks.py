"""The parts of vision transformers: patches and the registered blocks.

A block is a module made with (config, index of the block). Its ``forward(x, visibility, grid)``
maps tokens [B, N, D] to [B, N, D]; the last height * width of the N tokens are the patches of the
``grid``, row by row, those before them class tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import Tensor, nn

from relu_nmt.attention.base import Attention, build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.errors import ConfigError
from relu_nmt.modules.gated_attention_unit import GatedAttentionUnit
from relu_nmt.modules.multihead import SelfAttention
from relu_nmt.modules.transformer_layer import LayerConfig, Residual, TransformerLayer
from relu_nmt.vision import vision_blocks
from relu_nmt.vision.config import VisionTransformerConfig

INIT_STD = 0.02
NORM_EPS = 1e-6


class Grid(NamedTuple):
    """How the patches of an image lie, in patches."""

    height: int
    width: int


def initialize(*weights: Tensor) -> None:
    """Draw weights from the normal distribution of standard deviation .02, cut off at 2."""
    for weight in weights:
        nn.init.trunc_normal_(weight, std=INIT_STD)


class PatchEmbedding(nn.Module):
    """A linear map of each patch: the convolution whose stride is its width, as one product.

    Args:
        patch_size: P, pixels a side.
        embed_dim: D.
    """

    def __init__(self, patch_size: int, embed_dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.projection = nn.Linear(3 * patch_size**2, embed_dim)
        initialize(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def grid(self, images: Tensor) -> Grid:
        """Return the grid of the patches of images [B, 3, Y, X]."""
        return Grid(images.size(2) // self.patch_size, images.size(3) // self.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, 3, Y, X] to patches [B, N, D], row by row."""
        size = self.patch_size
        # [B, 3, Y/P, P, X/P, P] -> [B, Y/P, X/P, 3, P, P], in the order of a convolution's weight.
        patches = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return self.projection(patches)


def layer_config(config: VisionTransformerConfig, index: int) -> LayerConfig:
    """Return shape and placement of the parts of a pre-norm block."""
    return LayerConfig(
        embed_dim=config.embed_dim,
        ffn_dim=config.ffn_dim,
        feed_forward=config.feed_forward,
        norm=config.norm,
        norm_eps=NORM_EPS,
        normalize_before=True,
        dropout=config.dropout,
        activation_dropout=config.activation_dropout,
        drop_path=config.drop_path * index / max(1, config.layers - 1),
        layer_scale=config.layer_scale,
    )


def mechanism(config: VisionTransformerConfig, layer: int, num_heads: int) -> Attention:
    """Return the attention of a block, with heads of the usual width."""
    spec, head_dim = AttentionSpec.parse(config.attention), config.embed_dim // config.heads
    dropout = config.attention_dropout
    return build_attention(spec, "encoder", layer, num_heads, head_dim, dropout)


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
        self.layer = TransformerLayer(layer_config(config, index), attention)
        linears = [m for m in self.layer.feed_forward.modules() if isinstance(m, nn.Linear)]
        initialize(*(m.weight for m in (attention.qkv, attention.out_proj, *linears)))

    def forward(self, x: Tensor, visibility: Visibility, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]."""
        return self.layer(x, visibility)


@vision_blocks.register("gau")
class GatedBlock(nn.Module):
    """Two gated attention units in place of attention and feed-forward network.

    Their queries and keys are as wide as a head, and they are half as wide inside as the
    feed-forward network that they replace.

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
        if config.activation_dropout or config.feed_forward != "gelu":
            raise ConfigError(
                "--block gau has no feed-forward network; leave out --activation-dropout and "
                "--feed-forward"
            )
        placement = layer_config(config, index)
        inner_dim = max(1, config.ffn_dim // 2)
        units = [
            GatedAttentionUnit(config.embed_dim, inner_dim, mechanism(config, 2 * index + i, 1))
            for i in range(2)
        ]
        for unit in units:
            initialize(unit.in_proj.weight, unit.out_proj.weight)
        self.units = nn.ModuleList(units)
        residuals = nn.ModuleList(Residual(placement) for _ in units)
        self.residuals = cast(Sequence[Residual], residuals)

    def forward(self, x: Tensor, visibility: Visibility, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]."""
        for unit, residual in zip(self.units, self.residuals, strict=True):
            x = residual.add(x, unit(residual.before(x), visibility))
        return x

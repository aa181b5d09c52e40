"""The vision transformer (ViT, DeiT): patch embedding, transformer blocks, classifier.

A block of a ViT is a module registered in ``vision_blocks`` and made with (config, index of the
block). Its ``forward(x, visibility, grid)`` maps tokens [B, N, D] to [B, N, D]. The last
height * width of the N tokens are the patches of the ``grid``, row by row. Class tokens precede
them.
"""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.dropout import Dropout
from relu_nmt.attention.masks import Visibility
from relu_nmt.config.registry import Spec
from relu_nmt.errors import ConfigError
from relu_nmt.modules import norms
from relu_nmt.modules.feed_forward import FeedForward
from relu_nmt.modules.multihead import SelfAttention
from relu_nmt.modules.recompute import run_layer
from relu_nmt.modules.transformer_layer import Residual, TransformerLayer
from relu_nmt.vision import vision_blocks, vision_models
from relu_nmt.vision.base import (
    NORM_EPS,
    Grid,
    VisionModel,
    exempt_from_decay,
    grid_of,
    growing,
    initialize,
    initialize_linears,
    mechanism,
    pre_norm,
    resize_positions,
)
from relu_nmt.vision.config import VisionTransformerConfig

BASE_DIM = 128
"""Width of queries and keys of gated attention units in the paper."""
CUT_NORMAL_STD = 0.87962566103423978
"""Standard deviation of a standard normal distribution that is cut off at -2 and 2."""


class PatchEmbedding(nn.Module):
    """A linear map of each patch of P x Q pixels: a convolution of this stride, as one product."""

    def __init__(self, sides: tuple[int, int], embed_dim: int) -> None:
        super().__init__()
        self.sides = sides
        self.projection = nn.Linear(3 * sides[0] * sides[1], embed_dim)
        initialize(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Map images [B, 3, Y, X] to patches [B, N, D], row by row, and their grid."""
        height, width = self.sides
        # Pad to whole patches, below and on the right, with zeros: the mean color.
        below = -images.size(2) % height
        right = -images.size(3) % width
        if below or right:
            images = F.pad(images, (0, right, 0, below))
        # Cut into patches: [B, 3, Y/P, P, X/Q, Q].
        patches = images.unflatten(3, (-1, width)).unflatten(2, (-1, height))
        # Flatten each patch in the order of a convolution's weight: [B, Y/P, X/Q, 3 P Q].
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3)
        grid = Grid(patches.size(1), patches.size(2))
        return self.projection(patches.flatten(1, 2)), grid  # [B, N, D]


@vision_blocks.register("transformer")
class TransformerBlock(nn.Module):
    """y = x + attention(norm(x)), then y + FFN(norm(y)): a pre-norm transformer layer.

    Reference: Dosovitskiy et al. 2021, "An image is worth 16x16 words", Eq. 2 and 3.
    """

    def __init__(self, config: VisionTransformerConfig, index: int) -> None:
        super().__init__()
        attention = SelfAttention(config.embed_dim, mechanism(config, index, config.heads))
        drop_path = growing(config.drop_path, index, config.layers)
        self.layer = TransformerLayer(pre_norm(config, config.embed_dim, drop_path), attention)
        feed_forward = self.layer.feed_forward.modules()
        initialize_linears((attention.qkv, attention.out_proj, *feed_forward))

    def forward(self, x: Tensor, visibility: Visibility, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]."""
        return self.layer(x, visibility)


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
        # Refuse settings that the units cannot use.
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
        placement = pre_norm(config, dim, growing(config.drop_path, index, config.layers))
        residuals = nn.ModuleList(Residual(placement) for _ in units)
        self.residuals = cast(Sequence[Residual], residuals)

    def forward(self, x: Tensor, visibility: Visibility, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]."""
        for unit, residual in zip(self.units, self.residuals, strict=True):
            x = residual.add(x, unit(residual.before(x), visibility))
        return x


@vision_models.register("vit")
class VisionTransformer(VisionModel):
    """Patches with learned positions through pre-norm blocks to a linear classifier.

    For images of another size the learned positions are interpolated.

    Example:
        >>> config = VisionTransformerConfig(image_size=32, patch_size=4, layers=1)
        >>> tuple(VisionTransformer(config, 10)(torch.zeros(2, 3, 32, 32)).logits.shape)
        (2, 10)

    Reference: Dosovitskiy et al. 2021, "An image is worth 16x16 words", Eq. 1-4. Touvron et al.
    2021, "Training data-efficient image transformers" (DeiT), without the distillation token. With
    ``big_vision`` the model has the form of Beyer et al. 2022, "Big Vision", the code of Wortsman
    et al. 2023, "Replacing softmax with ReLU in vision transformers".
    """

    classifier = ("norm", "tanh_layer", "head")

    def __init__(self, config: VisionTransformerConfig, num_classes: int) -> None:
        super().__init__(config)
        dim = config.embed_dim
        # Embed the patches. Add a class token in front, and positions.
        self.patches = PatchEmbedding(config.patch_sides, dim)
        self.grid = grid_of(config.image_sides, config.patch_sides)
        self.class_token = None
        if config.pooling == "class":
            self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.num_tokens = self.grid.num_patches + (self.class_token is not None)
        # Leave the class token without a position in Big Vision's form.
        placed = self.grid.num_patches if config.big_vision else self.num_tokens
        self.positions = nn.Parameter(torch.empty(placed, dim))
        self.dropout = Dropout(config.dropout)
        make_block = vision_blocks.get(config.block)
        self.blocks = nn.ModuleList(make_block(config, i) for i in range(config.layers))
        self.norm = norms.get(config.norm)(dim, NORM_EPS)
        self.tanh_layer = nn.Linear(dim, dim) if config.tanh_layer else None
        self.head = nn.Linear(dim, num_classes)
        initialize(self.positions, self.head.weight)
        nn.init.constant_(self.head.bias, config.head_bias)
        if self.class_token is not None:
            initialize(self.class_token)
        if self.tanh_layer is not None:
            initialize(self.tanh_layer.weight)
            nn.init.zeros_(self.tanh_layer.bias)
        if config.big_vision:
            self._draw_as_big_vision()
        exempt_from_decay(self, self.class_token, self.positions)

    def encode(self, images: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        # Eq. 1: z = [class token, E patch 1, E patch 2, ...] + positions.
        x, grid = self.patches(images)  # [B, height * width, D]
        positions = resize_positions(self.positions, self.grid, grid)
        if self.class_token is not None:
            token = self.class_token.expand(x.size(0), -1, -1)
            if self.config.big_vision:
                positions = F.pad(positions, (0, 0, 1, 0))  # zero for the class token
            x = torch.cat([token, x], dim=1)  # [B, N, D]
        x = self.dropout(x + positions)
        # Eq. 2 and 3: every block, in which each token attends to all.
        visibility = Visibility(x.size(1), x.size(1), device=x.device, grid=grid)
        for block in self.blocks:
            x = run_layer(block, (x, visibility, grid), self.config.checkpoint_activations)
            yield x, grid

    def features(self, tokens: Tensor) -> Tensor:
        # Eq. 4: y = norm(class token), before the linear classifier.
        x = self.norm(tokens)  # [B, N, D]
        pooled = x.mean(1) if self.class_token is None else x[:, 0]  # [B, D]
        return pooled if self.tanh_layer is None else self.tanh_layer(pooled).tanh()

    def _draw_as_big_vision(self) -> None:
        """Draw the initial weights of Big Vision, and Flax's defaults where it sets none."""
        nn.init.normal_(self.positions, std=self.config.embed_dim**-0.5)
        nn.init.zeros_(self.head.weight)
        if self.class_token is not None:
            nn.init.zeros_(self.class_token)
        # Linear maps outside of the blocks: Flax's truncated normal distribution.
        for linear in (self.patches.projection, self.tanh_layer):
            if linear is not None:
                std = linear.in_features**-0.5 / CUT_NORMAL_STD
                nn.init.trunc_normal_(linear.weight, std=std, a=-2 * std, b=2 * std)
        # Blocks: Xavier, with queries, keys and values as separate matrices.
        for module in self.blocks.modules():
            if isinstance(module, SelfAttention):
                for weight in (*module.qkv.weight.chunk(module.parts), module.out_proj.weight):
                    nn.init.xavier_uniform_(weight)
            elif isinstance(module, FeedForward):
                for weight in (*module.inner.weight.chunk(1 + module.gated), module.outer.weight):
                    nn.init.xavier_uniform_(weight)
                for linear in (module.inner, module.outer):
                    if linear.bias is not None:
                        nn.init.normal_(linear.bias, std=1e-6)
            elif isinstance(module, GatedAttentionUnit):
                module.draw_by_xavier()

"""The vision transformer (ViT, DeiT): patch embedding, transformer blocks, classifier.

A block of a ViT is a module registered in ``vision_blocks`` and made with (config, index of the
block). Its ``forward(x, visibility, grid)`` maps tokens [B, N, D] to [B, N, D]. The last
height * width of the N tokens are the patches of the ``grid``, row by row. Class tokens precede
them.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.masks import Visibility
from relu_nmt.modules import norms
from relu_nmt.modules.feed_forward import FeedForward
from relu_nmt.modules.multihead import SelfAttention
from relu_nmt.modules.transformer_layer import TransformerLayer
from relu_nmt.vision import base, vision_blocks, vision_models
from relu_nmt.vision.base import Grid, VisionModel
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.gated_block import GatedAttentionUnit

CUT_NORMAL_STD = 0.87962566103423978
"""Standard deviation of a standard normal distribution that is cut off at -2 and 2."""


class PatchEmbedding(nn.Module):
    """A linear map of each patch of P x Q pixels: a convolution of this stride, as one product."""

    def __init__(self, sides: tuple[int, int], embed_dim: int) -> None:
        super().__init__()
        self.sides = sides
        self.projection = nn.Linear(3 * sides[0] * sides[1], embed_dim)
        base.initialize(self.projection.weight)
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
        attention = SelfAttention(config.embed_dim, base.mechanism(config, index, config.heads))
        rate = base.drop_path_rates(config.drop_path, config.layers)[index]
        self.layer = TransformerLayer(base.block_config(config, config.embed_dim, rate), attention)
        feed_forward = self.layer.feed_forward.modules()
        base.initialize_linears((attention.qkv, attention.out_proj, *feed_forward))

    def forward(self, x: Tensor, visibility: Visibility, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]."""
        return self.layer(x, visibility)


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
        self.grid = base.grid_of(config.image_sides, config.patch_sides)
        self.class_token = None
        if config.pooling == "class":
            self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.num_tokens = self.grid.num_patches + (self.class_token is not None)
        # Leave the class token without a position in Big Vision's form.
        placed = self.grid.num_patches if config.big_vision else self.num_tokens
        self.positions = nn.Parameter(torch.empty(placed, dim))
        make_block = vision_blocks.get(config.block)
        self.blocks = nn.ModuleList(make_block(config, i) for i in range(config.layers))
        self.norm = norms.get(config.norm)(dim, base.NORM_EPS)
        self.tanh_layer = nn.Linear(dim, dim) if config.tanh_layer else None
        self.head = nn.Linear(dim, num_classes)
        base.initialize(self.positions, self.head.weight)
        nn.init.constant_(self.head.bias, config.head_bias)
        base.initialize(self.class_token)
        if self.tanh_layer is not None:
            base.initialize(self.tanh_layer.weight)
            nn.init.zeros_(self.tanh_layer.bias)
        if config.big_vision:
            self._draw_as_big_vision()
        base.exempt_from_decay(self, self.class_token, self.positions)

    def encode(self, images: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        # Eq. 1: z = [class token, E patch 1, E patch 2, ...] + positions.
        x, grid = self.patches(images)  # [B, height * width, D]
        positions = base.resize_positions(self.positions, self.grid, grid)
        if self.class_token is not None:
            token = self.class_token.expand(x.size(0), -1, -1)
            if self.config.big_vision:
                positions = F.pad(positions, (0, 0, 1, 0))  # zero for the class token
            x = torch.cat([token, x], dim=1)  # [B, N, D]
        x = self.with_dropout(x + positions)
        # Eq. 2 and 3: every block, in which each token attends to all.
        visibility = Visibility(x.size(1), x.size(1), device=x.device, grid=grid)
        for block in self.blocks:
            x = self.run_block(block, x, visibility, grid)
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

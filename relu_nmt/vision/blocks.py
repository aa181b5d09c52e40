"""The parts that vision transformers share: patches, residual branches and the pre-norm block."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, Need, build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import AttentionRecord
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.dropout import Dropout
from relu_nmt.modules.feed_forward import FeedForward
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.vision.config import VisionTransformerConfig

INIT_STD = 0.02
NORM_EPS = 1e-6


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

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, 3, Y, X] to patches [B, N, D], row by row."""
        size = self.patch_size
        # [B, 3, Y/P, P, X/P, P] -> [B, Y/P, X/P, 3, P, P], in the order of a convolution's weight.
        patches = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return self.projection(patches)


class DropPath(nn.Module):
    """Stochastic depth: in training zero a whole image's branch, and scale the others up.

    Args:
        probability: 0 to below 1.

    Reference: Huang et al. 2016, "Deep networks with stochastic depth", section 3; the scale is
    applied in training instead of its inverse in evaluation.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Drop from x [B, ...]."""
        if self.probability == 0.0 or not self.training:
            return x
        kept = torch.rand(x.size(0), device=x.device) >= self.probability
        scale = kept.to(x.dtype) / (1 - self.probability)
        return x * scale.view(-1, *[1] * (x.dim() - 1))

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return str(self.probability)


class PreNormBranch(nn.Module):
    """x + drop_path(dropout(f(norm(x)))).

    Args:
        embed_dim: D.
        dropout: probability on the sublayer's output.
        drop_path: probability that an image skips the sublayer.
    """

    def __init__(self, embed_dim: int, dropout: float, drop_path: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed_dim, eps=NORM_EPS)
        self.dropout = Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply ``sublayer``, which maps [B, N, D] to [B, N, D]."""
        return x + self.drop_path(self.dropout(sublayer(self.norm(x))))


class VisionBlock(nn.Module):
    """Self-attention and feed-forward network, each in a pre-norm residual branch.

    Args:
        config: the model's settings.
        index: number of the block, from 0.
    """

    def __init__(self, config: VisionTransformerConfig, index: int) -> None:
        super().__init__()
        dim, heads = config.embed_dim, config.heads
        spec = AttentionSpec.parse(config.attention)
        attention = build_attention(
            spec, "encoder", index, heads, dim // heads, config.attention_dropout
        )
        drop_path = config.drop_path * index / max(1, config.layers - 1)
        self.index = index
        self.attention = MultiheadAttention(dim, attention)
        self.attention_branch = PreNormBranch(dim, config.dropout, drop_path)
        self.feed_forward = FeedForward(dim, config.ffn_dim, "gelu", config.activation_dropout)
        self.feed_forward_branch = PreNormBranch(dim, config.dropout, drop_path)
        initialize(
            self.attention.in_proj_weight,
            self.attention.out_proj.weight,
            self.feed_forward.inner.weight,
            self.feed_forward.outer.weight,
        )

    def forward(
        self, x: Tensor, visibility: Visibility, need: Need, records: list[AttentionRecord]
    ) -> Tensor:
        """Map [B, N, D] to [B, N, D]; append to ``records`` what ``need`` asks for."""

        def self_attend(y: Tensor) -> Tensor:
            q, k, v = self.attention.self_projections(y)
            output = self.attention.attend(y, q, k, v, visibility, need)
            if need != NOTHING:
                records.append(
                    AttentionRecord("encoder", self.index, output.rows, output.weights, visibility)
                )
            return output.values

        x = self.attention_branch(x, self_attend)
        return self.feed_forward_branch(x, self.feed_forward)

"""What Swin and CvT have in common: blocks in stages, the later ones wider and on smaller maps."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import Tensor, nn

from relu_nmt.attention.base import Attention, build_attention
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.modules import norms
from relu_nmt.modules.feed_forward import build_feed_forward
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.modules.transformer_layer import Residual
from relu_nmt.vision.base import initialize
from relu_nmt.vision.blocks import pre_norm
from relu_nmt.vision.config import VisionTransformerConfig

NORM_EPS = 1e-5


def stage_norm(config: VisionTransformerConfig, dim: int) -> nn.Module:
    """Return a new normalisation of vectors of this width."""
    return norms.get(config.norm)(dim, NORM_EPS)


def stage_attention(config: VisionTransformerConfig, stage: int, layer: int) -> Attention:
    """Return the mechanism of a block.

    Args:
        config: the model's settings.
        stage: number of the stage, from 0.
        layer: number of the block in the model, from 0.
    """
    spec, heads = AttentionSpec.parse(config.attention), config.stages.stage_heads[stage]
    head_dim, dropout = config.stage_head_dim, config.attention_dropout
    return build_attention(spec, "encoder", layer, heads, head_dim, dropout, "--attention")


class StageBlock(nn.Module):
    """Attention and feed-forward network, each in a pre-norm residual branch.

    Args:
        config: the model's settings.
        attention: a module made with projections of its own; called with (x, place).
        drop_path: probability that an image skips a branch.
    """

    def __init__(
        self, config: VisionTransformerConfig, attention: MultiheadAttention, drop_path: float
    ) -> None:
        super().__init__()
        dim = attention.embed_dim
        placement = pre_norm(config, dim, drop_path, NORM_EPS)
        self.attention = attention
        self.attention_residual = Residual(placement)
        self.feed_forward = build_feed_forward(
            config.feed_forward, dim, placement.ffn_dim, config.activation_dropout
        )
        self.feed_forward_residual = Residual(placement)
        # A mechanism draws its own weights.
        made = (*attention.children(), *self.feed_forward.modules())
        initialize(*(module.weight for module in made if isinstance(module, nn.Linear)))

    def forward(self, x: Tensor, place: Any) -> Tensor:
        """Map [B, N, D] to [B, N, D].

        Args:
            x: the states.
            place: how they lie, as the attention wants to know it.
        """
        residual = self.attention_residual
        x = residual.add(x, self.attention(residual.before(x), place))
        residual = self.feed_forward_residual
        return residual.add(x, self.feed_forward(residual.before(x)))


def build_stages(
    config: VisionTransformerConfig,
    attention: Callable[[VisionTransformerConfig, int, int], MultiheadAttention],
    drop_paths: Sequence[float],
) -> Sequence[Sequence[StageBlock]]:
    """Return the blocks of each stage, as a module.

    Args:
        config: the model's settings.
        attention: makes that of a block from the settings and the numbers of stage and block.
        drop_paths: probability that an image skips a branch of each block.
    """
    stages, layers = nn.ModuleList(), itertools.count()
    for stage, count in enumerate(config.stages.stage_layers):
        numbers = itertools.islice(layers, count)
        stages.append(
            nn.ModuleList(
                StageBlock(config, attention(config, stage, layer), drop_paths[layer])
                for layer in numbers
            )
        )
    return cast(Sequence[Sequence[StageBlock]], stages)

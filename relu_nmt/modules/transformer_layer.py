"""The transformer layer of encoders, decoders and vision models.

:class:`TransformerLayer` calls attention and the feed-forward network, each in a :class:`Residual`
with norm and dropout.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.dropout import dropout
from relu_nmt.attention.masks import Visibility
from relu_nmt.modules import norms
from relu_nmt.modules.config import TransformerOptions
from relu_nmt.modules.feed_forward import build_feed_forward
from relu_nmt.modules.multihead import CrossAttentionBase, KeyValueCache, SelfAttentionBase
from relu_nmt.modules.positions import NO_POSITIONS, RelativePositions


@dataclass(frozen=True)
class LayerConfig:
    """Shape and placement of the parts of a layer."""

    options: TransformerOptions  # options of the model: feed-forward network, norm and dropout
    embed_dim: int  # width D
    ffn_dim: int  # inner width of the feed-forward network
    norm_eps: float = 1e-5  # added to the variance in the norms
    normalize_before: bool = False  # put norms before the sublayers (pre-norm), not after the sums
    drop_path: float = 0.0  # probability that a sample skips a sublayer
    # Initial value of one gain a channel on the sublayers' outputs. 0: no gains.
    layer_scale: float = 0.0

    def make_norm(self) -> nn.Module:
        """Return a new norm of the states."""
        return norms.get(self.options.norm)(self.embed_dim, self.norm_eps)


class TransformerLayer(nn.Module):
    """Self-attention, in a decoder attention to the encoder, and a feed-forward network.

    The same layer serves encoders and vision models (no cross-attention), decoders with all
    target positions at once, and decoders step by step: x then holds the newest position of every
    beam, and a cache the positions before.

    Reference: Vaswani et al. 2017, "Attention is all you need", section 3.1.
    """

    def __init__(
        self,
        config: LayerConfig,
        self_attention: SelfAttentionBase,
        cross_attention: CrossAttentionBase | None = None,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.self_attention_residual = Residual(config)
        self.cross_attention = cross_attention
        if cross_attention is not None:
            self.cross_attention_residual = Residual(config)
        options = config.options
        self.feed_forward = build_feed_forward(
            options.feed_forward, config.embed_dim, config.ffn_dim, options.activation_dropout
        )
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        visibility: Visibility,
        relative: RelativePositions = NO_POSITIONS,
        memory: Tensor | None = None,
        memory_visibility: Visibility | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Map states to states, [B, N, D] each.

        Args:
            x: [B, N, D], all positions. With a cache the newest ones.
            visibility: which states each state may see.
            relative: rotation and bias of the position scheme.
            memory: [B, S, D], the encoder's states. None without cross-attention, or with a cache.
            memory_visibility: which states of the memory each state may see.
            cache: keys and values of earlier positions and of the memory. It stores the new ones.
        """
        x = self.self_attention_residual(x, self.self_attention, visibility, relative, cache)
        if self.cross_attention is not None:
            source = memory if cache is None else cache
            assert source is not None and memory_visibility is not None, "a memory is needed"
            x = self.cross_attention_residual(x, self.cross_attention, memory_visibility, source)
        return self.feed_forward_residual(x, self.feed_forward)


class Residual(nn.Module):
    """x + f(norm(x)) (pre-norm) or norm(x + f(x)) (post-norm) around a sublayer f.

    Gains, dropout and stochastic depth act on the output of f.

    Reference: the gains are LayerScale, Touvron et al. 2021, "Going deeper with image
    transformers", Eq. 4.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.norm = config.make_norm()
        self.normalize_before = config.normalize_before
        self.dropout = config.options.dropout
        self.drop_path = config.drop_path
        self.gain = None
        if config.layer_scale:
            self.gain = nn.Parameter(torch.full((config.embed_dim,), config.layer_scale))

    def forward(self, x: Tensor, sublayer: nn.Module, *inputs: Any) -> Tensor:
        """Return the states [B, N, D] after f, with f(y) = ``sublayer(y, *inputs)``."""
        return self.add(x, sublayer(self.before(x), *inputs))

    def before(self, x: Tensor) -> Tensor:
        """Return the input [B, N, D] of the sublayer for states x [B, N, D]."""
        return self.norm(x) if self.normalize_before else x

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the sublayer's output y [B, N, D] to the states x [B, N, D]."""
        if self.gain is not None:
            y = y * self.gain
        if self.training:
            y = drop_path(dropout(y, self.dropout), self.drop_path)
        x = x + y
        return x if self.normalize_before else self.norm(x)


def drop_path(x: Tensor, probability: float) -> Tensor:
    """Zero whole samples of a branch x [B, ...] in training, and scale other samples up.

    Reference: Huang et al. 2016, "Deep networks with stochastic depth", section 3. The scale is
    applied in training instead of its inverse in evaluation.
    """
    if probability == 0.0:
        return x
    is_kept = torch.rand(x.size(0), device=x.device) >= probability
    scale = is_kept.to(x.dtype) / (1 - probability)
    return x * scale.view(-1, *[1] * (x.dim() - 1))


norms.register("layer")(nn.LayerNorm)  # Ba et al. 2016, "Layer normalization", Eq. 4


@norms.register("rms")
class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * gain.

    Reference: Zhang and Sennrich 2019, "Root mean square layer normalization", Eq. 4.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D]. Under autocast to float32, as LayerNorm does."""
        return F.rms_norm(x.to(self.weight.dtype), self.normalized_shape, self.weight, self.eps)

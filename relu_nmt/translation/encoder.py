"""The encoder, and the parts that the decoder shares: input embedding and stack of layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, build_attention
from relu_nmt.attention.dropout import dropout
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.sentences import SentenceRows
from relu_nmt.config.registry import Spec
from relu_nmt.errors import ConfigError
from relu_nmt.modules import position_schemes
from relu_nmt.modules.multihead import CrossAttentionBase, SelfAttention, SelfAttentionBase
from relu_nmt.modules.positions import PositionConfig, PositionScheme, build_positions, kinds_of
from relu_nmt.modules.recompute import recomputed
from relu_nmt.modules.transformer_layer import LayerConfig, TransformerLayer
from relu_nmt.translation.config import TransformerConfig


def token_embedding(vocab_size: int, embed_dim: int, pad_index: int) -> nn.Embedding:
    """Return a table [V, D] drawn from N(0, 1/D), zero at the padding symbol."""
    table = nn.Embedding(vocab_size, embed_dim, padding_idx=pad_index)
    nn.init.normal_(table.weight, std=embed_dim**-0.5)
    nn.init.zeros_(table.weight[pad_index])
    return table


class InputEmbedding(nn.Module):
    """Token vectors times sqrt(D) plus position vectors, then an optional norm and dropout."""

    def __init__(self, config: TransformerConfig, side: str, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = _position_scheme(config, side)
        self.scale = 1.0 if config.no_scale_embedding else math.sqrt(tokens.embedding_dim)
        normed = config.layernorm_embedding
        self.norm = _layer_config(config, side).make_norm() if normed else nn.Identity()
        self.dropout = config.dropout

    def forward(self, tokens: Tensor, first: int = 0, positions: Tensor | None = None) -> Tensor:
        """Embed token ids [B, N] as [B, N, D], from position ``first`` on or at ``positions``."""
        # Scale the token vectors, [B, N, D], so that they are as large as the positions.
        x = self.tokens(tokens) * self.scale
        # Look up the position vectors: consecutive ones, or one per token.
        if positions is None:
            vectors = self.positions.embed(tokens.size(1), first)
        else:
            table = self.positions.embed(int(positions.max()) + 1)
            vectors = None if table is None else F.embedding(positions, table)
        if vectors is not None:
            x = x + vectors
        x = self.norm(x)
        return dropout(x, self.dropout) if self.training else x


class TransformerStack(nn.Module):
    """Embedding, layers and, if pre-norm, a final norm: the base of encoder and decoder."""

    side: ClassVar[str]

    def __init__(self, config: TransformerConfig, tokens: nn.Embedding, pad_index: int) -> None:
        super().__init__()
        self.config = config
        self.pad_index = pad_index
        self.recompute = config.checkpoint_activations
        self.layerdrop = getattr(config, f"{self.side}_layerdrop")
        self.embedding = InputEmbedding(config, self.side, tokens)
        parts = _layer_config(config, self.side)
        layers = []
        for i in range(getattr(config, f"{self.side}_layers")):
            self_attention = self.make_self_attention(parts.embed_dim, i)
            cross_attention = self.make_cross_attention(parts.embed_dim, i)
            layers.append(TransformerLayer(parts, self_attention, cross_attention))
        self.layers = cast(Sequence[TransformerLayer], nn.ModuleList(layers))
        # Normalize the output of pre-norm layers, which normalize only their inputs.
        self.final_norm = parts.make_norm() if parts.normalize_before else nn.Identity()

    def make_self_attention(self, embed_dim: int, layer: int) -> SelfAttentionBase:
        """Return the self-attention of a layer, counted from 0."""
        return SelfAttention(embed_dim, make_mechanism(self.config, self.side, layer))

    def make_cross_attention(self, embed_dim: int, layer: int) -> CrossAttentionBase | None:
        """Return the cross-attention of a layer, counted from 0. None for a stack without one."""
        return None

    def run_layers(self, x: Tensor, inputs: tuple[Any, ...]) -> Tensor:
        """Return the states [B, N, D] of all positions of embedded tokens x [B, N, D].

        ``inputs`` are the arguments of each layer after x, such as the visibility. In training
        LayerDrop (Fan et al. 2020, section 3.1) may skip a layer for the whole batch. A skipped
        layer is computed all the same, and its output has zero gradients, because distributed
        training waits for the gradients of all layers. Losses that read its attention still have
        gradients.
        """
        for layer in self.layers:
            before = x
            x = recomputed(layer, (x, *inputs)) if self.recompute else layer(x, *inputs)
            # Draw on the device whether to keep the layer: reading the draw would wait for it.
            if self.training and self.layerdrop:
                stays = torch.rand((), device=x.device) >= self.layerdrop
                x = torch.where(stays, x, before)
        return self.final_norm(x)


@dataclass
class EncoderOutput:
    """The encoded source."""

    states: Tensor  # [B, S, D]
    key_mask: Tensor  # [B, S] bool, True = real token
    sentences: SentenceRows | None = None  # the sentences of the source, for aligned attention


class Encoder(TransformerStack):
    """Layers of self-attention over the whole source."""

    side = "encoder"

    def forward(self, src_tokens: Tensor) -> EncoderOutput:
        """Encode src_tokens [B, S], right-padded."""
        key_mask = src_tokens != self.pad_index
        length = src_tokens.size(1)
        visibility = Visibility(length, length, key_mask=key_mask, query_mask=key_mask)
        # Compute the rotation and bias of the position scheme once for all layers.
        relative = self.embedding.positions.relative(visibility)
        states = self.run_layers(self.embedding(src_tokens), (visibility, relative))
        return EncoderOutput(states, key_mask)


def _layer_config(config: TransformerConfig, side: str) -> LayerConfig:
    return LayerConfig(
        config,
        embed_dim=getattr(config, f"{side}_embed_dim"),
        ffn_dim=getattr(config, f"{side}_ffn_embed_dim"),
        normalize_before=getattr(config, f"{side}_normalize_before"),
    )


def make_mechanism(config: TransformerConfig, slot: str, layer: int) -> Attention:
    """Return the attention mechanism of a slot and layer."""
    side = "encoder" if slot == "encoder" else "decoder"
    heads = getattr(config, f"{side}_attention_heads")
    head_dim = getattr(config, f"{side}_embed_dim") // heads
    spec = Spec.parse(config.attention_of(slot))
    flag = config.attention_flag_of(slot)
    return build_attention(spec, slot, layer, heads, head_dim, config.attention_dropout, flag)


def _position_scheme(config: TransformerConfig, side: str) -> PositionScheme:
    # Check that the attention has scores, if the scheme adds to them.
    names = config.positions_of(side)
    if not config.has_scores(side) and any(kind.needs_scores for kind in kinds_of(names)):
        without = [n for n in position_schemes.names() if not position_schemes.get(n).needs_scores]
        raise ConfigError(
            f"--{side}-positions {names} acts on attention scores, which "
            f"{config.attention_flag_of(side)} {config.attention_of(side)} does not compute; "
            f"choose {', '.join(without)} or another attention"
        )
    which = {"encoder": "source", "decoder": "target"}[side]
    position_config = PositionConfig(
        embed_dim=getattr(config, f"{side}_embed_dim"),
        num_heads=getattr(config, f"{side}_attention_heads"),
        causal=side == "decoder",
        max_positions=config.max_positions_of(side),
        flag=f"--max-{which}-positions",
    )
    return build_positions(names, position_config)

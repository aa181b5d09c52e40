"""The transformer encoder."""

from dataclasses import dataclass

from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, Need, build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import AttentionRecord
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.models.config import TransformerConfig
from relu_nmt.modules.embedding import InputEmbedding
from relu_nmt.modules.feed_forward import FeedForward
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.modules.residual import Residual


@dataclass
class EncoderOutput:
    """What the decoder sees of the source.

    Args:
        states: [B, S, D].
        key_mask: [B, S] bool, True = real token.
        records: statistics or weights of the encoder's attention, if asked for.
    """

    states: Tensor
    key_mask: Tensor
    records: list[AttentionRecord]


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each in a residual connection."""

    def __init__(self, config: TransformerConfig, index: int) -> None:
        super().__init__()
        dim, heads = config.encoder_embed_dim, config.encoder_attention_heads
        spec = AttentionSpec.parse(config.attention_of("encoder"))
        attention = build_attention(
            spec, "encoder", index, heads, dim // heads, config.attention_dropout
        )
        before = config.encoder_normalize_before
        self.index = index
        self.self_attention = MultiheadAttention(dim, attention)
        self.self_attention_residual = Residual(dim, before, config.dropout)
        self.feed_forward = FeedForward(
            dim, config.encoder_ffn_embed_dim, config.activation_fn, config.activation_dropout
        )
        self.feed_forward_residual = Residual(dim, before, config.dropout)

    def forward(
        self, x: Tensor, visibility: Visibility, need: Need, records: list[AttentionRecord]
    ) -> Tensor:
        """Map [B, S, D] to [B, S, D]; append to ``records`` what ``need`` asks for."""

        def self_attend(y: Tensor) -> Tensor:
            q, k, v = self.self_attention.self_projections(y)
            output = self.self_attention.attend(y, q, k, v, visibility, need)
            if need != NOTHING:
                records.append(
                    AttentionRecord("encoder", self.index, output.rows, output.weights, visibility)
                )
            return output.values

        x = self.self_attention_residual(x, self_attend)
        return self.feed_forward_residual(x, self.feed_forward)


class Encoder(nn.Module):
    """Embedding and a stack of layers; a final LayerNorm if pre-norm.

    Args:
        config: the model's settings.
        embedding: maps source tokens [B, S] to [B, S, D].
        pad_index: id of the padding symbol.
    """

    def __init__(
        self, config: TransformerConfig, embedding: InputEmbedding, pad_index: int
    ) -> None:
        super().__init__()
        self.pad_index = pad_index
        self.embedding = embedding
        self.layers = nn.ModuleList(EncoderLayer(config, i) for i in range(config.encoder_layers))
        self.final_norm = (
            nn.LayerNorm(config.encoder_embed_dim)
            if config.encoder_normalize_before
            else nn.Identity()
        )

    def forward(self, src_tokens: Tensor, need: Need = NOTHING) -> EncoderOutput:
        """Encode src_tokens [B, S], right-padded."""
        key_mask = src_tokens != self.pad_index
        length = src_tokens.size(1)
        visibility = Visibility(length, length, key_mask=key_mask, query_mask=key_mask)
        records: list[AttentionRecord] = []
        x = self.embedding(src_tokens)
        for layer in self.layers:
            x = layer(x, visibility, need, records)
        return EncoderOutput(self.final_norm(x), key_mask, records)

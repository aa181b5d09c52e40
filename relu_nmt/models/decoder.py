"""The transformer decoder: all positions at once, or one position of every beam."""

from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, AttentionOutput, Need, build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import AttentionRecord
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.models.config import TransformerConfig
from relu_nmt.models.decoder_state import DecoderState, LayerCache
from relu_nmt.models.encoder import EncoderOutput
from relu_nmt.modules.embedding import InputEmbedding
from relu_nmt.modules.feed_forward import FeedForward
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.modules.residual import Residual


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder and feed-forward network."""

    def __init__(self, config: TransformerConfig, index: int) -> None:
        super().__init__()
        dim, before = config.decoder_embed_dim, config.decoder_normalize_before
        self.index = index
        self.self_attention = self._attention(config, "decoder", index)
        self.self_attention_residual = Residual(dim, before, config.dropout)
        self.cross_attention = self._attention(config, "cross", index)
        self.cross_attention_residual = Residual(dim, before, config.dropout)
        self.feed_forward = FeedForward(
            dim, config.decoder_ffn_embed_dim, config.activation_fn, config.activation_dropout
        )
        self.feed_forward_residual = Residual(dim, before, config.dropout)

    @staticmethod
    def _attention(config: TransformerConfig, slot: str, index: int) -> MultiheadAttention:
        dim, heads = config.decoder_embed_dim, config.decoder_attention_heads
        spec = AttentionSpec.parse(config.attention_of(slot))
        attention = build_attention(
            spec, slot, index, heads, dim // heads, config.attention_dropout
        )
        return MultiheadAttention(dim, attention)

    def forward(
        self,
        x: Tensor,
        encoder_out: EncoderOutput,
        visible: dict[str, Visibility],
        need: Need,
        records: list[AttentionRecord],
    ) -> Tensor:
        """Map [B, T, D] to [B, T, D] with all target positions at once.

        Args:
            x: decoder states [B, T, D].
            encoder_out: the encoded source.
            visible: the visibility of the slots ``decoder`` and ``cross``.
            need: what to record of the attentions.
            records: gets the records.
        """

        def record(slot: str, output: AttentionOutput) -> Tensor:
            if need != NOTHING:
                records.append(
                    AttentionRecord(slot, self.index, output.rows, output.weights, visible[slot])
                )
            return output.values

        def self_attend(y: Tensor) -> Tensor:
            q, k, v = self.self_attention.self_projections(y)
            output = self.self_attention.attend(y, q, k, v, visible["decoder"], need)
            return record("decoder", output)

        def cross_attend(y: Tensor) -> Tensor:
            k, v = self.cross_attention.keys_values(encoder_out.states)
            q = self.cross_attention.queries(y)
            output = self.cross_attention.attend(y, q, k, v, visible["cross"], need)
            return record("cross", output)

        x = self.self_attention_residual(x, self_attend)
        x = self.cross_attention_residual(x, cross_attend)
        return self.feed_forward_residual(x, self.feed_forward)

    def step(
        self, x: Tensor, cache: LayerCache, visible: dict[str, Visibility], need: Need
    ) -> tuple[Tensor, AttentionOutput]:
        """Advance every beam by one position.

        The beams of a sentence are the queries of one cross-attention and, in their groups, of
        one self-attention, so keys and values exist once, not once a beam.

        Args:
            x: states of the newest position [B, K, D].
            cache: keys and values so far; the new ones are added.
            visible: the visibility of the slots ``decoder`` and ``cross``.
            need: what to return of the cross-attention.

        Returns:
            states [B, K, D], and the output of the cross-attention (its queries are the beams).
        """
        newest = visible["decoder"]

        def self_attend(y: Tensor) -> Tensor:
            trees = y.reshape(-1, newest.num_queries, y.size(2))  # [R, k, D]
            q, k, v = self.self_attention.self_projections(trees)
            keys, values = cache.put(k, v, newest.num_keys)
            output = self.self_attention.attend(trees, q, keys, values, newest)
            return output.values.view_as(y)

        crossed: list[AttentionOutput] = []

        def cross_attend(y: Tensor) -> Tensor:
            q = self.cross_attention.queries(y)  # [B, H, K, d]
            keys, values = cache.source_keys, cache.source_values
            output = self.cross_attention.attend(y, q, keys, values, visible["cross"], need)
            crossed.append(output)
            return output.values

        x = self.self_attention_residual(x, self_attend)
        x = self.cross_attention_residual(x, cross_attend)
        return self.feed_forward_residual(x, self.feed_forward), crossed[0]


class Decoder(nn.Module):
    """Embedding and a stack of layers; a final LayerNorm if pre-norm.

    Args:
        config: the model's settings.
        embedding: maps target tokens [B, T] to [B, T, D].
        pad_index: id of the padding symbol.
    """

    def __init__(
        self, config: TransformerConfig, embedding: InputEmbedding, pad_index: int
    ) -> None:
        super().__init__()
        self.pad_index = pad_index
        self.embedding = embedding
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.decoder_layers))
        self.final_norm = (
            nn.LayerNorm(config.decoder_embed_dim)
            if config.decoder_normalize_before
            else nn.Identity()
        )

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOutput,
        need: Need,
        records: list[AttentionRecord],
    ) -> Tensor:
        """Return the states [B, T, D] of prev_output_tokens [B, T], right-padded."""
        length = prev_output_tokens.size(1)
        real = prev_output_tokens != self.pad_index
        visible = {
            # Padding stands on the right, where causality already hides it from real queries.
            "decoder": Visibility(length, length, query_mask=real, causal=True, device=real.device),
            "cross": Visibility(
                length,
                encoder_out.key_mask.size(1),
                key_mask=encoder_out.key_mask,
                query_mask=real,
            ),
        }
        x = self.embedding(prev_output_tokens)
        for layer in self.layers:
            x = layer(x, encoder_out, visible, need, records)
        return self.final_norm(x)

    def start(self, encoder_out: EncoderOutput) -> DecoderState:
        """Return the state before the first position, with one beam a sentence."""
        caches = []
        for layer in self.layers:
            keys, values = layer.cross_attention.keys_values(encoder_out.states)
            # Split into heads they are views, which every step's products would copy.
            caches.append(LayerCache(keys.contiguous(), values.contiguous()))
        return DecoderState(caches, encoder_out.key_mask)

    def step(self, tokens: Tensor, state: DecoderState, need: Need) -> tuple[Tensor, Tensor | None]:
        """Advance every beam by one token.

        Args:
            tokens: the newest token of each beam [B, K].
            state: advanced in place.
            need: what to compute of the last layer's cross-attention.

        Returns:
            states [B, K, D], and cross-attention weights [B, H, K, S] of the last layer if asked
            for.
        """
        batch, beam = tokens.shape
        x = self.embedding(tokens.reshape(-1, 1), state.length).view(batch, beam, -1)
        visible = {"decoder": state.grow(), "cross": state.cross_visibility}
        for layer, cache in zip(self.layers, state.caches, strict=True):
            is_last = layer is self.layers[-1]
            x, crossed = layer.step(x, cache, visible, need if is_last else NOTHING)
        return self.final_norm(x), crossed.weights

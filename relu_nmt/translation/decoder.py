"""The decoder, in one pass or step by step."""

from torch import Tensor, nn

from relu_nmt.attention.masks import Visibility
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.modules.multihead import CrossAttention, CrossAttentionBase
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.decoder_state import DecoderState, LayerCache
from relu_nmt.translation.encoder import EncoderOutput, TransformerStack, make_mechanism


class Decoder(TransformerStack):
    """Layers of causal self-attention and cross-attention, for all positions or step by step."""

    side = "decoder"

    def __init__(self, config: TransformerConfig, tokens: nn.Embedding, pad_index: int) -> None:
        super().__init__(config, tokens, pad_index)
        self.start_id = Dictionary().index(config.decoder_start_symbol)

    def make_cross_attention(self, embed_dim: int, layer: int) -> CrossAttentionBase:
        return CrossAttention(embed_dim, make_mechanism(self.config, "cross", layer))

    @property
    def cross_attentions(self) -> list[CrossAttentionBase]:
        """The cross-attention of every layer."""
        return [layer.cross_attention for layer in self.layers if layer.cross_attention is not None]

    def forward(self, prev_output_tokens: Tensor, encoder_out: EncoderOutput) -> Tensor:
        """Return the states [B, T, D] of prev_output_tokens [B, T], right-padded."""
        visibility, source_visibility = self.visibilities(prev_output_tokens, encoder_out)
        relative = self.embedding.positions.relative(visibility)
        inputs = visibility, relative, encoder_out.states, source_visibility
        return self.run_layers(self.embed(prev_output_tokens), inputs)

    def visibilities(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOutput
    ) -> tuple[Visibility, Visibility]:
        """Return the target and the source positions visible to each target position."""
        real = prev_output_tokens != self.pad_index
        key_mask = encoder_out.key_mask
        length = real.size(1)
        # Padding stands on the right, where causality already hides it from real queries.
        target = Visibility(length, length, query_mask=real, causal=True, device=real.device)
        source = Visibility(length, key_mask.size(1), key_mask=key_mask, query_mask=real)
        return target, source

    def embed(self, tokens: Tensor, first: int = 0, positions: Tensor | None = None) -> Tensor:
        """Return the embedded tokens [B, N, D], beginning with ``decoder_start_symbol``."""
        if self.start_id != Dictionary.eos_index:
            tokens = tokens.masked_fill(tokens == Dictionary.eos_index, self.start_id)
        return self.embedding(tokens, first, positions)

    def start(self, encoder_out: EncoderOutput, num_groups: int = 1) -> DecoderState:
        """Return the state before the first token."""
        # Project the source to keys and values once, for all steps.
        caches = []
        for attention in self.cross_attentions:
            keys, values = attention.memory_heads(attention.kv(encoder_out.states))
            caches.append(LayerCache(keys, values))
        return DecoderState(caches, encoder_out.key_mask, num_groups)

    def embed_step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, Visibility]:
        """Add tokens [B, K] to a state. Return embeddings [R, k, D] and their visibility."""
        # Add the entries of the newest tokens, before their positions are counted.
        visibility = state.grow(tokens)
        x = self.embed(tokens.reshape(-1, 1), state.length - 1)  # [B K, 1, D]
        # Group the beams by tree, [R, k, D].
        return x.view(-1, visibility.num_queries, x.size(-1)), visibility

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Add the newest tokens [B, K] of all beams to a state. Return their states [B, K, D]."""
        # Beams of one tree are queries of one attention: x is [R, k, D].
        x, visibility = self.embed_step(tokens, state)
        relative = self.embedding.positions.relative(visibility)
        source_visibility = state.cross_visibility
        for layer, cache in zip(self.layers, state.caches, strict=True):
            x = layer(x, visibility, relative, memory_visibility=source_visibility, cache=cache)
        return self.final_norm(x).view(*tokens.shape, -1)

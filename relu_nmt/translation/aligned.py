"""Encoder, decoder and decoding state whose attention stays inside sentences."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.masks import TreeVisibility, Visibility
from relu_nmt.attention.sentences import SentenceRows, SentenceView
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.modules.positions import RelativePositions
from relu_nmt.translation.aligned_attention import (
    AlignedCache,
    AlignedCrossAttention,
    AlignedSelfAttention,
)
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.decoder import Decoder
from relu_nmt.translation.decoder_state import DecoderState
from relu_nmt.translation.encoder import EncoderOutput, TransformerStack, make_mechanism


class AlignedStack(TransformerStack):
    """Layers whose attention stays inside sentences, which end in the symbol ``separator``.

    In training on a CPU it is computed in parts of sentences of similar lengths. This saves
    padding, which is worth more calls there.
    """

    def __init__(
        self, config: TransformerConfig, tokens: nn.Embedding, pad_index: int, separator: int
    ) -> None:
        super().__init__(config, tokens, pad_index)
        self.separator = separator

    def make_self_attention(self, embed_dim: int, layer: int) -> AlignedSelfAttention:
        """See :meth:`TransformerStack.make_self_attention`."""
        mechanism = make_mechanism(self.config, self.side, layer)
        gated = self.config.sees_document(self.side, layer)
        return AlignedSelfAttention(embed_dim, mechanism, gated)

    def divides(self, tokens: Tensor) -> bool:
        """Return True to compute attention in parts."""
        return self.training and not tuned.waits(tokens)

    def positions_of(self, view: SentenceView) -> list[RelativePositions | None]:
        """Return the rotations and biases of the whole document and of each part of sentences."""
        scheme = self.embedding.positions
        inside = [scheme.relative(visibility) for visibility, *_ in view.parts]
        return [scheme.relative(view.document), *inside]


class AlignedEncoder(AlignedStack):
    """An encoder whose tokens see only their own sentence, except in gated layers."""

    side = "encoder"

    def forward(self, src_tokens: Tensor) -> EncoderOutput:
        """Encode src_tokens [B, S], right-padded."""
        key_mask = src_tokens != self.pad_index
        length = src_tokens.size(1)
        document = Visibility(length, length, key_mask=key_mask, query_mask=key_mask)
        # A separator belongs to the sentence that it ends.
        ends = src_tokens.eq(self.separator).long()
        sentences = SentenceRows.of_tokens(ends.cumsum(1) - ends, key_mask)
        view = sentences.within(document, self.divides(src_tokens))
        x = self.embedding(src_tokens, positions=sentences.positions)
        states = self.run_layers(x, (view, self.positions_of(view)))
        return EncoderOutput(states, key_mask, sentences)


class AlignedDecoder(AlignedStack, Decoder):
    """A decoder whose tokens see their own sentence and the source sentence of equal number.

    Each decoder input belongs to the sentence of the token that it predicts.
    """

    def make_cross_attention(self, embed_dim: int, layer: int) -> AlignedCrossAttention:
        """See :meth:`TransformerStack.make_cross_attention`."""
        mechanism = make_mechanism(self.config, "cross", layer)
        gated = self.config.sees_document("cross", layer)
        return AlignedCrossAttention(embed_dim, mechanism, gated)

    def forward(self, prev_output_tokens: Tensor, encoder_out: EncoderOutput) -> Tensor:
        """Return the states [B, T, D] of prev_output_tokens [B, T], right-padded."""
        assert encoder_out.sentences is not None, "from an aligned encoder"
        document, source_document = self.visibilities(prev_output_tokens, encoder_out)
        # Number the sentences: a separator as input already belongs to the next one.
        numbers = prev_output_tokens.eq(self.separator).cumsum(1)
        sentences = SentenceRows.of_tokens(numbers, prev_output_tokens != self.pad_index)
        divided = self.divides(prev_output_tokens)
        # Show each token its own sentence, and the source sentence of equal number.
        view = sentences.within(document, divided)
        source_view = sentences.across(encoder_out.sentences, source_document, divided)
        x = self.embed(prev_output_tokens, positions=sentences.positions)
        inputs = view, self.positions_of(view), encoder_out.states, source_view
        return self.run_layers(x, inputs)

    def embed(self, tokens: Tensor, start: int = 0, positions: Tensor | None = None) -> Tensor:
        """Return the embedded tokens [B, N, D]. Every sentence starts with ``</s>``."""
        tokens = tokens.masked_fill(tokens == self.separator, Dictionary.eos_index)
        return super().embed(tokens, start, positions)

    def start(self, encoder_out: EncoderOutput, num_groups: int = 1) -> "AlignedState":
        """See :meth:`Decoder.start`. The caches belong to aligned attention."""
        sentences = encoder_out.sentences
        assert sentences is not None, "from an aligned encoder"
        # Project the source once for each layer, in rows of one sentence.
        caches = []
        for attention in self.cross_attentions:
            assert isinstance(attention, AlignedCrossAttention), "as make_cross_attention makes"
            caches.append(attention.remember(encoder_out.states, sentences))
        return AlignedState(sentences, self.separator, caches, encoder_out.key_mask, num_groups)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """See :meth:`Decoder.step`."""
        assert isinstance(state, AlignedState), "start returns this class"
        view, source_view = state.grow_views(tokens)
        positions = view.inside.query_positions().reshape(-1, 1)
        x = self.embed(tokens.reshape(-1, 1), positions=positions)
        x = x.view(-1, view.num_queries, x.size(-1))
        relative = self.positions_of(view)
        for layer, cache in zip(self.layers, state.caches, strict=True):
            x = layer(x, view, relative, None, source_view, cache)
        return self.final_norm(x).view(*tokens.shape, -1)


class AlignedState(DecoderState):
    """A decoding state with the sentence of every entry, ended by the token ``separator``.

    A beam sees its entries in the sentence of its newest token, and the source sentence of that
    number.
    """

    def __init__(
        self,
        source: SentenceRows,
        separator: int,
        caches: Sequence[AlignedCache],
        key_mask: Tensor,
        num_groups: int,
    ) -> None:
        super().__init__(caches, key_mask, num_groups)
        self._source = source
        self._separator = separator
        self._numbers = self._ancestry[:, 0].long()  # [R, M], number of each entry's sentence
        self._source_view: SentenceView | None = None  # of the last step

    def grow_views(self, tokens: Tensor) -> tuple[SentenceView, SentenceView]:
        """Give every beam its next entry, as :meth:`DecoderState.grow`.

        Return the views of the newest tokens [B, K] int64 of the target and of the source.
        """
        # Number the new entries: one more than the token before if they follow a separator.
        document = self.grow(tokens)
        size = document.num_queries
        used = self._used
        ancestry = self._ancestry[:, :, :used]  # [R, k, M']
        # New entries still have number 0, so the maximum is the number of the token before.
        before = (ancestry * self._numbers[:, None, :used]).amax(2)  # [R, k]
        numbers = before + tokens.eq(self._separator).view_as(before)
        self._numbers[:, used - size : used] = numbers
        # A beam sees its entries in its newest sentence.
        rows = SentenceRows.of_beams(numbers, *numbers.shape)
        in_sentence = ancestry & (self._numbers[:, None, :used] == numbers[:, :, None])
        # No beam sees an entry before this one.
        begin = int(in_sentence.any(0).any(0).byte().argmax())
        inside = TreeVisibility(in_sentence[:, :, begin:], rows=(rows, rows))
        # A beam sees the source sentence of equal number.
        source_view = SentenceView.of_beams(
            numbers.reshape(tokens.shape), self._source, self.cross_visibility, self._source_view
        )
        self._source_view = source_view
        return SentenceView(document, rows, rows, inside), source_view

    def keep(self, sentences: Tensor) -> None:
        """See :meth:`DecoderState.keep`."""
        super().keep(sentences)
        self._source = self._source.select(sentences)

    def _take(self, trees: Tensor) -> Tensor:
        entries = super()._take(trees)
        numbers = self._numbers.index_select(0, trees).gather(1, entries)
        self._numbers = F.pad(numbers, (0, self._ancestry.size(2) - entries.size(1)))
        return entries

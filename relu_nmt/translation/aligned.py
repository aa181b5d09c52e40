"""Encoder, decoder and decoding state whose attention stays inside sentences."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.masks import TreeVisibility, Visibility
from relu_nmt.attention.sentences import SentenceRows, SentenceView
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.modules.positions import RelativePositions
from relu_nmt.translation.aligned_attention import (
    AlignedCrossAttention,
    AlignedSelfAttention,
)
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.decoder import Decoder
from relu_nmt.translation.decoder_state import DecoderState
from relu_nmt.translation.encoder import Encoder, EncoderOutput, TransformerStack, make_mechanism


class _AlignedStack(TransformerStack):
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

    def make_cross_attention(self, embed_dim: int, layer: int) -> AlignedCrossAttention:
        """See :meth:`TransformerStack.make_cross_attention`."""
        mechanism = make_mechanism(self.config, "cross", layer)
        gated = self.config.sees_document("cross", layer)
        return AlignedCrossAttention(embed_dim, mechanism, gated)

    def divides(self, tokens: Tensor) -> bool:
        """Return True to compute attention in parts."""
        return self.training and not tuned.waits(tokens)

    def relative(  # type: ignore[override]
        self, visibility: SentenceView
    ) -> list[RelativePositions | None]:
        """Return the rotations and biases of the whole document and of each part of sentences."""
        inside = [part for part, *_ in visibility.parts]
        return [self.embedding.positions.relative(one) for one in (visibility.document, *inside)]


class AlignedEncoder(_AlignedStack, Encoder):
    """An encoder whose tokens see only their own sentence, except in gated layers."""

    def forward(self, src_tokens: Tensor) -> EncoderOutput:
        """Encode src_tokens [B, S], right-padded."""
        key_mask, length = src_tokens != self.pad_index, src_tokens.size(1)
        document = Visibility(length, length, key_mask=key_mask, query_mask=key_mask)
        # A separator belongs to the sentence that it ends.
        ends = src_tokens.eq(self.separator).long()
        sentences = SentenceRows.of_tokens(ends.cumsum(1) - ends, key_mask)
        own = sentences.own(document, self.divides(src_tokens))
        x = self.embedding(src_tokens, places=sentences.positions)
        states = self.run_layers(x, own)  # type: ignore[arg-type]
        return EncoderOutput(states, key_mask, sentences)


class AlignedDecoder(_AlignedStack, Decoder):
    """A decoder whose tokens see their own sentence and the source sentence of equal number.

    Each decoder input belongs to the sentence of the token that it predicts.
    """

    def forward(self, prev_output_tokens: Tensor, encoder_out: EncoderOutput) -> Tensor:
        """Return the states [B, T, D] of prev_output_tokens [B, T], right-padded."""
        assert encoder_out.sentences is not None, "from an aligned encoder"
        documents = self.visibilities(prev_output_tokens, encoder_out)
        # Number the sentences: a separator as input already belongs to the next one.
        numbers = prev_output_tokens.eq(self.separator).cumsum(1)
        sentences = SentenceRows.of_tokens(numbers, prev_output_tokens != self.pad_index)
        divided = self.divides(prev_output_tokens)
        # Show each token its own sentence, and the source sentence of equal number.
        own = sentences.own(documents[0], divided)
        cross = sentences.across(encoder_out.sentences, documents[1], divided)
        x = self.embed(prev_output_tokens, places=sentences.positions)
        return self.run_layers(x, own, encoder_out.states, cross)  # type: ignore[arg-type]

    def embed(self, tokens: Tensor, start: int = 0, places: Tensor | None = None) -> Tensor:
        """Return the embedded tokens [B, N, D]; every sentence starts with ``</s>``."""
        tokens = tokens.masked_fill(tokens == self.separator, Dictionary.eos_index)
        return super().embed(tokens, start, places)

    def start(self, encoder_out: EncoderOutput, num_groups: int = 1) -> "AlignedState":
        """See :meth:`Decoder.start`; the caches are those of aligned attention."""
        states, sentences = encoder_out.states, encoder_out.sentences
        assert sentences is not None, "from an aligned encoder"
        # Project the source once for each layer, in rows of one sentence.
        caches = [
            own.remember(states, sentences)
            for own in self.cross_attentions
            if isinstance(own, AlignedCrossAttention)
        ]
        return AlignedState(sentences, self.separator, caches, encoder_out.key_mask, num_groups)

    def embed_step(  # type: ignore[override]
        self, tokens: Tensor, state: DecoderState
    ) -> tuple[Tensor, SentenceView]:
        """See :meth:`Decoder.embed_step`."""
        assert isinstance(state, AlignedState), "start returns this class"
        visibility = state.grow(tokens)
        places = visibility.inside.query_positions().reshape(-1, 1)
        x = self.embed(tokens.reshape(-1, 1), places=places)
        return x.view(-1, visibility.num_queries, x.size(-1)), visibility


class AlignedState(DecoderState):
    """A decoding state with the sentence of every entry, ended by the token ``separator``.

    A beam sees its entries in the sentence of its newest token, and the source sentence of that
    number.
    """

    def __init__(self, source: SentenceRows, separator: int, *given: Any) -> None:
        super().__init__(*given)
        self._source = source
        self._separator = separator
        self._numbers = self._ancestry[:, 0].long()  # [R, M], number of each entry's sentence

    def grow(self, tokens: Tensor) -> SentenceView:  # type: ignore[override]
        """See :meth:`DecoderState.grow`."""
        # Number the new entries: one more than the token before if they follow a separator.
        document = super().grow(tokens)
        size, used = document.num_queries, self._used
        ancestry = self._ancestry[:, :, :used]  # [R, k, M']
        # New entries still have number 0, so the maximum is the number of the token before.
        before = (ancestry * self._numbers[:, None, :used]).amax(2)  # [R, k]
        numbers = before + tokens.eq(self._separator).view_as(before)
        self._numbers[:, used - size : used] = numbers
        # A beam sees its entries in its newest sentence.
        rows = SentenceRows.of_beams(numbers, *numbers.shape)
        own = ancestry & (self._numbers[:, None, :used] == numbers[:, :, None])
        begin = int(own.any(0).any(0).byte().argmax())  # no beam sees an entry before it
        inside = TreeVisibility(own[:, :, begin:], rows=(rows, rows))
        # A beam sees the source sentence of equal number.
        self.cross_visibility = SentenceView.of_beams(  # type: ignore[assignment]
            numbers.reshape(tokens.shape), self._source, self.cross_visibility
        )
        return SentenceView(document, rows, rows, inside)

    def keep(self, sentences: Tensor) -> None:
        """See :meth:`DecoderState.keep`."""
        super().keep(sentences)
        self._source = self._source.select(sentences)

    def _take(self, trees: Tensor) -> Tensor:
        entries = super()._take(trees)
        numbers = self._numbers.index_select(0, trees).gather(1, entries)
        self._numbers = F.pad(numbers, (0, self._ancestry.size(2) - entries.size(1)))
        return entries

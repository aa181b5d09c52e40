"""Encoder and decoder whose attention stays inside the sentences of a document.

With ``--document-attention aligned`` every token attends to its sentence, and every target sentence
to the source sentence of equal number. Layers with a gate also attend to the whole document, with
the same projections, and mix both outputs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.masks import TreeVisibility, Visibility
from relu_nmt.attention.sentences import SentenceRows, SentenceView
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.modules.multihead import CrossAttentionBase, MultiheadAttention, SelfAttentionBase
from relu_nmt.modules.positions import RelativePositions, sinusoids
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.decoder import Decoder
from relu_nmt.translation.decoder_state import DecoderState, LayerCache
from relu_nmt.translation.encoder import EncoderOutput, TransformerStack, make_mechanism

START_BIAS = 2.0
"""Sigmoid(2) = 0.88: a new model starts almost as a sentence model and so learns fast. The gate's
gradient is still 0.42 of its maximum."""
SENTENCE_BIAS = 4.0
"""Sigmoid(4) = 0.98, for a start from a sentence model: each sentence of a document is translated
almost as if it stood alone."""


class AlignedCache(LayerCache):
    """Keys and values of one layer, step by step.

    Each row of source keys and values is one sentence, [R, H, L, d]. In layers with a gate,
    ``document`` is the cache of the attention to the whole document.
    """

    def __init__(self, keys: Tensor, values: Tensor, document: LayerCache | None) -> None:
        super().__init__(keys, values)
        self.document = document
        self._paired: tuple[Tensor, Tensor] | None = None

    def paired(self, local: SentenceView) -> tuple[Tensor, Tensor]:
        """Return the keys and values visible to each row of queries, [R, H, L, d] each."""
        keys, values = self.source
        # Gather all rows at first. Later gather only rows whose sentence has changed.
        if self._paired is None or local.changed is None:
            self._paired = local.keys.for_query_rows(keys), local.keys.for_query_rows(values)
        elif local.keys.key_row_of_query_row is not None and len(local.changed):
            rows = local.keys.key_row_of_query_row[local.changed]
            for paired, source in zip(self._paired, self.source, strict=True):
                paired.index_copy_(0, local.changed, source.index_select(0, rows))
        return self._paired

    def select(self, index: Tensor) -> None:
        super().select(index)
        if self.document is not None:
            self.document.select(index)

    def keep(self, sentences: Tensor) -> None:
        """Keep these sentences. All source rows stay, since views refer to their indices."""
        if self.document is not None:
            self.document.keep(sentences)


class DocumentGate(nn.Module):
    """g * inside + (1 - g) * document, g = sigmoid(W [inside; document] + b), and sentence vectors.

    ``inside`` is the output of attention inside the sentence of a token, ``document`` the output of
    attention to the whole document. Both have the same projections. In a document of one sentence
    they are equal, and the gate has no effect. W starts at 0 and b at 2, so g starts at 0.88.

    Attention to the whole document distinguishes sentences by their number k, from 0. Before
    queries and keys are projected, the states get a learned gain times (sinusoid(k) - sinusoid(0)).

    Reference: Bao et al. 2021, "G-Transformer", section 3 (combined attention). There each part has
    separate projections, and sentences have no numbers.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(embed_dim, 2 * embed_dim))
        self.bias = nn.Parameter(torch.full((embed_dim,), START_BIAS))
        self.number_gain = nn.Parameter(torch.ones(embed_dim))

    def forward(self, inside: Tensor, document: Tensor) -> Tensor:
        """Return the gated mean of two outputs [B, N, D]."""
        outputs = torch.cat([inside, document], -1)
        gate = F.linear(outputs, self.weight, self.bias).sigmoid()
        return document + gate * (inside - document)  # exact where both are equal

    def numbers(self, numbers: Tensor) -> Tensor:
        """Return the vectors [R, D] of sentence numbers [R]."""
        waves = sinusoids(torch.cat([numbers, numbers.new_zeros(1)]), len(self.number_gain))
        return (waves[:-1] - waves[-1:]).to(self.number_gain.dtype) * self.number_gain

    def numbered(self, x: Tensor, projection: nn.Module, rows: SentenceRows, width: int) -> Tensor:
        """Add sentence numbers to queries and keys, which are the first ``width`` channels of x."""
        # Project the vectors without the bias, which x already includes. Values do not change.
        vectors = self.numbers(rows.number_of_row)  # [R, D]
        change = projection(vectors) - projection(torch.zeros_like(vectors[:1]))
        change = F.pad(change[:, :width], (0, x.size(-1) - width))
        # Look up the change of each token's sentence, and add it.
        return x + F.embedding(rows.row_of_token, change).view_as(x)


class AlignedPositions(NamedTuple):
    """The rotations and biases of relative positions."""

    document: RelativePositions  # of the whole document
    parts: list[RelativePositions]  # of each part of its sentences


class AlignedSelfAttention(SelfAttentionBase):
    """Self-attention inside sentences. With a gate it also attends to the whole document."""

    def __init__(self, embed_dim: int, attention: Attention, gated: bool) -> None:
        super().__init__(embed_dim, attention)
        self.gate = DocumentGate(embed_dim) if gated else None

    def forward(
        self,
        x: Tensor,
        view: SentenceView,
        positions: AlignedPositions,
        cache: AlignedCache | None = None,
    ) -> Tensor:
        """Map states [B, N, D]."""
        projected = self.qkv(x)
        inside = self._inside(projected, view, positions.parts, cache)
        if self.gate is None:
            return self.project_output(inside, x)
        # Attend to the whole document with queries and keys that tell its sentences apart.
        width = (self.parts - 1) * self.embed_dim
        numbered = self.gate.numbered(projected, self.qkv, view.queries, width)
        document_cache = None if cache is None else cache.document
        document = self.joined_heads(numbered, view.document, positions.document, document_cache)
        return _gated(self, self.gate, inside, document, x)

    def _inside(
        self,
        projected: Tensor,
        view: SentenceView,
        positions: Sequence[RelativePositions],
        cache: AlignedCache | None,
    ) -> Tensor:
        """Return the joined heads [B, N, D] of attention inside sentences."""
        outputs = []
        # Attend part by part: projected rows are [R, L, 3 D].
        row_parts = view.take_queries(projected)
        for rows, part, relative in zip(row_parts, view.parts, positions, strict=True):
            q, k, v = self.heads(rows, relative)
            if cache is not None:
                # Every beam sees only the last num_keys entries.
                keys, values = cache.append_keys(k, v, view.document.num_keys)
                k = keys[:, :, -part.visibility.num_keys :]
                v = values[:, :, -part.visibility.num_keys :]
            outputs.append(self.attend(q, k, v, part.visibility, relative.bias))
        return view.put(outputs).view(*projected.shape[:2], -1)


class AlignedCrossAttention(CrossAttentionBase):
    """Attention of target to source sentences. With a gate it also attends to the whole source."""

    def __init__(self, embed_dim: int, attention: Attention, gated: bool) -> None:
        super().__init__(embed_dim, attention)
        self.gate = DocumentGate(embed_dim) if gated else None

    def forward(self, x: Tensor, view: SentenceView, memory: Tensor | AlignedCache) -> Tensor:
        """Map states x [B, N, D] to states. Memory is [B, S, D], or a cache of its heads."""
        q = self.q(x)
        # Take keys and values of source sentences, and of the whole source for the gate.
        if isinstance(memory, AlignedCache):
            heads = [memory.paired(view)]
            document_heads = None if memory.document is None else memory.document.memory()
        else:
            kv = self.kv(memory)
            heads = [self.memory_heads(rows) for rows in view.take_keys(kv)]
            document_heads = self._document_heads(kv, view.keys)
        # Attend to source sentences. With a gate, also attend to the whole source.
        outputs = []
        for rows, (keys, values), part in zip(view.take_queries(q), heads, view.parts, strict=True):
            outputs.append(self.attend_to(rows, keys, values, part.visibility))
        inside = view.put(outputs).view_as(q)
        if self.gate is None or document_heads is None:
            return self.project_output(inside, x)
        keys, values = document_heads
        numbered = self.gate.numbered(q, self.q, view.queries, self.embed_dim)
        document = self.attend_to(numbered, keys, values, view.document)
        return _gated(self, self.gate, inside, document, x)

    def remember(self, memory: Tensor, rows: SentenceRows) -> AlignedCache:
        """Return a cache with the keys and values of a memory [B, S, D] of these sentences."""
        kv = self.kv(memory)
        document_cache = None
        document_heads = self._document_heads(kv, rows)
        if document_heads is not None:
            document_cache = LayerCache(*document_heads)
        keys, values = self.memory_heads(rows.take(kv))
        return AlignedCache(keys, values, document_cache)

    def _document_heads(self, kv: Tensor, rows: SentenceRows) -> tuple[Tensor, Tensor] | None:
        """Return the keys and values of the whole source. None without a gate."""
        if self.gate is None:
            return None
        return self.memory_heads(self.gate.numbered(kv, self.kv, rows, self.embed_dim))


def _gated(
    module: MultiheadAttention, gate: DocumentGate, inside: Tensor, document: Tensor, x: Tensor
) -> Tensor:
    """Return the output [B, N, D] of the joined heads of both attentions for states x."""
    finish = module.attention.finish
    return module.out_proj(gate(finish(inside, x), finish(document, x)))


class AlignedStack(TransformerStack):
    """Layers whose attention stays inside sentences, which end in the symbol ``separator``."""

    def __init__(
        self, config: TransformerConfig, tokens: nn.Embedding, pad_index: int, separator: int
    ) -> None:
        super().__init__(config, tokens, pad_index)
        self.separator = separator

    def make_self_attention(self, embed_dim: int, layer: int) -> AlignedSelfAttention:
        mechanism = make_mechanism(self.config, self.side, layer)
        gated = self.config.sees_document(self.side, layer)
        return AlignedSelfAttention(embed_dim, mechanism, gated)

    def divides(self, tokens: Tensor) -> bool:
        """Return whether to compute attention in parts of similar sentence lengths."""
        return self.training and not tuned.waits(tokens)

    def positions_of(self, view: SentenceView) -> AlignedPositions:
        """Return the relative positions of tokens in the document and in its sentences."""
        scheme = self.embedding.positions
        parts = [scheme.relative(part.visibility) for part in view.parts]
        return AlignedPositions(scheme.relative(view.document), parts)


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
    """A decoder whose tokens see their own sentence and the source sentence of equal number."""

    def make_cross_attention(self, embed_dim: int, layer: int) -> AlignedCrossAttention:
        mechanism = make_mechanism(self.config, "cross", layer)
        gated = self.config.sees_document("cross", layer)
        return AlignedCrossAttention(embed_dim, mechanism, gated)

    def forward(self, prev_output_tokens: Tensor, encoder_out: EncoderOutput) -> Tensor:
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

    def embed(self, tokens: Tensor, first: int = 0, positions: Tensor | None = None) -> Tensor:
        """Return the embedded tokens [B, N, D]. A separator is read as ``</s>``."""
        tokens = tokens.masked_fill(tokens == self.separator, Dictionary.eos_index)
        return super().embed(tokens, first, positions)

    def start(self, encoder_out: EncoderOutput, num_groups: int = 1) -> "AlignedState":
        """Return the state of a search, with the caches of aligned attention."""
        sentences = encoder_out.sentences
        assert sentences is not None, "from an aligned encoder"
        # Project the source once for each layer, in rows of one sentence.
        caches = []
        for attention in self.cross_attentions:
            assert isinstance(attention, AlignedCrossAttention), "as make_cross_attention makes"
            caches.append(attention.remember(encoder_out.states, sentences))
        return AlignedState(sentences, self.separator, caches, encoder_out.key_mask, num_groups)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        assert isinstance(state, AlignedState), "start returns this class"
        view, source_view = state.grow_views(tokens)
        positions = view.inside.query_positions().reshape(-1, 1)
        x = self.embed(tokens.reshape(-1, 1), positions=positions)
        x = x.view(-1, view.num_queries, x.size(-1))
        relative = self.positions_of(view)
        for layer, cache in zip(self.layers, state.caches, strict=True):
            x = layer(x, view, relative, memory_visibility=source_view, cache=cache)
        return self.final_norm(x).view(*tokens.shape, -1)


class AlignedState(DecoderState):
    """A decoding state whose beams see the sentence of their newest token, and its source."""

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
        # [R, M], number of each entry's sentence
        self._numbers = self._ancestry.new_zeros(len(self._ancestry), 0, dtype=torch.int64)
        self._source_view: SentenceView | None = None  # of the last step

    def grow_views(self, tokens: Tensor) -> tuple[SentenceView, SentenceView]:
        """Give every beam its next entry. Return the views [B, K] of target and source."""
        # Number the new entries: one more than the token before if they follow a separator.
        document = self.grow(tokens)
        size = document.num_queries
        used = self._num_used
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
        inside = TreeVisibility(in_sentence[:, :, begin:], sentences=(rows, rows))
        # A beam sees the source sentence of equal number.
        source_view = SentenceView.of_beams(
            numbers.reshape(tokens.shape), self._source, self.cross_visibility, self._source_view
        )
        self._source_view = source_view
        return SentenceView(document, rows, rows, inside), source_view

    def keep(self, sentences: Tensor) -> None:
        super().keep(sentences)
        self._source = self._source.select(sentences)

    def _compact(self, trees: Tensor) -> Tensor:
        entries = super()._compact(trees)
        numbers = self._numbers.index_select(0, trees).gather(1, entries)
        self._numbers = F.pad(numbers, (0, self._ancestry.size(2) - entries.size(1)))
        return entries

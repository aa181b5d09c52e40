"""Attention inside the sentences of a document, and its gate to the whole document.

``--document-attention aligned`` wraps self- and cross-attention: every token attends to its
sentence, and every target sentence to the source sentence of equal number. Layers with a gate also
attend to the whole document, with the same projections, and mix both outputs.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.sentences import SentenceRows, SentenceView
from relu_nmt.modules.multihead import MemoryProjection, MultiheadAttention, SelfProjection
from relu_nmt.modules.positions import RelativePositions, sinusoids
from relu_nmt.translation.decoder_state import LayerCache

START_BIAS = 2.0
"""Sigmoid(2) = 0.88: a model starts almost as a sentence model, which learns fast. The gradient of
the gate is still half of its maximum."""
SENTENCE_BIAS = 4.0
"""Sigmoid(4) = 0.98, for a start from a sentence model, which then translates documents as well as
sentences."""


class AlignedCache(LayerCache):
    """Keys and values of one layer, step by step.

    Keys and values of the source are rows of one sentence each, [R, H, L, d]. ``document`` is the
    cache of the attention to the whole document, in layers with a gate.
    """

    def __init__(self, keys: Tensor, values: Tensor, document: LayerCache | None) -> None:
        super().__init__(keys, values)
        self.document = document
        self._paired: tuple[Tensor, Tensor] | None = None

    def paired(self, local: SentenceView) -> tuple[Tensor, Tensor]:
        """Return the keys and values visible to each row of queries, [R, H, L, d] each."""
        keys, values = self.source
        # Gather all rows at first, later only those whose sentence has changed.
        if self._paired is None or local.changed is None:
            self._paired = local.keys.paired(keys), local.keys.paired(values)
        elif local.keys.key_rows is not None and len(local.changed):
            rows = local.keys.key_rows[local.changed]
            for paired, source in zip(self._paired, self.source, strict=True):
                paired.index_copy_(0, local.changed, source.index_select(0, rows))
        return self._paired

    def take(self, index: Tensor) -> None:
        """See :meth:`LayerCache.take`."""
        super().take(index)
        if self.document is not None:
            self.document.take(index)

    def keep(self, sentences: Tensor) -> None:
        """See :meth:`LayerCache.keep`. Rows of source sentences stay, as views refer to them."""
        if self.document is not None:
            self.document.keep(sentences)


class DocumentGate(nn.Module):
    """g * inside + (1 - g) * document, g = sigmoid(W [inside; document] + b), and sentence vectors.

    ``inside`` is the output of attention inside the sentence of a token, ``document`` the output of
    attention to the whole document. Both have the same projections. In a document of one sentence
    they are equal, and the gate has no effect. W starts at 0, b at 2: at first the part inside
    counts 0.88.

    Attention to the whole document distinguishes sentences by their number k. Before queries and
    keys are projected, the states get (sinusoid(k) - sinusoid(0)) times a learned gain, which is 0
    for the first sentence.

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
        """Add the projected vectors of the sentences' numbers to queries and keys.

        The projected states x [B, N, ...] begin with queries and keys, ``width`` channels, before
        values.
        """
        # Project the vectors without bias, which x has already, and leave values unchanged.
        vectors = self.numbers(rows.numbers)  # [R, D]
        change = projection(vectors) - projection(torch.zeros_like(vectors[:1]))
        change = F.pad(change[:, :width], (0, x.size(-1) - width))
        # Look up the change of each token's sentence, and add it.
        return x + F.embedding(rows.row_of, change).view_as(x)


class AlignedSelfAttention(SelfProjection):
    """Self-attention inside sentences, and with a gate in the whole document too."""

    def __init__(self, embed_dim: int, attention: Attention, gated: bool) -> None:
        super().__init__(embed_dim, attention)
        self.gate = DocumentGate(embed_dim) if gated else None

    def forward(
        self,
        x: Tensor,
        view: SentenceView,
        positions: Sequence[RelativePositions | None] | None = None,
        cache: AlignedCache | None = None,
    ) -> Tensor:
        """Map states x [B, N, D] to states.

        ``positions`` has a rotation and bias for the whole document, then for each part of
        sentences.
        """
        if positions is None:
            positions = [None] * (1 + len(view.parts))
        projected = self.qkv(x)
        inside = self._inside(projected, view, positions[1:], cache)
        if self.gate is None:
            return self.finish(inside, x)
        # Attend to the whole document with queries and keys that tell its sentences apart.
        width = (self.parts - 1) * self.embed_dim
        numbered = self.gate.numbered(projected, self.qkv, view.queries, width)
        document_cache = None if cache is None else cache.document
        document = self.values(numbered, view.document, positions[0], document_cache)
        return _gated(self, self.gate, inside, document, x)

    def _inside(
        self,
        projected: Tensor,
        view: SentenceView,
        positions: Sequence[RelativePositions | None],
        cache: AlignedCache | None,
    ) -> Tensor:
        """Return the joined heads [B, N, D] of attention inside sentences."""
        outputs = []
        # Attend part by part: projected rows are [R, L, 3 D].
        for rows, (part, *_), relative in zip(
            view.take_queries(projected), view.parts, positions, strict=True
        ):
            q, k, v = self.heads(rows)
            bias = None
            if relative is not None:
                q, k = relative.rotate(q, k)
                bias = relative.bias
            if cache is not None:
                # Every beam sees only the last num_keys entries.
                keys, values = cache.append(k, v, view.document.num_keys)
                k = keys[:, :, -part.num_keys :]
                v = values[:, :, -part.num_keys :]
            outputs.append(self.attend(q, k, v, part, bias))
        return view.put(outputs).view(*projected.shape[:2], -1)


class AlignedCrossAttention(MemoryProjection):
    """Attention of target to source sentences, and with a gate to the whole source too."""

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
        # Attend to source sentences, and with a gate to the whole source.
        outputs = []
        for rows, (keys, values), (part, *_) in zip(
            view.take_queries(q), heads, view.parts, strict=True
        ):
            outputs.append(self.attend_to(keys, values, rows, part))
        inside = view.put(outputs).view_as(q)
        if self.gate is None or document_heads is None:
            return self.finish(inside, x)
        keys, values = document_heads
        numbered = self.gate.numbered(q, self.q, view.queries, self.embed_dim)
        document = self.attend_to(keys, values, numbered, view.document)
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

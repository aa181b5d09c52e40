"""Attention inside the sentences of a document, and its gate to the whole document.

``--document-attention aligned`` wraps self- and cross-attention: every token attends to its own
sentence, and every target sentence to the source sentence of equal number. Layers with a gate also
attend to the whole document, with the same projections, and mix both outputs.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.sentences import SentenceRows, SentenceView
from relu_nmt.modules.multihead import CrossAttention, MultiheadAttention, SelfAttention
from relu_nmt.modules.positions import RelativePositions, sinusoids
from relu_nmt.translation.decoder_state import LayerCache

START_BIAS = 2.0
"""Sigmoid(2) = 0.88: a model starts almost as a sentence model, which learns fast. The gradient of
the gate is still half of its maximum."""
SENTENCE_BIAS = 4.0
"""Sigmoid(4) = 0.98, for a start from a sentence model, whose translations of documents are then
as good as those of sentences."""


class AlignedCache(LayerCache):
    """Keys and values of one layer, step by step.

    Those of the source are rows of one sentence each, [R, H, L, d]; ``whole`` is the cache of the
    attention to the whole document, in layers with a gate.
    """

    def __init__(self, keys: Tensor, values: Tensor, whole: LayerCache | None) -> None:
        super().__init__(keys, values)
        self.whole = whole
        self._paired: tuple[Tensor, Tensor] | None = None

    def paired(self, local: SentenceView) -> tuple[Tensor, Tensor]:
        """Return the keys and values visible to each row of queries, [R, H, L, d] each."""
        keys, values = self.source
        # Gather all rows at first, later only those whose sentence has changed.
        if self._paired is None or local.changed is None:
            self._paired = local.keys.paired(keys), local.keys.paired(values)
        elif local.keys.seen is not None and len(local.changed):
            rows = local.keys.seen[local.changed]
            for kept, part in zip(self._paired, self.source, strict=True):
                kept.index_copy_(0, local.changed, part.index_select(0, rows))
        return self._paired

    def take(self, index: Tensor) -> None:
        """See :meth:`LayerCache.take`."""
        super().take(index)
        if self.whole is not None:
            self.whole.take(index)

    def keep(self, sentences: Tensor) -> None:
        """See :meth:`LayerCache.keep`. Rows of source sentences stay, as views refer to them."""
        if self.whole is not None:
            self.whole.keep(sentences)


class DocumentGate(nn.Module):
    """g * local + (1 - g) * whole, g = sigmoid(W [local; whole] + b); vectors of sentence numbers.

    ``local`` is the output of attention inside a token's own sentence, ``whole`` that of attention
    to the whole document, both with the same projections. In a document of one sentence they are
    equal, and the gate has no effect. W starts at 0, b at 2: at first the local part counts 0.88.

    Attention to the whole document distinguishes sentences by their number k. Before queries and
    keys are projected, the states get (sinusoid(k) - sinusoid(0)) times a learned gain, which is 0
    for the first sentence.

    Reference: Bao et al. 2021, "G-Transformer", section 3 (combined attention; there both parts
    have projections of their own, and sentences no numbers).
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(embed_dim, 2 * embed_dim))
        self.bias = nn.Parameter(torch.full((embed_dim,), START_BIAS))
        self.number_gain = nn.Parameter(torch.ones(embed_dim))

    def forward(self, local: Tensor, whole: Tensor) -> Tensor:
        """Return the gated mean of two [B, N, D]."""
        both = torch.cat([local, whole], -1)
        gate = F.linear(both, self.weight, self.bias).sigmoid()
        return whole + gate * (local - whole)  # exact where both are equal

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


class AlignedSelfAttention(SelfAttention):
    """Self-attention inside sentences; with a gate also in the whole document."""

    def __init__(self, embed_dim: int, attention: Attention, gated: bool) -> None:
        super().__init__(embed_dim, attention)
        self.gate = DocumentGate(embed_dim) if gated else None

    def finish(self, values: Tensor, x: Tensor) -> Tensor:
        """Return the output [B, Nq, D] of values [B, Nq, D], or of both kinds side by side."""
        return _finish(self, values, x, self.gate)

    def values(  # type: ignore[override]
        self,
        projected: Tensor,
        visibility: SentenceView,
        relative: Sequence[RelativePositions | None] | None = None,
        cache: AlignedCache | None = None,
    ) -> Tensor:
        """Return the joined heads of projected states [B, N, 3 D]; see :meth:`finish`.

        ``relative`` has the rotation and bias of the whole document, then those of each part of
        sentences.
        """
        # Attend inside sentences, part by part: projected rows are [R, L, 3 D].
        whole_document, *positions = relative or [None] * (1 + len(visibility.parts))
        made = []
        for x, (part, *_), inside in zip(
            visibility.take_queries(projected), visibility.parts, positions, strict=True
        ):
            q, k, v = self.heads(x)
            if inside is not None:
                q, k = inside.rotate(q, k)
            if cache is not None:
                # Every beam sees only the last num_keys entries.
                kept = cache.append(k, v, visibility.document.num_keys)
                k, v = (each[:, :, -part.num_keys :] for each in kept)
            bias = None if inside is None else inside.bias
            made.append(self.attend(q, k, v, part, bias))
        values = visibility.put(made).view(*projected.shape[:2], -1)  # [B, N, D]
        if self.gate is None:
            return values
        # Attend to the whole document, and join both to [B, N, 2 D].
        width = (self.parts - 1) * self.embed_dim
        whole = super().values(
            self.gate.numbered(projected, self.qkv, visibility.queries, width),
            visibility.document,
            whole_document,
            None if cache is None else cache.whole,
        )
        return torch.cat([values, whole], dim=-1)


class AlignedCrossAttention(CrossAttention):
    """Attention of target sentences to source sentences; with a gate also to the whole source."""

    def __init__(self, embed_dim: int, attention: Attention, gated: bool) -> None:
        super().__init__(embed_dim, attention)
        self.gate = DocumentGate(embed_dim) if gated else None

    def finish(self, values: Tensor, x: Tensor) -> Tensor:
        """Return the output [B, Nq, D] of values [B, Nq, D], or of both kinds side by side."""
        return _finish(self, values, x, self.gate)

    def remember(self, memory: Tensor, rows: SentenceRows) -> AlignedCache:
        """Return a cache with the keys and values of a memory [B, S, D] of these sentences."""
        kv = self.kv(memory)
        whole = None
        if self.gate is not None:
            numbered = self.gate.numbered(kv, self.kv, rows, self.embed_dim)
            whole = LayerCache(*self.memory_heads(numbered))
        return AlignedCache(*self.memory_heads(rows.take(kv)), whole)

    def values(  # type: ignore[override]
        self, q: Tensor, visibility: SentenceView, memory: Tensor | AlignedCache
    ) -> Tensor:
        """Return the joined heads of queries [B, N, D]; see :meth:`finish`."""
        # Take keys and values from the cache, or project the memory.
        whole = None
        if isinstance(memory, AlignedCache):
            heads = [memory.paired(visibility)]
            whole = None if memory.whole is None else memory.whole.memory()
        else:
            kv = self.kv(memory)
            heads = [self.memory_heads(rows) for rows in visibility.take_keys(kv)]
            if self.gate is not None:
                numbered = self.gate.numbered(kv, self.kv, visibility.keys, self.embed_dim)
                whole = self.memory_heads(numbered)
        # Attend to source sentences, and with a gate to the whole source.
        rows, parts = visibility.take_queries(q), visibility.parts
        made = [
            self.attend_to(*kv, x, part)
            for x, kv, (part, *_) in zip(rows, heads, parts, strict=True)
        ]
        values = visibility.put(made).view_as(q)
        if whole is None or self.gate is None:
            return values
        q = self.gate.numbered(q, self.q, visibility.queries, self.embed_dim)
        return torch.cat([values, self.attend_to(*whole, q, visibility.document)], dim=-1)


def _finish(
    module: MultiheadAttention, values: Tensor, x: Tensor, gate: DocumentGate | None
) -> Tensor:
    parts = [module.attention.finish(part, x) for part in values.split(module.embed_dim, dim=-1)]
    return module.out_proj(parts[0] if gate is None else gate(*parts))

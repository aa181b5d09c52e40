"""Where the sentences of documents are, for attention that stays inside them.

Such *local* attention is that of a sentence model: the tokens of a batch of documents are gathered
into rows of one sentence each, in which any mechanism works as it is and counts its keys, and what
it returns is put back. So no mask of documents is made, and its cost is that of sentences.

``B`` documents of at most N tokens have ``R`` sentences of at most L.

Reference: Bao et al. 2021, "G-Transformer for document-level machine translation", section 3 (there
by masks over the whole document).
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from relu_nmt.attention.masks import Visibility

SHORT = 16
"""Tokens up to which narrower rows would cost more in further calls than they save."""


@dataclass(frozen=True)
class SentenceRows:
    """The tokens of a batch [B, N] as rows [R, L] of one sentence each, in their order.

    Args:
        index: [R, L] int64, which token of the flattened batch stands here; any where none does.
        places: [B, N] int64, where each token stands among the flattened rows; any of padding.
        row_of: [B, N] int64, the row of each token; any of padding.
        numbers: [R] int64, number of each sentence in its document, from 0.
        mask: [R, L] bool, True = a token stands here.
        positions: [B, N] int64, tokens of its sentence before each token.
        first: [B] int64, row of each document's first sentence.
        counts: [B] int64, sentences of each document.

    Example:
        >>> numbers, real = torch.tensor([[0, 0, 1]]), torch.ones(1, 3, dtype=torch.bool)
        >>> rows = SentenceRows.of_tokens(numbers, real)
        >>> rows.take(torch.tensor([[[5], [6], [7]]]))[..., 0].masked_fill(~rows.mask, 0).tolist()
        [[5, 6], [7, 0]]
    """

    index: Tensor
    places: Tensor
    row_of: Tensor
    numbers: Tensor
    mask: Tensor
    positions: Tensor
    first: Tensor
    counts: Tensor

    @classmethod
    def of_tokens(cls, numbers: Tensor, real: Tensor) -> "SentenceRows":
        """Divide documents into their sentences.

        Args:
            numbers: [B, N] int64, number of each token's sentence, which rises by 1 at a time from
                0 on.
            real: [B, N] bool, False = padding, which stands on the right.
        """
        batch, length = real.shape
        numbers = numbers.masked_fill(~real, 0)
        counts = 1 + numbers.amax(1)
        first = counts.cumsum(0) - counts
        row_of = first[:, None] + numbers
        steps = torch.arange(length, device=real.device)
        begins = torch.ones_like(real)
        begins[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
        positions = (steps - (steps * begins).cummax(1).values).masked_fill(~real, 0)
        # The two sizes in one transfer from the device.
        num_rows, longest = torch.stack([counts.sum(), 1 + positions.amax()]).tolist()
        places = (row_of * longest + positions).masked_fill(~real, 0)
        tokens = real.flatten().nonzero().squeeze(1)
        taken = places.flatten()[tokens]
        index = places.new_zeros(num_rows * longest).index_copy_(0, taken, tokens)
        mask = real.new_zeros(num_rows * longest).index_fill_(0, taken, True)
        rows = torch.arange(num_rows, device=real.device)
        document = torch.arange(batch, device=real.device).repeat_interleave(
            counts, output_size=num_rows
        )
        shape = num_rows, longest
        return cls(
            index.view(shape),
            places,
            row_of,
            rows - first[document],
            mask.view(shape),
            positions,
            first,
            counts,
        )

    @classmethod
    def of_beams(cls, numbers: Tensor, *shape: int) -> "SentenceRows":
        """Return the newest tokens of hypotheses, each a sentence of its own that hides nothing.

        Args:
            numbers: [B, K] int64, number of the sentence that each belongs to.
            shape: of the rows, which hold all B K tokens in their order.
        """
        every = torch.arange(numbers.numel(), device=numbers.device)
        each = every.view_as(numbers)
        ones = torch.ones_like(every, dtype=torch.bool).view(shape)
        flat = numbers.flatten()
        return cls(every.view(shape), each, each, flat, ones, each, every, torch.ones_like(every))

    def take(self, x: Tensor) -> Tensor:
        """Return the rows [R, L, ...] of x [B, N, ...]."""
        rows = x.flatten(0, 1).index_select(0, self.index.flatten())
        return rows.view(*self.index.shape, *x.shape[2:])

    def put(self, rows: Tensor) -> Tensor:
        """Return [B, N, ...] of rows [R, L, ...]; any values where padding."""
        x = rows.flatten(0, 1).index_select(0, self.places.flatten())
        return x.view(*self.places.shape, *rows.shape[2:])

    def select(self, documents: Tensor) -> "SentenceRows":
        """Return the same rows for these documents [B'] alone, of which :meth:`rows_of` speaks."""
        return replace(self, first=self.first[documents], counts=self.counts[documents])

    def rows_of(self, documents: Tensor, numbers: Tensor) -> Tensor:
        """Return the rows of sentences of documents; the last one's if there are not so many.

        Args:
            documents: int64, any shape.
            numbers: number of the sentence in it, of the same shape.
        """
        return self.first[documents] + numbers.minimum(self.counts[documents] - 1)

    def own(self, causal: bool, divided: bool = False) -> "SentenceView":
        """Return what the tokens see of their own sentences.

        Args:
            causal: only what stands before them.
            divided: compute it in parts, see :class:`SentenceView`.
        """
        length, mask = self.index.size(1), self.mask
        # Padding stands on the right, where causality already hides it from real queries.
        visibility = Visibility(
            length,
            length,
            key_mask=None if causal else mask,
            query_mask=mask,
            causal=causal,
            device=mask.device,
        )
        return SentenceView(visibility, self, self, divided=divided)

    def across(self, source: "SentenceRows", divided: bool = False) -> "SentenceView":
        """Return what the sentences of translations see: the source sentence of their number."""
        pairs, mask = None, source.mask
        if not torch.equal(self.counts, source.counts):
            documents = torch.arange(len(self.counts), device=mask.device)
            pairs = source.rows_of(
                documents.repeat_interleave(self.counts, output_size=len(self.numbers)),
                self.numbers,
            )
            mask = mask.index_select(0, pairs)
        return SentenceView(_across(self, mask), self, source, pairs, divided=divided)


def _across(queries: SentenceRows, key_mask: Tensor) -> Visibility:
    lengths = queries.index.size(1), key_mask.size(1)
    return Visibility(*lengths, key_mask=key_mask, query_mask=queries.mask)


@dataclass(frozen=True)
class SentencePart:
    """Some of the sentences of a view, in rows [R, Lq] of queries and [R, Lk] of keys.

    Args:
        visibility: which keys of its row each query sees.
        queries: [R, Lq] int64, which token of the flattened batch stands here.
        keys: [R, Lk] int64, the same of the keys.
    """

    visibility: Visibility
    queries: Tensor
    keys: Tensor


@dataclass(frozen=True)
class SentenceView:
    """The local part of an attention: each query sees one sentence.

    Args:
        visibility: which keys of its row each query sees, in rows.
        queries: the rows of the queries.
        keys: the rows of the keys.
        pairs: [R] int64, the row of keys that each row of queries sees; None: that of its number.
        changed: step by step, which rows of queries see another one than in the last step; None:
            perhaps all.
        divided: on a CPU, compute it in parts of sentences of like lengths; else rows are as long
            as the longest sentence, and most of them padding.
    """

    visibility: Visibility
    queries: SentenceRows
    keys: SentenceRows
    pairs: Tensor | None = None
    changed: Tensor | None = None
    divided: bool = False

    def __post_init__(self) -> None:
        self.visibility.rows = self

    @classmethod
    def of_beams(
        cls, numbers: Tensor, source: SentenceRows, last: "SentenceView | None" = None
    ) -> "SentenceView":
        """Return what the newest token of each hypothesis sees of the source.

        Args:
            numbers: [B, K] int64, number of the sentence that it belongs to.
            source: the sentences of the B documents.
            last: that of the last step, if the documents are still the same.
        """
        queries = SentenceRows.of_beams(numbers, numbers.numel(), 1)
        documents = torch.arange(len(numbers), device=numbers.device)[:, None].expand_as(numbers)
        pairs = source.rows_of(documents, numbers).flatten()
        visibility = _across(queries, source.mask.index_select(0, pairs))
        changed = None
        if last is not None and last.pairs is not None:
            changed = (pairs != last.pairs).nonzero().squeeze(1)
        return cls(visibility, queries, source, pairs, changed)

    def paired(self, rows: Tensor) -> Tensor:
        """Return the rows of keys or values [R', ...] that each row of queries sees, [R, ...]."""
        return rows if self.pairs is None else rows.index_select(0, self.pairs)

    @cached_property
    def parts(self) -> list[SentencePart]:
        """All sentences; in parts, by the power of 2 that holds query and key, if divided."""
        index, key_mask = self.paired(self.keys.index), self.paired(self.keys.mask)
        if not (self.divided and key_mask.is_cpu):
            return [SentencePart(self.visibility, self.queries.index, index)]
        lengths = torch.stack([self.queries.mask.sum(1), key_mask.sum(1)])
        powers = torch.frexp((lengths.amax(0).clamp_min(SHORT) - 1).double()).exponent
        num_tokens, causal = int(lengths[0].sum()), self.visibility.causal
        parts: list[SentencePart] = []
        for power in powers.unique():
            rows = (powers == power).nonzero().squeeze(1)
            num_queries, num_keys = lengths[:, rows].amax(1).tolist()
            visibility = Visibility(
                num_queries,
                num_keys,
                key_mask=None if causal else key_mask[rows, :num_keys],
                query_mask=self.queries.mask[rows, :num_queries],
                causal=causal,
                device=key_mask.device,
            )
            visibility.share = int(lengths[0, rows].sum()) / num_tokens
            queries = self.queries.index[rows, :num_queries]
            parts.append(SentencePart(visibility, queries, index[rows, :num_keys]))
        return parts

    def take_queries(self, x: Tensor) -> list[Tensor]:
        """Return the rows [R, Lq, D] of each part, of x [B, N, D]."""
        return _taken(x, [part.queries for part in self.parts])

    def take_keys(self, x: Tensor) -> list[Tensor]:
        """Return the rows [R, Lk, D] of each part, of x [B, N, D]."""
        return _taken(x, [part.keys for part in self.parts])

    def put(self, rows: list[Tensor]) -> Tensor:
        """Return [B, N, D] of the rows [R, Lq, D] of each part; any values where padding."""
        flat = torch.cat([part.flatten(0, 1) for part in rows])
        x = flat.index_select(0, self._places.flatten())
        return x.view(*self._places.shape, -1)

    @cached_property
    def _places(self) -> Tensor:
        """[B, N] int64, where each token stands among the flattened rows of all parts."""
        places = self.queries.places
        if self.parts[0].visibility is self.visibility:
            return places
        tokens = torch.cat([part.queries.flatten() for part in self.parts])
        masks = [part.visibility.query_mask for part in self.parts]
        real = torch.cat([mask.flatten() for mask in masks if mask is not None])
        [taken] = real.nonzero(as_tuple=True)
        return (
            torch.zeros_like(places).flatten().index_copy_(0, tokens[taken], taken).view_as(places)
        )

    def in_documents(self, weights: Tensor) -> Tensor:
        """Return weights [R, H, Lq, Lk] as those of whole documents, [B, H, Nq, Nk]."""
        num_keys = self.keys.places.size(1)
        places = self.paired(self.keys.index)[:, None, None] % num_keys  # [R, 1, 1, Lk]
        wide = weights.new_zeros(*weights.shape[:3], num_keys)
        wide.scatter_add_(3, places.expand_as(weights), weights)
        return self.queries.put(wide.transpose(1, 2)).transpose(1, 2)


def _taken(x: Tensor, indices: list[Tensor]) -> list[Tensor]:
    flat = x.flatten(0, 1).index_select(0, torch.cat([index.flatten() for index in indices]))
    rows = flat.split([index.numel() for index in indices])
    return [part.view(*index.shape, -1) for part, index in zip(rows, indices, strict=True)]

"""The sentences of documents, as rows for attention that stays inside sentences.

This *local* attention gathers the tokens of a batch of documents into rows of one sentence each.
Any mechanism works on these rows and counts its keys there. Its outputs are scattered back.

``B`` documents of at most N tokens have ``R`` sentences of at most L tokens.

Reference: Bao et al. 2021, "G-Transformer for document-level machine translation", section 3, which
masks the whole document instead.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from relu_nmt.attention.masks import Visibility

SHORT = 16
"""Do not make narrower rows than this: more calls would cost more than they save."""


@dataclass(frozen=True)
class SentenceRows:
    """The tokens of a batch [B, N] as rows [R, L] of one sentence each, in their order.

    Example: the documents "a | b c" and "d e" become the rows "a -", "b c" and "d e".
        >>> sentence_of_token = torch.tensor([[0, 1, 1], [0, 0, 0]])
        >>> is_token = torch.tensor([[True, True, True], [True, True, False]])
        >>> rows = SentenceRows.of_tokens(sentence_of_token, is_token)
        >>> rows.token_of_entry.tolist(), rows.first_row_of_document.tolist()
        ([[0, 0], [1, 2], [3, 4]], [0, 2])
    """

    # All int64 but the mask. Tokens are indices into the flattened batch, entries indices into the
    # flattened rows. Entries of padding in the first three are arbitrary.
    token_of_entry: Tensor  # [R, L]
    entry_of_token: Tensor  # [B, N]
    row_of_token: Tensor  # [B, N]
    number_of_row: Tensor  # [R], number of the sentence in its document, from 0
    mask: Tensor  # [R, L] bool, True = token
    first_row_of_document: Tensor  # [B]
    num_sentences: Tensor  # [B], of each document
    # [B, N], number of tokens before each one in its sentence. None for the beams of a search.
    positions: Tensor | None = None
    # For keys: the key row that each query row attends to, [R']. None: row i attends to row i.
    key_row_of_query_row: Tensor | None = None

    @classmethod
    def of_tokens(cls, sentence_of_token: Tensor, is_token: Tensor) -> "SentenceRows":
        """Divide documents into rows, given the sentence of each entry [B, N] that is a token."""
        sentences = sentence_of_token.masked_fill(~is_token, 0)
        num_sentences = 1 + sentences.amax(1)
        first_rows = num_sentences.cumsum(0) - num_sentences
        row_of_token = first_rows[:, None] + sentences
        steps = torch.arange(is_token.size(1), device=is_token.device)
        begins = torch.ones_like(is_token)
        begins[:, 1:] = sentences[:, 1:] != sentences[:, :-1]
        positions = (steps - (steps * begins).cummax(1).values).masked_fill(~is_token, 0)
        # Read both sizes in one transfer from the device.
        num_rows, longest = torch.stack([num_sentences.sum(), 1 + positions.amax()]).tolist()
        # Map tokens to entries of the rows [R L], and back.
        entry_of_token = (row_of_token * longest + positions).masked_fill(~is_token, 0)
        tokens = is_token.flatten().nonzero().squeeze(1)
        entries = entry_of_token.flatten()[tokens]
        token_of_entry = entries.new_zeros(num_rows * longest).index_copy_(0, entries, tokens)
        mask = is_token.new_zeros(num_rows * longest).index_fill_(0, entries, True)
        # Count the rows of each document from its first row on.
        rows = torch.arange(num_rows, device=is_token.device)
        documents = _document_of_row(num_sentences, num_rows)
        return cls(
            token_of_entry=token_of_entry.view(num_rows, longest),
            entry_of_token=entry_of_token,
            row_of_token=row_of_token,
            number_of_row=rows - first_rows[documents],
            mask=mask.view(num_rows, longest),
            first_row_of_document=first_rows,
            num_sentences=num_sentences,
            positions=positions,
        )

    @classmethod
    def of_beams(cls, numbers: Tensor, *shape: int) -> "SentenceRows":
        """Return the newest tokens of hypotheses as rows. Their sentences are ``numbers`` [B, K].

        The rows have the given shape, hold all B K tokens in their order, and no padding.
        """
        beams = torch.arange(numbers.numel(), device=numbers.device)
        return cls(
            token_of_entry=beams.view(shape),
            entry_of_token=beams.view_as(numbers),
            row_of_token=beams.view_as(numbers),
            number_of_row=numbers.flatten(),
            mask=torch.ones_like(beams, dtype=torch.bool).view(shape),
            first_row_of_document=beams,
            num_sentences=torch.ones_like(beams),
        )

    def take(self, x: Tensor) -> Tensor:
        """Return the rows [R, L, D] of x [B, N, D]."""
        return _gathered(x, [self.token_of_entry])[0]

    def for_query_rows(self, rows: Tensor) -> Tensor:
        """Return the key row that each query row sees, [R', ...], from the key rows [R, ...]."""
        key_rows = self.key_row_of_query_row
        return rows if key_rows is None else rows.index_select(0, key_rows)

    def select(self, documents: Tensor) -> "SentenceRows":
        """Return the same rows, for which :meth:`rows_of` counts only these documents [B']."""
        return replace(
            self,
            first_row_of_document=self.first_row_of_document[documents],
            num_sentences=self.num_sentences[documents],
        )

    def rows_of(self, documents: Tensor, numbers: Tensor) -> Tensor:
        """Return the rows of sentences, int64, given documents and numbers of sentences in these.

        A number beyond the last sentence of a document gives the row of its last sentence.
        """
        last = self.num_sentences[documents] - 1
        return self.first_row_of_document[documents] + numbers.minimum(last)

    def within(self, document: Visibility, divided: bool = False) -> "SentenceView":
        """Return the view of self-attention: tokens see their own sentence."""
        inside = _visibility(self, self, document.causal)
        return SentenceView(document, self, self, inside, divided=divided)

    def across(
        self, source: "SentenceRows", document: Visibility, divided: bool = False
    ) -> "SentenceView":
        """Return the view of cross-attention: tokens see the source sentence of the same number."""
        if not torch.equal(self.num_sentences, source.num_sentences):
            # Find the source sentence of each row, since the documents differ in length.
            documents = _document_of_row(self.num_sentences, len(self.number_of_row))
            key_rows = source.rows_of(documents, self.number_of_row)
            source = replace(source, key_row_of_query_row=key_rows)
        inside = _visibility(self, source)
        return SentenceView(document, self, source, inside, divided=divided)


class SentencePart(NamedTuple):
    """Rows of sentences of similar lengths, as indices of tokens in the flattened batch."""

    visibility: Visibility
    queries: Tensor  # [R, Lq] int64
    keys: Tensor  # [R, Lk] int64


@dataclass(frozen=True)
class SentenceView:
    """The tokens visible to each query, in the whole document and in one sentence of it."""

    document: Visibility
    queries: SentenceRows
    keys: SentenceRows
    inside: Visibility  # the keys of a row visible to each of its queries
    # In a search, the rows of queries whose row of keys has changed since the last step. None:
    # maybe all.
    changed: Tensor | None = None
    # Divide the rows into parts of similar lengths. Undivided rows are as long as the longest
    # sentence, so most of their tokens are padding.
    divided: bool = False

    @classmethod
    def of_beams(
        cls,
        numbers: Tensor,
        source: SentenceRows,
        document: Visibility,
        last: "SentenceView | None",
    ) -> "SentenceView":
        """Return the view of the newest tokens of hypotheses in sentences ``numbers`` [B, K].

        ``document`` is the visibility of the B documents of ``source``, ``last`` the view of the
        last step.
        """
        queries = SentenceRows.of_beams(numbers, numbers.numel(), 1)
        documents = torch.arange(len(numbers), device=numbers.device)[:, None].expand_as(numbers)
        key_rows = source.rows_of(documents, numbers).flatten()
        keys = replace(source, key_row_of_query_row=key_rows)
        # If the documents are the same as in the last step, note the rows with another source
        # sentence.
        changed = None
        if last is not None and last.document is document:
            last_key_rows = last.keys.key_row_of_query_row
            assert last_key_rows is not None, "from this function"
            changed = (key_rows != last_key_rows).nonzero().squeeze(1)
        return cls(document, queries, keys, _visibility(queries, keys), changed)

    @property
    def num_queries(self) -> int:
        """Number of queries of the document."""
        return self.document.num_queries

    @cached_property
    def parts(self) -> list[SentencePart]:
        """All sentences as one part. A divided view has one for each power of 2 of their length."""
        queries = self.queries
        query_tokens = queries.token_of_entry
        key_tokens = self.keys.for_query_rows(self.keys.token_of_entry)
        key_mask = self.keys.for_query_rows(self.keys.mask)
        if not self.divided:
            return [SentencePart(self.inside, query_tokens, key_tokens)]
        # Group rows by the power of 2 that holds the longer one of query and key sentence.
        lengths = torch.stack([queries.mask.sum(1), key_mask.sum(1)])  # [2, R]
        powers = torch.frexp((lengths.amax(0).clamp_min(SHORT) - 1).double()).exponent
        num_tokens = int(lengths[0].sum())
        causal = self.inside.causal
        parts = []
        for power in powers.unique():
            rows = (powers == power).nonzero().squeeze(1)
            num_queries, num_keys = lengths[:, rows].amax(1).tolist()
            visibility = Visibility(
                num_queries,
                num_keys,
                key_mask=None if causal else key_mask[rows, :num_keys],
                query_mask=queries.mask[rows, :num_queries],
                causal=causal,
                device=key_mask.device,
                share=int(lengths[0, rows].sum()) / num_tokens,
            )
            queries_of_part = query_tokens[rows, :num_queries]
            parts.append(SentencePart(visibility, queries_of_part, key_tokens[rows, :num_keys]))
        return parts

    def take_queries(self, x: Tensor) -> list[Tensor]:
        """Gather the rows of queries [R, Lq, D] of each part from x [B, N, D]."""
        return _gathered(x, [part.queries for part in self.parts])

    def take_keys(self, x: Tensor) -> list[Tensor]:
        """Gather the rows of keys [R, Lk, D] of each part from x [B, N, D]."""
        return _gathered(x, [part.keys for part in self.parts])

    def put(self, rows: list[Tensor]) -> Tensor:
        """Return [B, N, D] of the rows [R, Lq, D] of each part. Padding has arbitrary values."""
        return _put(torch.cat([part.flatten(0, 1) for part in rows]), self._entry_of_token)

    @cached_property
    def _entry_of_token(self) -> Tensor:
        """[B, N] int64, index of each token in the flattened rows of all parts."""
        undivided = self.queries.entry_of_token
        if not self.divided:
            return undivided
        tokens = torch.cat([part.queries.flatten() for part in self.parts])
        masks = [part.visibility.query_mask for part in self.parts]
        # Leave out padding, whose indices are arbitrary.
        real = torch.cat([mask.flatten() for mask in masks if mask is not None])
        [entries] = real.nonzero(as_tuple=True)
        entry_of_token = torch.zeros_like(undivided).flatten()
        return entry_of_token.index_copy_(0, tokens[entries], entries).view_as(undivided)


def in_documents(weights: Tensor, visibility: Visibility) -> Tensor:
    """Return weights [B, H, Nq, Nk] of documents, given these or weights [R, H, Lq, Lk] of rows."""
    if visibility.sentences is None:
        return weights
    queries, keys = visibility.sentences
    num_keys = keys.entry_of_token.size(1)
    # Spread the keys of each row over the keys of its document, then gather the queries.
    columns = keys.for_query_rows(keys.token_of_entry)[:, None, None] % num_keys  # [R, 1, 1, Lk]
    wide = weights.new_zeros(*weights.shape[:3], num_keys)
    wide.scatter_add_(3, columns.expand_as(weights), weights)
    return _put(wide.transpose(1, 2).flatten(0, 1), queries.entry_of_token).transpose(1, 2)


def _visibility(queries: SentenceRows, keys: SentenceRows, causal: bool = False) -> Visibility:
    """Return the visibility of the keys of each row: all or, if ``causal``, the earlier ones."""
    mask = keys.for_query_rows(keys.mask)
    # Padding stands on the right, where causality already hides it from real queries.
    return Visibility(
        queries.mask.size(1),
        mask.size(1),
        key_mask=None if causal else mask,
        query_mask=queries.mask,
        causal=causal,
        device=mask.device,
        sentences=(queries, keys),
    )


def _document_of_row(num_sentences: Tensor, num_rows: int) -> Tensor:
    """Return the document [R] of each row, of documents with these numbers of sentences [B]."""
    documents = torch.arange(len(num_sentences), device=num_sentences.device)
    return documents.repeat_interleave(num_sentences, output_size=num_rows)


def _gathered(x: Tensor, indices: list[Tensor]) -> list[Tensor]:
    """Gather the vectors of x [B, N, D] with these indices, [R, L, D] each."""
    flat = x.flatten(0, 1).index_select(0, torch.cat([index.flatten() for index in indices]))
    rows = flat.split([index.numel() for index in indices])
    return [part.view(*index.shape, -1) for part, index in zip(rows, indices, strict=True)]


def _put(flat: Tensor, entry_of_token: Tensor) -> Tensor:
    """Return [B, N, ...] of flattened rows [R L, ...]."""
    tokens = flat.index_select(0, entry_of_token.flatten())
    return tokens.view(*entry_of_token.shape, *flat.shape[1:])

"""The keys visible to each query, and their number.

Every pointwise mechanism scales weights by n, the number of visible keys. It is counted per query
row and never includes padding.
"""

import math
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from relu_nmt.attention.sentences import SentenceRows


@dataclass(eq=False, repr=False)
class Visibility:
    """The keys that each query of one attention slot may see.

    All layers of a slot share one object per forward pass, so masks and counts are computed once.
    Causal queries are the newest positions: query i sees keys 0 .. Nk - Nq + i. A single causal
    query over cached keys therefore needs no mask.

    Attributes:
        offset: Nk - Nq.
        hides_later: query i sees keys 0 .. offset + i only. A single query sees them all.
        shares_keys: all queries of a sample see the same keys.
        longest: the length of the longest sequence in tokens.

    Example:
        >>> Visibility(2, 2, causal=True).counts.tolist()
        [[[1.0, 2.0]]]
    """

    num_queries: int  # Nq
    num_keys: int  # Nk
    _: KW_ONLY
    key_mask: Tensor | None = None  # [B, Nk] bool, True = visible. None if no key is padding
    # [B, Nq] bool, True = real query. Statistics and losses leave out padding. None: all are real.
    query_mask: Tensor | None = None
    causal: bool = False  # hide later keys
    device: torch.device | None = None  # of the masks, if ``key_mask`` does not give it
    # Rows and columns of an image's patches, which are the last rows * columns tokens, row by row.
    grid: tuple[int, int] | None = None
    # The queries and the keys, if each row is one sentence of a document.
    sentences: "tuple[SentenceRows, SentenceRows] | None" = None
    share: float = 1.0  # fraction of all real queries, if this is one of several parts

    def __post_init__(self) -> None:
        self.offset = self.num_keys - self.num_queries
        self.hides_later = self.causal and self.num_queries > 1
        self.shares_keys = not self.hides_later
        self.longest = self.num_keys
        if self.key_mask is not None:
            self.device = self.key_mask.device
        self._score_masks: dict[torch.dtype, Tensor] = {}

    @cached_property
    def mask(self) -> Tensor | None:
        """[B or 1, 1, Nq or 1, Nk] bool, True = visible. ``None`` if every key is visible."""
        mask = None if self.key_mask is None else self.key_mask[:, None, None, :]
        if self.hides_later:
            shape = self.num_queries, self.num_keys
            square = torch.ones(shape, dtype=torch.bool, device=self.device)
            # Shift the triangle, since the queries are the last of the keys.
            triangle = square.tril(self.offset)[None, None]
            mask = triangle if mask is None else mask & triangle
        return mask

    @cached_property
    def hidden(self) -> Tensor | None:
        """The inverse of ``mask``."""
        return None if self.mask is None else ~self.mask

    @cached_property
    def counts(self) -> Tensor:
        """[B or 1, 1, Nq or 1] float32: n, the number of visible keys of each query row."""
        # Count without the mask of Nq x Nk, which back ends of linear memory never make.
        if not self.hides_later:
            if self.key_mask is None:
                return torch.full((1, 1, 1), float(self.num_keys), device=self.device)
            return self.key_mask.sum(-1, dtype=torch.float32)[:, None, None]
        # Query i sees the keys before ends[i]. Count those that are not padding.
        ends = torch.arange(1 + self.offset, 1 + self.num_keys, device=self.device).clamp_min(0)
        if self.key_mask is None:
            return ends.float()[None, None]
        visible_before = F.pad(self.key_mask.cumsum(1), (1, 0))  # [B, Nk + 1]
        return visible_before[:, ends].float()[:, None]

    @cached_property
    def positive_counts(self) -> Tensor:
        """The counts as divisors: 1 where a row sees no key."""
        return self.counts.clamp_min(1)

    @cached_property
    def empty_rows(self) -> Tensor | None:
        """[B, 1, Nq or 1, 1] bool: rows that see no key. ``None`` if there can be none."""
        return None if self.key_mask is None else (self.counts == 0)[..., None]

    @property
    def key_column(self) -> Tensor | None:
        """[B, 1, Nk, 1] bool, True = real key. ``None`` if no key is padding."""
        return None if self.key_mask is None else self.key_mask[:, None, :, None]

    def without_padding(self, x: Tensor) -> Tensor:
        """Return x [B, H, Nk, d] with 0 in the rows of padded keys.

        In self-attention that is not causal x may also be queries, which have the same padding.
        """
        return x if self.key_column is None else x.masked_fill(~self.key_column, 0.0)

    def visible_sums(self, x: Tensor) -> Tensor:
        """Return the sum of x [B, H, Nk, d] over the keys that each query sees, [B, H, Nq or 1, d].

        The sum has one row if all queries see the same keys.
        """
        x = self.without_padding(x)
        if self.hides_later:
            # Take running sums from the first query's own key on.
            return x.cumsum(2)[:, :, self.offset :]
        return x.sum(2, keepdim=True)

    def without_empty_rows(self, x: Tensor, value: float = 0.0) -> Tensor:
        """Return x [B, H, Nq, d], weights or outputs, with ``value`` in rows that see no key."""
        return x if self.empty_rows is None else x.masked_fill(self.empty_rows, value)

    def score_mask(self, dtype: torch.dtype) -> Tensor | None:
        """Return a mask to add to scores of this dtype: 0 where visible, -inf where hidden.

        Rows that see no key are 0 everywhere, so that neither a softmax over them nor its gradient
        is NaN. The caller must set their output to 0. All layers share the returned tensor.
        """
        if self.mask is None:
            return None
        if dtype not in self._score_masks:
            mask = self.mask
            if self.empty_rows is not None:
                mask = mask | self.empty_rows
            zeros = torch.zeros((), dtype=dtype, device=self.device)
            self._score_masks[dtype] = zeros.where(mask, -math.inf)
        return self._score_masks[dtype]

    @cached_property
    def key_bounds(self) -> Tensor | None:
        """[B, 2] int32: the first hidden key (or Nk), and one past the last visible one (or 0).

        Only the keys between these two need a mask. ``None`` if no key is padding.
        """
        if self.key_mask is None:
            return None
        keys = torch.arange(self.num_keys, device=self.device, dtype=torch.int32)
        first_hidden = keys.masked_fill(self.key_mask, self.num_keys).amin(1)
        end = (keys + 1).masked_fill(~self.key_mask, 0).amax(1)
        return torch.stack([first_hidden, end], 1)

    def key_positions(self) -> Tensor:
        """Return [B or 1, Nk] int64: the number of keys before each one in its sequence.

        Padding stands on the right, so all sequences have the same positions.
        """
        return torch.arange(self.num_keys, device=self.device)[None]

    def query_positions(self) -> Tensor:
        """Return [B or 1, Nq] int64: the number of tokens before each query in its sequence."""
        first = max(0, self.offset) if self.causal else 0
        return torch.arange(self.num_queries, device=self.device)[None] + first

    def positions_without_padding(self) -> Tensor:
        """Return [B or 1, Nk] int64: the number of visible keys before each one.

        Unlike :meth:`key_positions` it skips padding anywhere in the row, such as the dark pixels
        of an image. Padding has the position of the visible key before it, or position 0.
        """
        if self.key_mask is None:
            return self.key_positions()
        return (self.key_mask.cumsum(1) - 1).clamp_min(0)

    def block(self, queries: slice) -> "Visibility":
        """Return the visibility of some queries, without later keys that none of them sees."""
        num_keys = self.num_keys
        if self.hides_later:
            num_keys = max(0, self.offset + queries.stop)
        return Visibility(
            queries.stop - queries.start,
            num_keys,
            key_mask=None if self.key_mask is None else self.key_mask[:, :num_keys],
            query_mask=None if self.query_mask is None else self.query_mask[:, queries],
            causal=self.causal,
            device=self.device,
        )

    def real_rows(self, batch: int) -> Tensor:
        """[B, 1, Nq] float32: 1 for real query rows, 0 for padding."""
        if self.query_mask is None:
            return torch.ones(batch, 1, self.num_queries, device=self.device)
        return self.query_mask[:, None, :].float()


class TreeVisibility(Visibility):
    """The newest tokens of a tree of hypotheses, which see themselves and their ancestors.

    Args:
        ancestry: [B, Nq, Nk] bool, True = visible. The keys of a hypothesis come in the order of
            its tokens, between keys of other hypotheses. The last Nq keys are the queries' own.
        length: number of visible keys of every query. None if it differs between queries.
        sentences: as in :class:`Visibility`.
    """

    def __init__(
        self,
        ancestry: Tensor,
        length: int | None = None,
        sentences: "tuple[SentenceRows, SentenceRows] | None" = None,
    ) -> None:
        num_queries, num_keys = ancestry.shape[1:]
        super().__init__(
            num_queries, num_keys, causal=True, device=ancestry.device, sentences=sentences
        )
        self.hides_later = self.shares_keys = False
        self.ancestry = ancestry
        self._length = length
        self.longest = int(self.counts.max()) if length is None else length

    @cached_property
    def mask(self) -> Tensor:
        """[B, 1, Nq, Nk] bool, True = visible."""
        return self.ancestry[:, None]

    @cached_property
    def counts(self) -> Tensor:
        """[B or 1, 1, Nq or 1] float32: the number of visible keys."""
        if self._length is None:
            return self.ancestry.sum(2, dtype=torch.float32)[:, None]
        return torch.full((1, 1, 1), float(self._length), device=self.device)

    def visible_sums(self, x: Tensor) -> Tensor:
        """Return the sums [R, H, k, d] of the rows of ``x`` that each beam sees."""
        return self.ancestry[:, None].to(x.dtype) @ x

    def block(self, queries: slice) -> "TreeVisibility":
        """Return the visibility of a block of queries. All keys stay."""
        return TreeVisibility(self.ancestry[:, queries], self._length)

    def query_positions(self) -> Tensor:
        """Return [B or 1, Nq] int64: the newest token is the last token of its hypothesis."""
        if self._length is None:
            return self.counts[:, 0].long() - 1
        return torch.full((1, self.num_queries), self._length - 1, device=self.device)

    def key_positions(self) -> Tensor:
        """Return [B, Nk] int64: the position of each key in its hypothesis. 0 if it has none."""
        places = (self.ancestry.cumsum(2) - 1) * self.ancestry
        return places.amax(1)

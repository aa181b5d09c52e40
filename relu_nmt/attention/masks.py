"""Which keys each query may see, and how many: padding and causality in one place.

Reference: the length n of ReLUFormer's scale factor is counted per query row and never includes
padding; every pointwise mechanism needs it.
"""

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor


class Visibility:
    """The keys that each query of one attention slot may see.

    It is made once per slot and forward pass and shared by all layers, so masks and counts are
    computed once. With ``causal`` the last query sees all keys (queries are the newest
    positions), so a single query over cached keys needs no mask.

    Args:
        num_queries: Nq.
        num_keys: Nk.
        key_mask: [B, Nk] bool, True = visible; ``None`` if no key is padding.
        query_mask: [B, Nq] bool, True = real query; padded query rows are left out of every
            statistic and loss. ``None`` if all are real.
        causal: query i sees keys 0 .. Nk - Nq + i only.
        device: where masks are made.

    Example:
        >>> Visibility(2, 2, causal=True).counts.tolist()
        [[[1.0, 2.0]]]
    """

    ancestry: Tensor | None = None
    """[B, Nq, Nk] bool in a :class:`TreeVisibility`; else hidden is what is padding or later."""

    def __init__(
        self,
        num_queries: int,
        num_keys: int,
        *,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        causal: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self.num_queries = num_queries
        self.num_keys = num_keys
        self.key_mask = key_mask
        self.query_mask = query_mask
        # One query may see every key: nothing is left to mask.
        self.causal = causal and num_queries > 1
        self.device = key_mask.device if key_mask is not None else device

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return self.num_keys

    @cached_property
    def mask(self) -> Tensor | None:
        """[B or 1, 1, Nq or 1, Nk] bool, True = visible; ``None`` if every key is visible."""
        mask = None if self.key_mask is None else self.key_mask[:, None, None, :]
        if self.causal:
            ones = torch.ones(self.num_queries, self.num_keys, dtype=torch.bool, device=self.device)
            triangle = ones.tril(self.num_keys - self.num_queries)[None, None]
            mask = triangle if mask is None else mask & triangle
        return mask

    @cached_property
    def counts(self) -> Tensor:
        """[B or 1, 1, Nq or 1] float32: n, the number of visible keys of each query row."""
        # Not from the mask, which would be Nq x Nk where a linear-memory back end needs none.
        if not self.causal:
            if self.key_mask is None:
                return torch.full((1, 1, 1), float(self.num_keys), device=self.device)
            return self.key_mask.sum(-1, dtype=torch.float32)[:, None, None]
        first = 1 + self.num_keys - self.num_queries
        ends = torch.arange(first, self.num_keys + 1, device=self.device).clamp_min(0)
        if self.key_mask is None:
            return ends.float()[None, None]
        visible_before = F.pad(self.key_mask.cumsum(1), (1, 0))  # [B, Nk + 1]
        return visible_before[:, ends].float()[:, None]

    @cached_property
    def empty_rows(self) -> Tensor | None:
        """[B, 1, Nq or 1, 1] bool: rows that see no key; ``None`` if there can be none."""
        return None if self.key_mask is None else (self.counts == 0)[..., None]

    @cached_property
    def normalizable_mask(self) -> Tensor | None:
        """As ``mask``, but rows that see no key see all, for maps that divide by a row's sum.

        Their output is to be set to 0 afterwards; so neither it nor its gradient is NaN.
        """
        return self.mask if self.empty_rows is None else self.mask | self.empty_rows

    @cached_property
    def key_bounds(self) -> Tensor | None:
        """[B, 2] int32: the first hidden key (or Nk), and one past the last visible one (or 0).

        Only the keys between the two need a mask. ``None`` if no key is padding.
        """
        if self.key_mask is None:
            return None
        keys = torch.arange(self.num_keys, device=self.device, dtype=torch.int32)
        first_hidden = keys.masked_fill(self.key_mask, self.num_keys).amin(1)
        end = (keys + 1).masked_fill(~self.key_mask, 0).amax(1)
        return torch.stack([first_hidden, end], 1)

    def real_rows(self, batch: int) -> Tensor:
        """[B, 1, Nq] float32: 1 for real query rows, 0 for padding."""
        if self.query_mask is None:
            return torch.ones(batch, 1, self.num_queries, device=self.device)
        return self.query_mask[:, None, :].float()


class TreeVisibility(Visibility):
    """What the newest tokens of a tree of hypotheses may see: themselves and their ancestors.

    Args:
        ancestry: [B, Nq, Nk] bool, True = visible. The keys of a hypothesis come in the order of
            its tokens, among keys of others; the last Nq keys are the queries' own.
        length: tokens of every hypothesis, so visible keys of every query.
    """

    def __init__(self, ancestry: Tensor, length: int) -> None:
        super().__init__(ancestry.size(1), ancestry.size(2), device=ancestry.device)
        self.ancestry = ancestry
        self._length = length

    @property
    def longest(self) -> int:
        """The tokens of every hypothesis."""
        return self._length

    @cached_property
    def mask(self) -> Tensor:
        """[B, 1, Nq, Nk] bool, True = visible."""
        return self.ancestry[:, None]

    @cached_property
    def counts(self) -> Tensor:
        """[1, 1, 1] float32: the number of visible keys, the same for all."""
        return torch.full((1, 1, 1), float(self._length), device=self.device)

    @cached_property
    def positions(self) -> Tensor:
        """[B, Nk] int64: where each key stands in its hypothesis; 0 if it is part of none."""
        places = (self.ancestry.cumsum(2) - 1) * self.ancestry
        return places.amax(1)

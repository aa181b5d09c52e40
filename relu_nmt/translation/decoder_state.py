"""The state of a search in a decoder: trees of hypotheses and the keys and values of their tokens.

The hypotheses of a sentence form a tree: they share their first tokens and differ in the last few.
The caches of a state store every token of the tree once, as one *entry*, even if many beams
continue it. All beams are queries of one attention to these entries. The *ancestry* marks the
entries of each beam's own hypothesis. Reordering beams therefore only changes the ancestry. Entries
that no hypothesis needs are dropped from time to time.

Each of ``B`` sentences has ``K`` beams, in ``G`` groups of k = K / G beams that never mix. A tree
belongs to one group, so there are ``R`` = B G trees. ``M`` is the number of entries of a tree.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention.masks import TreeVisibility, Visibility
from relu_nmt.io.memory import require_memory
from relu_nmt.translation.base import SearchState

LEAST_STEPS = 8
MOST_STEPS = 32
"""Fewest and most steps for which caches get capacity at once.

Adding capacity copies the caches and drops dead entries. Each dead entry slows the steps."""
SMALLER_SEARCH = "a smaller --max-tokens, --batch-size or --beam needs less"


class LayerCache:
    """Keys and values of one decoder layer: of the source, and of the target so far.

    ``R`` trees of hypotheses have k beams each, and M entries for the tokens of their beams. Keys
    and values of the ``target`` are [R, H, M, d] each. None before the first step.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        # Copy the heads, which are views of the projections, once and not in every step.
        self.source = keys.contiguous(), values.contiguous()
        self.target: tuple[Tensor, Tensor] | None = None

    def memory(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the source, [B, H, S, d] each."""
        return self.source

    def append_keys(self, keys: Tensor, values: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """Store the newest keys and values [R, H, k, d]. Return all, [R, H, M', d] each.

        ``used`` is M', the number of entries in use. The newest tokens use the last k.
        """
        if self.target is None:
            self.target = keys, values
        else:
            # Overwrite the last entries in use, which were reserved for them.
            new = slice(used - keys.size(2), used)
            self.target[0][:, :, new], self.target[1][:, :, new] = keys, values
        kept_keys, kept_values = self.target
        return kept_keys[:, :, :used], kept_values[:, :, :used]

    def select(self, index: Tensor) -> None:
        """Keep target entries by their indices [R', H, M'] int64 among the R H M old vectors."""
        if self.target is not None:
            # ``gather`` would copy each number separately.
            old_keys, old_values = self.target
            keys = old_keys.reshape(-1, old_keys.size(3)).index_select(0, index.flatten())
            values = old_values.reshape(-1, old_values.size(3)).index_select(0, index.flatten())
            self.target = keys.view(*index.shape, -1), values.view(*index.shape, -1)

    def keep(self, sentences: Tensor) -> None:
        """Keep the sources with these indices [B']."""
        keys, values = self.source
        self.source = keys.index_select(0, sentences), values.index_select(0, sentences)


class DecoderState(SearchState):
    """The state of ``B`` sentences, whose number of beams the first step gives.

    Groups of beams never mix. The key mask [B, S] marks real source tokens. Each hypothesis has
    ``length`` tokens, and its beam sees the source tokens of ``cross_visibility``.
    """

    cross_visibility: Visibility

    def __init__(self, caches: Sequence[LayerCache], key_mask: Tensor, num_groups: int = 1) -> None:
        self.caches = caches
        self.num_groups = num_groups
        self.length = 0
        self._key_mask = key_mask
        self._beam_size = 0
        self._num_used = 0
        # [R, k, M] bool. Before the first step there are no beams.
        self._ancestry = key_mask.new_zeros(key_mask.size(0) * num_groups, 0, 0)

    def grow(self, tokens: Tensor) -> Visibility:
        """Give every beam its next entry. Return the visibility of the newest tokens [B, K]."""
        if self.length == 0:
            self._beam_size = tokens.size(1)
            beams_per_tree = self._beam_size // self.num_groups
            self._ancestry = self._ancestry.new_zeros(len(self._ancestry), beams_per_tree, 0)
            self.cross_visibility = self._make_cross_visibility()
        # Make room in the caches for one entry per beam.
        num_trees, size, num_entries = self._ancestry.shape
        device = self._ancestry.device
        if self._num_used + size > num_entries:
            self._compact(torch.arange(num_trees, device=device))
        # Each new entry belongs to one beam only.
        new = slice(self._num_used, self._num_used + size)
        self._ancestry[:, :, new] = torch.eye(size, dtype=torch.bool, device=device)
        self._num_used += size
        self.length += 1
        # Return a plain visibility for a single beam, which sees all its entries.
        if size == 1:
            return Visibility(1, self._num_used, causal=True, device=device)
        return TreeVisibility(self._ancestry[:, :, : self._num_used], self.length)

    def reorder(self, parents: Tensor) -> None:
        num_trees, size, num_entries = self._ancestry.shape
        if size == 1:
            return
        # Find the parents' rows among all beams, and copy their ancestry.
        first = torch.arange(parents.size(0), device=parents.device)[:, None] * self._beam_size
        ancestry = self._ancestry.view(-1, num_entries).index_select(0, (first + parents).flatten())
        self._ancestry = ancestry.view(num_trees, size, num_entries)

    def keep(self, sentences: Tensor) -> None:
        # Keep the trees of these sentences, of all groups.
        groups = torch.arange(self.num_groups, device=sentences.device)
        self._compact((sentences[:, None] * self.num_groups + groups).flatten())
        for cache in self.caches:
            cache.keep(sentences)
        self._key_mask = self._key_mask.index_select(0, sentences)
        self.cross_visibility = self._make_cross_visibility()

    def _compact(self, trees: Tensor) -> Tensor:
        """Keep these trees [R'] and drop dead entries. Return the kept entries, [R', M']."""
        ancestry = self._ancestry[:, :, : self._num_used].index_select(0, trees)
        entries = _live_entries(ancestry)
        self._num_used = entries.size(1)
        # The first step creates the caches, so before it one entry is enough.
        steps = min(max(LEAST_STEPS, self.length), MOST_STEPS) if self.length else 1
        spare = ancestry.size(1) * steps
        self._check_memory(len(trees) * (self._num_used + spare))
        # Spare entries repeat the first entry, so that they hold no NaN: 0 * NaN is NaN.
        self._select_in_caches(trees, F.pad(entries, (0, spare)))
        ancestry = ancestry.gather(2, entries[:, None].expand(-1, ancestry.size(1), -1))
        self._ancestry = F.pad(ancestry, (0, spare))  # [R', k, M' + spare]
        return entries

    def _select_in_caches(self, trees: Tensor, entries: Tensor) -> None:
        """Keep these entries [R', M'] of these trees [R'] in the caches of all layers."""
        # Index whole vectors among all heads of all trees, [R', H, M'].
        num_heads = self.caches[0].source[0].size(1)
        heads = trees[:, None] * num_heads + torch.arange(num_heads, device=trees.device)
        index = heads[:, :, None] * self._ancestry.size(2) + entries[:, None]
        for cache in self.caches:
            cache.select(index)

    def _check_memory(self, num_entries: int) -> None:
        """Refuse caches of so many entries if they do not fit in CPU memory (OutOfMemoryError)."""
        keys = self.caches[0].source[0]  # [B, H, S, d]
        if keys.is_cpu:
            of_heads = 2 * len(self.caches) * keys.size(1) * keys.size(3) * keys.element_size()
            # Add the ancestry and the copies that exist while it grows.
            num_bytes = num_entries * (of_heads + 3 * self._ancestry.size(1))
            subject = f"{num_entries:,} tokens of hypotheses"
            require_memory(subject, num_bytes, SMALLER_SEARCH)

    def _make_cross_visibility(self) -> Visibility:
        return Visibility(self._beam_size, self._key_mask.size(1), key_mask=self._key_mask)


def _live_entries(ancestry: Tensor) -> Tensor:
    """Return the indices [R, M'] of the entries of live hypotheses, in their order.

    Trees with fewer than M' such entries keep some dead ones.
    """
    alive = ancestry.any(1)  # [R, M]
    order = alive.byte().argsort(dim=1, descending=True, stable=True)
    return order[:, : int(alive.sum(1).max())]

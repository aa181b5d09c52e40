"""What step-by-step decoding remembers: keys and values of source and target.

The hypotheses of a sentence form a tree: they share their first tokens and differ in the last few.
Every token of the tree is stored once, in an entry of the caches, however many beams go on from it;
all beams are queries of one attention to these entries, and the *ancestry* says which of them are
the beam's own hypothesis. Going on from other beams changes the ancestry alone. Now and then the
entries that no hypothesis needs any more are given up.

Where attention stays inside sentences, every entry also has the number of its token's sentence: the
separators up to it. A beam then sees those of its entries that have the number of its newest one,
and of the source the sentence of that number.

``B`` sentences of ``K`` beams each; the beams are ``G`` groups of k = K / G that never mix, and a
tree belongs to one group, so there are ``R`` = B G trees. ``M`` is the number of entries.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention.masks import TreeVisibility, Visibility
from relu_nmt.attention.sentences import SentenceRows, SentenceView
from relu_nmt.modules.layer_cache import ComputedBeams, LayerCache

LEAST_ROOM = 8
MOST_ROOM = 32
"""Steps that the caches hold room for: making room copies them, and unused room is memory.
Entries are given up at that time, so until then their keys may still cost products."""


class DecoderState:
    """The state of ``B`` sentences; each starts with one beam, all being equal at first.

    Args:
        caches: one cache a layer.
        key_mask: [B, S] bool, True = real source token.
        source: the sentences of the source, if attention stays inside them.
        separator: id of the target token that ends sentences.

    Attributes:
        shortlist: ids of the only symbols that may be written, int64 [V']; None for all.
        projection: gives their logits; None for the model's own.
        computed: the beams that the next steps compute; None for all.
    """

    shortlist: Tensor | None = None
    projection: Callable[[Tensor], Tensor] | None = None
    computed: ComputedBeams | None = None

    def __init__(
        self,
        caches: list[LayerCache],
        key_mask: Tensor,
        source: SentenceRows | None = None,
        separator: int = -1,
    ) -> None:
        self.caches = caches
        self.key_mask = key_mask
        self.source = source
        self.separator = separator
        self.beam_size = 1
        self.num_groups = 1
        self.length = 0
        self._used = 0
        self._ancestry = key_mask.new_zeros(key_mask.size(0), 1, 1)  # [R, k, M] bool
        self._numbers = self._ancestry[:, 0].long()  # [R, M], sentence of each entry
        self.cross_visibility = self._cross_visibility()

    def spread(self, beam_size: int, num_groups: int = 1) -> None:
        """Let ``beam_size`` beams, in groups that never mix, go on from every sentence's only one.

        Args:
            beam_size: K.
            num_groups: G, a divisor of K.
        """
        sentences = torch.arange(self.key_mask.size(0), device=self.key_mask.device)
        self._ancestry = self._ancestry.expand(-1, beam_size // num_groups, -1)
        self._take(sentences.repeat_interleave(num_groups))
        self.beam_size, self.num_groups = beam_size, num_groups
        self.cross_visibility = self._cross_visibility()

    def grow(self, tokens: Tensor) -> Visibility:
        """Give every beam its next entry; return what the newest tokens may see of all entries.

        Args:
            tokens: [B, K] int64, the newest token of each beam.
        """
        num_trees, size, num_entries = self._ancestry.shape
        device = self._ancestry.device
        if self._used + size > num_entries:
            self._take(torch.arange(num_trees, device=device))
        new = slice(self._used, self._used + size)
        if self.source is not None:
            before = (self._ancestry * self._numbers[:, None]).amax(2)  # [R, k]
            self._numbers[:, new] = before + tokens.eq(self.separator).view_as(before)
        self._ancestry[:, :, new] = torch.eye(size, dtype=torch.bool, device=device)
        self._used += size
        self.length += 1
        ancestry = self._ancestry[:, :, : self._used]
        if size == 1:
            visibility = Visibility(1, self._used, causal=True, device=device)
        else:
            visibility = TreeVisibility(ancestry, self.length)
        if self.source is not None:
            numbers = self._numbers[:, new]  # [R, k]
            rows = SentenceRows.of_beams(numbers, *numbers.shape)
            own = ancestry & (self._numbers[:, None, : self._used] == numbers[:, :, None])
            begin = int(own.any(0).any(0).byte().argmax())  # none sees an entry before it
            visibility.sentences = SentenceView(TreeVisibility(own[:, :, begin:]), rows, rows)
            last = self.cross_visibility.sentences
            across = SentenceView.of_beams(numbers.reshape(tokens.shape), self.source, last)
            self.cross_visibility.sentences = across
        return visibility

    def reorder(self, beam_index: Tensor) -> None:
        """Let hypothesis k of sentence b go on from hypothesis ``beam_index[b, k]`` of its group.

        Args:
            beam_index: [B, K] int64, numbers of beams of the sentence.
        """
        num_trees, size, num_entries = self._ancestry.shape
        if size == 1:
            return
        first = torch.arange(beam_index.size(0), device=beam_index.device)[:, None]
        rows = (first * self.beam_size + beam_index).flatten()
        ancestry = self._ancestry.view(-1, num_entries).index_select(0, rows)
        self._ancestry = ancestry.view(num_trees, size, num_entries)

    def keep(self, sentences: Tensor) -> None:
        """Keep only the sentences with these indices [B'], in this order."""
        groups = torch.arange(self.num_groups, device=sentences.device)
        self._take((sentences[:, None] * self.num_groups + groups).flatten())
        for cache in self.caches:
            cache.select_source(sentences)
        if self.source is not None:
            self.source = self.source.select(sentences)
        self.key_mask = self.key_mask.index_select(0, sentences)
        self.cross_visibility = self._cross_visibility()

    def _take(self, trees: Tensor) -> None:
        """Keep these trees [R'], without the tokens of no hypothesis, and make room for more."""
        ancestry = self._ancestry[:, :, : self._used].index_select(0, trees)
        alive = ancestry.any(1)  # [R', used]
        self._used = int(alive.sum(1).max())
        order = alive.byte().argsort(dim=1, descending=True, stable=True)  # oldest first, as before
        # Before the first step there are no caches yet that could have room.
        steps = min(max(LEAST_ROOM, self.length), MOST_ROOM) if self.length else 1
        room = ancestry.size(1) * steps
        entries = order[:, : self._used]
        ancestry = ancestry.gather(2, entries[:, None].expand(-1, ancestry.size(1), -1))
        self._ancestry = F.pad(ancestry, (0, room))
        if self.source is not None:
            numbers = self._numbers.index_select(0, trees).gather(1, entries)
            self._numbers = F.pad(numbers, (0, room))
        for cache in self.caches:
            cache.take(trees, entries, room)

    def _cross_visibility(self) -> Visibility:
        return Visibility(self.beam_size, self.key_mask.size(1), key_mask=self.key_mask)

"""What one layer of a decoder sees and remembers, step by step.

See :mod:`relu_nmt.models.decoder_state` for the hypotheses of a sentence, which form trees.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention.backends.native import put_picked, take_entries, takes
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.sentences import SentenceView
from relu_nmt.modules.positions import RelativePositions


@dataclass(frozen=True)
class ComputedBeams:
    """Those of a batch's beams that a step computes; the others stand for no hypothesis.

    Attention has queries of all of them, as the same number for each sentence is what it is fast
    with, unless it :meth:`~relu_nmt.attention.base.Attention.picks`; all else is computed for these
    alone.

    Args:
        taken: places of the N' computed ones among all B K, int64 [N'].
        given: the computed one whose vector each of all gets, 0 to N' - 1, int64 [B K]; any one for
            those that are not computed.

    Example:
        >>> beams = ComputedBeams.of(torch.tensor([[True, False]] * 16))
        >>> beams.taken[:4].tolist(), beams.given[:4].tolist()
        ([0, 2, 4, 6], [0, 0, 1, 1])
    """

    taken: Tensor
    given: Tensor

    @classmethod
    def of(cls, live: Tensor, multiple: int = 1) -> "ComputedBeams | None":
        """Return those of ``live`` [B, K] bool, filled up to a ``multiple``; None: all."""
        live = live.flatten()
        dead = (~live).nonzero().squeeze(1)
        more = -(len(live) - len(dead)) % multiple
        if len(dead) <= more or len(dead) == len(live):
            return None
        taken = live.index_fill(0, dead[:more], True)
        return cls(taken.nonzero().squeeze(1), (taken.cumsum(0) - 1).clamp_min(0))

    def take(self, x: Tensor) -> Tensor:
        """Return [1, N', D] of x [1, B K, D]."""
        return x.index_select(1, self.taken)

    def give(self, x: Tensor) -> Tensor:
        """Return [1, B K, D] of x [1, N', D]."""
        return x.index_select(1, self.given)


@dataclass(frozen=True)
class LayerStep:
    """What the newest tokens of some hypotheses see in one layer of a decoder.

    Args:
        num_tokens: of them that are computed, N'.
        computed: which these are; None: all R k = B K.
        visibility: which entries of the cache the beams of each tree see, themselves included.
        relative: what the scheme of positions does to queries, keys and scores.
        memory_visibility: which of the memory the beams of each sentence see.
        cache: keys and values.
    """

    num_tokens: int
    computed: ComputedBeams | None
    visibility: Visibility
    relative: RelativePositions | None
    memory_visibility: Visibility
    cache: "LayerCache"

    def beams(self, x: Tensor, num_queries: int) -> Tensor:
        """Return x [1, N', D] as what all beams have, [B K / Nq, Nq, D]."""
        if self.computed is not None:
            x = self.computed.give(x)
        return x.reshape(-1, num_queries, x.size(2))

    def newest(self, values: Tensor) -> Tensor:
        """Return the vectors of the computed beams [1, N', D] of those of all [..., D]."""
        row = values.reshape(1, -1, values.size(-1))
        return row if self.computed is None else self.computed.take(row)


class LayerCache:
    """Keys and values of one decoder layer in step-by-step decoding.

    ``R`` trees of hypotheses have k beams and M entries for the tokens of each; see
    :mod:`relu_nmt.models.decoder_state`.

    Args:
        source: keys and values of the source, [B, H, S, d] each, once a sentence.
        in_rows: they are in rows of one sentence each, [R, H, L, d].
        whole: the cache for the attention to the whole document, where both are joined.

    Attributes:
        target: keys and values of the tokens so far, [R, H, M, d] each; None before the first.
    """

    def __init__(
        self,
        source: tuple[Tensor, Tensor],
        in_rows: bool = False,
        whole: "LayerCache | None" = None,
    ) -> None:
        self.source = source
        self.in_rows = in_rows
        self._paired: tuple[Tensor, Tensor] | None = None
        self.whole = whole
        self.target: tuple[Tensor, Tensor] | None = None

    def contiguous(self) -> "LayerCache":
        """Return it with copied keys and values: heads are views, which every step would copy."""
        keys, values = (part.contiguous() for part in self.source)
        whole = None if self.whole is None else self.whole.contiguous()
        return LayerCache((keys, values), self.in_rows, whole)

    def keep_as(self, dtype: torch.dtype) -> None:
        """Keep keys and values in such numbers, which may be others than those computed with."""
        self.source = self._as(self.source, dtype)
        if self.target is not None:
            self.target = self._as(self.target, dtype)

    @staticmethod
    def _as(pair: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        keys, values = pair
        if keys.dtype == dtype:
            return pair
        if dtype == torch.float16:  # what it has no numbers for is its largest
            most = torch.finfo(dtype).max
            keys, values = keys.clamp(-most, most), values.clamp(-most, most)
        return keys.to(dtype), values.to(dtype)

    def memory(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the source [B, H, S, d] in the numbers of the queries."""
        return self._as(self.source, dtype)

    def paired(self, local: SentenceView) -> tuple[Tensor, Tensor]:
        """Return the keys and values that each row of queries sees, [R, H, L, d] each."""
        keys, values = self.source
        if self._paired is None or local.changed is None:
            self._paired = local.paired(keys), local.paired(values)
        elif local.pairs is not None and len(local.changed):
            rows = local.pairs[local.changed]
            for kept, part in zip(self._paired, self.source, strict=True):
                kept.index_copy_(0, local.changed, part.index_select(0, rows))
        return self._paired

    def room(
        self, visibility: Visibility, shape: tuple[int, int, int], dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return all keys and values, [R, H, Nk, d] each, the last k for the caller to write.

        Args:
            visibility: of the queries, the newest tokens, to all entries in use.
            shape: R, H and d.
            dtype: of keys and values.
        """
        if self.target is None:
            trees, heads, width = shape
            room = (trees, heads, visibility.num_queries, width)
            self.target = torch.empty(room, dtype=dtype), torch.empty(room, dtype=dtype)
        keys, values = self.target
        return keys[:, :, : visibility.num_keys], values[:, :, : visibility.num_keys]

    def put(
        self,
        keys: Tensor,
        values: Tensor,
        used: int,
        visibility: Visibility,
        picked: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Store what the newest tokens add; return the keys and values that are visible.

        Args:
            keys: [R, H, k, d]; or [1, H, N', d] of picked beams.
            values: likewise.
            used: entries in use, the new ones being the last k.
            visibility: of the queries; the last Nk entries are its keys.
            picked: places of the beams among all R k, int64 [N']; see :meth:`Attention.picks`.

        Returns:
            keys and values, [R, H, Nk, d] each.
        """
        new = slice(used - visibility.num_queries, used)
        if self.target is None:
            self.target = keys, values
        elif picked is None:
            self.target[0][:, :, new], self.target[1][:, :, new] = keys, values
        else:
            put_picked(keys, picked, self.target[0][:, :, new])
            put_picked(values, picked, self.target[1][:, :, new])
        k, v = (part[:, :, used - visibility.num_keys : used] for part in self.target)
        return self._as((k, v), keys.dtype)

    def take(self, trees: Tensor, entries: Tensor, room: int) -> None:
        """Make the caches anew from these entries [R', M'] of these trees [R'], and room for more.

        What is in the room does not matter, but it is not NaN: 0 * NaN is NaN.
        """
        if self.target is not None:
            take = take_entries if takes(self.target[0]) else _take
            keys, values = self.target
            self.target = take(keys, trees, entries, room), take(values, trees, entries, room)
        if self.whole is not None:
            self.whole.take(trees, entries, room)

    def select_source(self, sentences: Tensor) -> None:
        """Keep the sources with these indices; rows of sentences all stay, as pairs name them."""
        if self.in_rows:
            if self.whole is not None:
                self.whole.select_source(sentences)
            return
        keys, values = self.source
        self.source = keys.index_select(0, sentences), values.index_select(0, sentences)


def _take(x: Tensor, trees: Tensor, entries: Tensor, room: int) -> Tensor:
    """Return what :func:`take_entries` does, but for what is in the room."""
    entries = F.pad(entries, (0, room))
    _, num_heads, num_entries, width = x.shape
    heads = trees[:, None] * num_heads + torch.arange(num_heads, device=x.device)
    index = heads[:, :, None] * num_entries + entries[:, None]  # [R', H, M']
    # Whole vectors are copied, which ``gather`` would do number by number.
    return x.reshape(-1, width).index_select(0, index.flatten()).view(*index.shape, width)

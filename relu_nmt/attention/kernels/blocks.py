"""Blocks of blockwise attention, and the keys of a block that it can skip."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.masks import Visibility


@dataclass
class Block:
    """A block of queries of a part; they see no key from ``num_keys`` on.

    ``live`` are the indices of the keys whose weights are not all zero, ``None`` for all keys;
    ``kept`` are its scores, unless the backward pass computes them again.
    """

    rows: slice
    num_keys: int
    seed: int
    live: Tensor | None = None
    kept: Tensor | None = None

    @property
    def keys(self) -> slice | Tensor:
        """The keys whose weights are computed: a range or their indices."""
        return slice(self.num_keys) if self.live is None else self.live


@dataclass
class Part:
    """Heads that are computed together: few on a CPU, all on a GPU."""

    # Index of a sample; or a range of samples with all their heads; None for all.
    sample: int | slice | None
    heads: slice  # range of its heads
    num_keys: int  # keys from here on are hidden from all queries
    hidden: Tensor | None  # [Nk] or, for several samples, [B, 1, 1, Nk] bool, further hidden keys
    blocks: list[Block] = field(default_factory=list)

    @property
    def index(self) -> tuple[int | slice, ...]:
        """Index of the part in [B, H, ...]."""
        if self.sample is None:
            return ()
        if isinstance(self.sample, slice):
            return (self.sample,)
        first, is_single = self.heads.start, self.heads.stop - self.heads.start == 1
        # Products of a matrix are faster than those of a batch of one.
        return self.sample, first if is_single else self.heads


def make_parts(visibility: Visibility, q: Tensor, k: Tensor, seed: int = 0) -> list[Part]:
    """Return the parts into which samples and heads are divided; ``seed`` is the first block's."""
    found, rows = _parts(visibility, q, k)
    num_queries, offset = visibility.num_queries, visibility.offset
    for part in found:
        for start in range(0, num_queries, rows):
            stop, num_keys = min(start + rows, num_queries), part.num_keys
            if offset is not None:
                # Leave out the keys behind the last query's own.
                num_keys = max(0, min(num_keys, offset + stop))
            part.blocks.append(Block(slice(start, stop), num_keys, seed))
            seed += 1
    return found


def _parts(visibility: Visibility, q: Tensor, k: Tensor) -> tuple[list[Part], int]:
    """Return the parts without blocks, and the number of queries of a block."""
    batch, heads = q.shape[:2]
    num_keys, mask = k.size(2), visibility.key_mask
    if tuned.waits(q):
        # Take one part for all, whose mask need not be read.
        hidden = None if mask is None else ~mask[:, None, None, :]
        rows = tuned.GPU_BLOCK_WEIGHTS // max(1, batch * heads * num_keys)
        return [Part(None, slice(None), num_keys, hidden)], max(tuned.GPU_LEAST_ROWS, rows)
    # Find the rows of a block of one head, and how many such blocks fit into the cache.
    weights = tuned.CPU_BLOCK_BYTES // q.element_size() * (2 if q.element_size() == 2 else 1)
    rows = max(tuned.CPU_LEAST_ROWS, weights // max(1, num_keys))
    # Make causal blocks short, so that they compute few hidden weights.
    if visibility.hides_later:
        rows = min(rows, tuned.CPU_LEAST_ROWS)
    size = max(1, num_keys * min(rows, q.size(2)))
    # Short sequences: several samples with all their heads fill half the cache.
    samples = weights // 2 // (heads * size)
    if samples > 1:
        several = [slice(start, start + samples) for start in range(0, batch, samples)]
        return [Part(some, slice(None), *_visible(mask, some, num_keys)) for some in several], rows
    # Longer ones: some heads of one sample.
    together = max(1, weights // size)
    found = []
    for sample in range(batch):
        seen = _visible(mask, sample, num_keys)
        for head in range(0, heads, together):
            found.append(Part(sample, slice(head, head + together), *seen))
    return found, rows


def _visible(mask: Tensor | None, sample: int | slice, num_keys: int) -> tuple[int, Tensor | None]:
    """Return one past the last visible key of any sample, and a mask of hidden keys before it."""
    if mask is None:
        return num_keys, None
    seen = mask[sample]
    visible = torch.atleast_2d(seen).any(0).nonzero()
    length = int(visible[-1]) + 1 if len(visible) else 0
    seen = seen[..., :length]
    if seen.all():
        return length, None
    return length, ~(seen if seen.dim() == 1 else seen[:, None, None])


def live_keys(weights: Tensor) -> Tensor | None:
    """Return the indices of keys with a weight above zero, by tiles of keys.

    ``None`` stands for all keys: too few are zero. weights [..., rows, n] are never negative.
    """
    num_keys = weights.size(-1)
    enough = tuned.MOST_LIVE * num_keys
    # A few rows show most dense matrices, without a pass over all.
    if weights[..., -tuned.PROBED_ROWS :, :].flatten(0, -2).amax(0).count_nonzero() > enough:
        return None
    # Find tiles of keys without any weight.
    tile = tuned.SKIP_TILE
    is_zero = weights.flatten(0, -2).amax(0) == 0
    is_zero = F.pad(is_zero, (0, -num_keys % tile), value=True).view(-1, tile).all(1)
    live = (~is_zero).repeat_interleave(tile)[:num_keys].nonzero().squeeze(1)
    return live if len(live) <= enough else None

"""Blocks of blockwise attention, and the keys of a block that it can skip."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.masks import Visibility


@dataclass
class Part:
    """Heads that are computed together: few on a CPU, all on a GPU.

    Args:
        sample: index of a sample; or a range of samples with all their heads; ``None`` for all.
        heads: range of its heads.
        number: index of the part.
        num_keys: keys from here on are hidden from all queries.
        hidden: [Nk] or, for several samples, [B, 1, 1, Nk] bool, further hidden keys.
        block_rows: queries of a block.
    """

    sample: int | slice | None
    heads: slice
    number: int
    num_keys: int
    hidden: Tensor | None
    block_rows: int

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


@dataclass
class Block:
    """A block of queries of a part.

    Args:
        rows: range of queries.
        num_keys: the queries see no key from here on.
        live: indices of the keys whose weights are not all zero; ``None`` for all keys.
        seed: seed of its dropout.
        kept: its scores, if the backward pass need not compute them again.
    """

    rows: slice
    num_keys: int
    live: Tensor | None
    seed: int
    kept: Tensor | None = None

    @property
    def keys(self) -> slice | Tensor:
        """The keys whose weights are computed: a range or their indices."""
        return slice(self.num_keys) if self.live is None else self.live


def parts(visibility: Visibility, q: Tensor, k: Tensor) -> list[Part]:
    """Return the parts into which samples and heads are divided."""
    batch, heads = q.shape[:2]
    num_keys, mask = k.size(2), visibility.key_mask
    if q.device.type != "cpu":
        # One part for all: to read the mask's values, the CPU would wait for the GPU.
        hidden = None if mask is None else ~mask[:, None, None, :]
        rows = tuned.GPU_BLOCK_WEIGHTS // max(1, batch * heads * num_keys)
        return [Part(None, slice(None), 0, num_keys, hidden, max(tuned.GPU_LEAST_ROWS, rows))]
    # Find the rows of a block of one head, and how many such blocks fit into the cache.
    weights = tuned.CPU_BLOCK_BYTES // q.element_size() * (2 if q.element_size() == 2 else 1)
    rows = max(tuned.CPU_LEAST_ROWS, weights // max(1, num_keys))
    # Make causal blocks short, so that they compute few hidden weights.
    if visibility.hides_later:
        rows = min(rows, tuned.CPU_LEAST_ROWS)
    size = max(1, num_keys * min(rows, q.size(2)))
    # Count the samples whose blocks of all heads fit into half the cache.
    samples = weights // 2 // (heads * size)
    found: list[Part] = []
    # Short sequences: several samples with all their heads.
    if samples > 1:
        for start in range(0, batch, samples):
            some = slice(start, start + samples)
            length, hidden = _visible(mask, some, num_keys)
            found.append(Part(some, slice(None), len(found), length, hidden, rows))
        return found
    # Longer ones: some heads of one sample.
    together = max(1, weights // size)
    for sample in range(batch):
        length, hidden = _visible(mask, sample, num_keys)
        for head in range(0, heads, together):
            some = slice(head, head + together)
            found.append(Part(sample, some, len(found), length, hidden, rows))
    return found


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


def blocks(visibility: Visibility, part: Part, seed: int) -> Iterator[Block]:
    """Yield the blocks of queries of a part; ``seed`` is the first seed of all dropout."""
    num_queries, offset = visibility.num_queries, visibility.offset
    per_part = -(-num_queries // part.block_rows)
    for number in range(per_part):
        start = number * part.block_rows
        stop = min(start + part.block_rows, num_queries)
        num_keys = part.num_keys
        if offset is not None:
            num_keys = max(0, min(num_keys, offset + stop))
        yield Block(slice(start, stop), num_keys, None, seed + part.number * per_part + number)


class Workspace:
    """Memory for the matrices of one block; the next block uses it again."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Return a @ b in the memory called ``name``."""
        shape = (*a.shape[:-1], b.size(-1))
        size = torch.Size(shape).numel()
        memory = self._memory.get(name)
        if memory is None or memory.numel() < size:
            memory = self._memory[name] = a.new_empty(size)
        return torch.matmul(a, b, out=memory[:size].view(shape))

    def give_away(self, name: str) -> None:
        """Give up the memory called ``name``, so that its last product stays valid."""
        del self._memory[name]


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

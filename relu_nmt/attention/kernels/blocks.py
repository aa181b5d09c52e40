"""How blockwise attention is divided into blocks, and which keys of a block can be skipped."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention.masks import Visibility

CPU_BLOCK_BYTES = 1 << 22
"""Size of a block of weights on a CPU, so that it stays in the cache between two products: some
samples or heads together if they are short, some queries of one head if they are long. Twice as
much of 16-bit weights, whose products gain more from many rows than they lose in the cache."""
CPU_LEAST_ROWS = 256
"""Fewer queries make the products slow, and so do more in the causal case, where keys after the
last query of a block are left out."""
GPU_BLOCK_WEIGHTS = 1 << 24
"""Weights of a block on a GPU, of all heads together."""
GPU_LEAST_ROWS = 64
SKIP_TILE = 64
"""Keys that are skipped together where all their weights for a block of queries are zero."""
PROBED_ROWS = 4
MOST_LIVE = 0.75
"""Up to this share of live keys the zero ones are left out: picking the others has a cost too."""


@dataclass
class Part:
    """Heads that are computed together: few on a CPU, all on a GPU.

    Args:
        sample: which one, or which ones of whom all heads are taken; ``None`` for all.
        heads: which of its heads.
        number: counts the parts.
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
        """What to index [B, H, ...] by."""
        if self.sample is None:
            return ()
        if isinstance(self.sample, slice):
            return (self.sample,)
        first, is_single = self.heads.start, self.heads.stop - self.heads.start == 1
        # A single head as a matrix, not as a batch of one: its products are faster.
        return self.sample, first if is_single else self.heads


@dataclass
class Block:
    """A block of queries of a part.

    Args:
        rows: which queries.
        num_keys: the queries see no key from here on.
        live: indices of the keys whose weights are not all zero, if known and worth it.
        seed: of its dropout.
        kept: its scores, if they are kept.
    """

    rows: slice
    num_keys: int
    live: Tensor | None
    seed: int
    kept: Tensor | None = None

    @property
    def keys(self) -> slice | Tensor:
        """The keys whose weights are made: a range or their indices."""
        return slice(self.num_keys) if self.live is None else self.live


def parts(visibility: Visibility, q: Tensor, k: Tensor) -> list[Part]:
    """Return how the heads are divided."""
    batch, heads = q.shape[:2]
    num_keys, mask = k.size(2), visibility.key_mask
    if q.device.type != "cpu":
        # Looking at the mask's values would make the CPU wait for the GPU.
        hidden = None if mask is None else ~mask[:, None, None, :]
        rows = GPU_BLOCK_WEIGHTS // max(1, batch * heads * num_keys)
        return [Part(None, slice(None), 0, num_keys, hidden, max(GPU_LEAST_ROWS, rows))]
    weights = CPU_BLOCK_BYTES // q.element_size() * (2 if q.element_size() == 2 else 1)
    rows = max(CPU_LEAST_ROWS, weights // max(1, num_keys))
    if visibility.hides_later:
        rows = min(rows, CPU_LEAST_ROWS)
    size = max(1, num_keys * min(rows, q.size(2)))  # of a head's block
    samples = weights // 2 // (heads * size)
    found: list[Part] = []
    if samples > 1:
        for start in range(0, batch, samples):
            some = slice(start, start + samples)
            length, hidden = _visible(mask, some, num_keys)
            found.append(Part(some, slice(None), len(found), length, hidden, rows))
        return found
    together = max(1, weights // size)
    for sample in range(batch):
        length, hidden = _visible(mask, sample, num_keys)
        for head in range(0, heads, together):
            some = slice(head, head + together)
            found.append(Part(sample, some, len(found), length, hidden, rows))
    return found


def _visible(mask: Tensor | None, sample: int | slice, num_keys: int) -> tuple[int, Tensor | None]:
    """Return one past the last visible key of any sample, and which before it are hidden."""
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
    """Yield the blocks of queries of a part; ``seed`` is that of all dropout."""
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
    """Memory for the matrices of one block, used again by the next one."""

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
        """Let the memory called ``name`` not be used again."""
        del self._memory[name]


def live_keys(weights: Tensor) -> Tensor | None:
    """Return the indices of keys of which some weight is not zero, by tiles of keys.

    ``None`` stands for all keys: too few are zero. A few rows tell that most often, so that dense
    weights cost no pass over the matrix.

    Args:
        weights: [..., rows, n], never negative.
    """
    num_keys = weights.size(-1)
    enough = MOST_LIVE * num_keys
    if weights[..., -PROBED_ROWS:, :].flatten(0, -2).amax(0).count_nonzero() > enough:
        return None
    is_zero = weights.flatten(0, -2).amax(0) == 0
    is_zero = F.pad(is_zero, (0, -num_keys % SKIP_TILE), value=True).view(-1, SKIP_TILE).all(1)
    live = (~is_zero).repeat_interleave(SKIP_TILE)[:num_keys].nonzero().squeeze(1)
    return live if len(live) <= enough else None

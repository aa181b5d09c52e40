"""Tuned numbers of the attention kernels: thresholds and block sizes that were measured.

This is the only file of the kernels that distinguishes machines. Another machine may want other
values. Results do not depend on them beyond rounding. Measure with
``python benchmarks/attention.py``. docs/lab/performance.md has the figures. The sizes of the Triton
kernels are fixed for short inputs, and measured at run time for long ones.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from relu_nmt.attention.base import AttentionProblem

CPU_LEAST_LENGTH = 40
"""Compute pointwise attention by blocks from this many queries and keys on a CPU."""
GPU_LEAST_PAIRS = 128 * 128
"""Compute pointwise attention by blocks from this many pairs of a query and a key on a GPU."""
CPU_HALF_FUSED_LENGTH = 512
"""Use PyTorch's fused softmax from this many keys on a CPU in 16 bits."""
CPU_BLOCK_BYTES = 1 << 22
"""Size of a block of weights on a CPU, so that it stays in the cache between two products.

Several samples or heads of short sequences share a block. A block of a long sequence has some
queries of one head. Blocks of 16-bit weights have twice this size."""
CPU_LEAST_ROWS = 256
"""Fewest queries of a block on a CPU: fewer make the products slow. Causal blocks have no more
queries either, so that they leave out most hidden keys."""
KEPT_BYTES = 1 << 24
"""Bytes of scores to keep for the backward pass on a CPU, which computes all other scores again."""
GPU_BLOCK_WEIGHTS = 1 << 24
"""Weights of a block on a GPU, of all samples and heads together."""
GPU_LEAST_ROWS = 64
"""Fewest queries of a block on a GPU."""
SKIP_TILE = 64
"""Keys that are skipped together if all their weights for a block of queries are zero."""
PROBED_ROWS = 4
"""Rows of a block that are searched for zero keys first: dense weights then cost no full pass."""
MOST_LIVE = 0.75
"""Skip zero keys of a block if at most this share of its keys is nonzero: selecting costs time."""
ROWS_BLOCK_WEIGHTS = 1 << 22
"""Weights of a block of whole rows, of all samples and heads. A smaller matrix is one block."""
ROWS_LEAST_ROWS = 16
"""Fewest queries of a block of whole rows."""
FEATURE_CHUNK = 128
"""Positions of a chunk in causal feature attention. Inside it weights are a matrix. Running sums
serve earlier chunks."""
TRITON_LONG = 1024
"""Measure the block sizes of the Triton kernels from this many queries and keys on."""

# Triton's kernels.
_WARM_RUNS = 2
_TIMED_RUNS = 5


def waits(x: Tensor) -> bool:
    """Return True if the program would wait for a device to read the values of x."""
    return not x.is_cpu


def many_pairs(problem: AttentionProblem) -> bool:
    """Return True if the matrix of weights [Nq, Nk] is so large that blocks are faster."""
    lengths = problem.q.size(2), problem.k.size(2)
    if problem.q.is_cpu:
        return min(lengths) >= CPU_LEAST_LENGTH
    return math.prod(lengths) >= GPU_LEAST_PAIRS


def triton_pays(problem: AttentionProblem) -> bool:
    """Return True if the kernels in Triton are the fastest for pointwise attention."""
    return problem.q.is_cuda and many_pairs(problem)


def fused_pays(problem: AttentionProblem) -> bool:
    """Return True if PyTorch's fused softmax is faster than two products."""
    is_half_on_cpu = problem.q.is_cpu and problem.q.dtype.itemsize == 2
    return not is_half_on_cpu or problem.k.size(2) >= CPU_HALF_FUSED_LENGTH


@dataclass(frozen=True)
class BlockSizes:
    """Sizes with which one kernel is launched."""

    rows: int  # queries in a block
    columns: int  # keys in a block
    warps: int  # warps that work on a block
    stages: int  # blocks of the streamed side in flight at a time
    # Leave out the remaining products of a block whose scores are all <= 0. The search for such
    # blocks costs time in every block, so it pays only once many are zero.
    skip: bool = False


INTERPRETED = BlockSizes(32, 32, 1, 1, skip=True)
_SMALLEST = (BlockSizes(32, 32, 4, 1), BlockSizes(16, 16, 4, 1))
_SHORT = (BlockSizes(64, 64, 4, 2), *_SMALLEST)
_WIDE = (BlockSizes(64, 64, 8, 2), BlockSizes(64, 32, 4, 2), *_SMALLEST)
_FLOAT32 = (BlockSizes(64, 32, 4, 2), *_SMALLEST)
# Rows, columns, warps, stages and skip, by kernel and padded head width. Without a measurement the
# first that fits is used. "fused" has at least 64 rows, so that the products for the gradient of
# the queries are fast, too.
# fmt: off
_LONG = {
    ("forward", 64): ((128, 128, 8, 3), (128, 128, 4, 3), (128, 64, 4, 4), (64, 128, 4, 3),
                      (64, 64, 4, 3, True), (128, 64, 4, 3, True)),
    ("forward", 128): ((128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (64, 128, 4, 2),
                       (64, 64, 4, 3, True), (128, 64, 8, 3, True)),
    ("rows", 64): ((128, 64, 8, 3), (128, 64, 4, 3), (128, 128, 8, 2), (64, 64, 4, 3),
                   (64, 64, 4, 3, True)),
    ("rows", 128): ((128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 2),
                    (64, 64, 4, 3, True)),
    ("columns", 64): ((64, 128, 8, 3), (64, 128, 8, 2), (32, 128, 4, 3), (64, 64, 4, 3),
                      (64, 64, 4, 3, True)),
    ("columns", 128): ((32, 128, 8, 3), (64, 128, 8, 2), (64, 64, 8, 3), (64, 64, 8, 2),
                       (64, 64, 4, 2, True)),
    ("fused", 64): ((64, 128, 8, 3), (64, 128, 8, 2), (64, 64, 4, 3), (64, 64, 4, 3, True)),
    ("fused", 128): ((64, 64, 8, 3), (64, 128, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2, True)),
}
# fmt: on


def candidates(
    kernel: str, width: int, dtype: torch.dtype, long: bool, rectifies: bool
) -> tuple[BlockSizes, ...]:
    """Return the block sizes to try, the most promising first, the smallest last.

    The kernel is ``forward``, ``rows``, ``columns``, or ``fused``: ``columns`` with the gradient of
    the queries. ``width`` is the larger of the padded widths of keys and values. ``rectifies`` is
    True if whole blocks of weights may be exactly zero.
    """
    if dtype == torch.float32:
        return _FLOAT32 if width <= 128 else _SMALLEST
    if width > 128:
        return _WIDE
    if not long:
        return _SHORT
    sizes_of_long = [BlockSizes(*sizes) for sizes in _LONG[kernel, max(width, 64)]]
    return tuple(sizes for sizes in sizes_of_long if rectifies or not sizes.skip) + _SMALLEST


_chosen: dict[Hashable, tuple[BlockSizes, float]] = {}


def choose(
    key: Hashable,
    tried: tuple[BlockSizes, ...],
    launch: Callable[[BlockSizes], None],
    measure: bool,
) -> tuple[BlockSizes, float]:
    """Return the fastest block sizes and their time in milliseconds, 0 if not measured.

    The choice for a ``key`` is kept for the life of the process. ``launch`` runs the kernel,
    several times, with outputs that do not matter. Without ``measure`` the first sizes that fit
    into the memory of the device are chosen.
    """
    if key not in _chosen:
        times: dict[BlockSizes, float] = {}
        for blocks in tried:
            if times and (not measure or blocks in _SMALLEST):
                break
            time = _time(launch, blocks, measure)
            if time is not None:
                times[blocks] = time
        if not times:
            raise RuntimeError(f"the device has too little shared memory for {tried[-1]}")
        best = min(times, key=times.__getitem__)
        _chosen[key] = (best, times[best])
    return _chosen[key]


def _time(launch: Callable[[BlockSizes], None], blocks: BlockSizes, measure: bool) -> float | None:
    """Return milliseconds a run, or ``None`` if the device lacks the memory for such blocks."""
    from triton.runtime.errors import OutOfResources

    try:
        launch(blocks)  # compile the kernel
    except OutOfResources:
        return None
    if not measure:
        return 0.0
    for _ in range(_WARM_RUNS):
        launch(blocks)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_TIMED_RUNS):
        launch(blocks)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / _TIMED_RUNS

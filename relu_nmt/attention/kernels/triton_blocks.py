"""Block sizes of the Triton kernels: fixed for short inputs, measured at run time for long ones."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

_WARM_RUNS, _TIMED_RUNS = 2, 5


@dataclass(frozen=True)
class Blocks:
    """Sizes with which one kernel is launched.

    Args:
        rows: queries in a block.
        columns: keys in a block.
        warps: warps that work on a block.
        stages: blocks of the streamed side in flight at a time.
        skip: leave out the remaining products of a block whose scores are all <= 0. The search for
            such blocks costs time in every block, so it pays only once many are zero.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    skip: bool = False


INTERPRETED = Blocks(32, 32, 1, 1, skip=True)
_SMALLEST = (Blocks(32, 32, 4, 1), Blocks(16, 16, 4, 1))
_SHORT = (Blocks(64, 64, 4, 2), *_SMALLEST)
_WIDE = (Blocks(64, 64, 8, 2), Blocks(64, 32, 4, 2), *_SMALLEST)
_FLOAT32 = (Blocks(64, 32, 4, 2), *_SMALLEST)
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
) -> tuple[Blocks, ...]:
    """Return the block sizes to try, the most promising first, the smallest last.

    Args:
        kernel: ``forward``, ``rows``, ``columns``, or ``fused``, which is ``columns`` with the
            gradient of the queries.
        width: the larger of the padded widths of keys and values.
        dtype: dtype of the inputs.
        long: True if the input is long enough to measure.
        rectifies: True if whole blocks of weights may be exactly zero.
    """
    if dtype == torch.float32:
        return _FLOAT32 if width <= 128 else _SMALLEST
    if width > 128:
        return _WIDE
    if not long:
        return _SHORT
    chosen = [Blocks(*sizes) for sizes in _LONG[kernel, max(width, 64)]]
    # Leave out skipping sizes where weights are never exactly zero.
    return tuple(b for b in chosen if rectifies or not b.skip) + _SMALLEST


_chosen: dict[Hashable, tuple[Blocks, float]] = {}


def choose(
    key: Hashable, tried: tuple[Blocks, ...], launch: Callable[[Blocks], None], measure: bool
) -> tuple[Blocks, float]:
    """Return the fastest block sizes and their time in milliseconds, 0 if not measured.

    Args:
        key: the choice for a key is kept for the life of the process.
        tried: block sizes to try, see :func:`candidates`.
        launch: runs the kernel; called several times, with outputs that do not matter.
        measure: False takes the first sizes that fit into the memory of the device.
    """
    # Try the sizes until one runs; with ``measure`` all but the smallest.
    if key not in _chosen:
        times: dict[Blocks, float] = {}
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


def _time(launch: Callable[[Blocks], None], blocks: Blocks, measure: bool) -> float | None:
    """Return milliseconds a run, or ``None`` if the device lacks the memory for such blocks."""
    from triton.runtime.errors import OutOfResources

    # Run once: this compiles the kernel and shows if it fits.
    try:
        launch(blocks)
    except OutOfResources:
        return None
    if not measure:
        return 0.0
    # Warm up, then measure by events of the device.
    for _ in range(_WARM_RUNS):
        launch(blocks)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_TIMED_RUNS):
        launch(blocks)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / _TIMED_RUNS

"""Which sentences are translated together, and by which worker process."""

from collections.abc import Sequence

import numpy as np

from relu_nmt.data.batch_plan import longest_first
from relu_nmt.translation.search.config import GenerationConfig

DEFAULT_MAX_TOKENS = 12000
MAX_LOGITS = {"cpu": 2**22, "cuda": 2**26}
"""Entries of the [B, K, V] logits of a step where no batch size is given: 16 MB on a CPU, near
the size of its caches, and 256 MB on a GPU."""
BATCHES_EACH = 2
"""Batches for each of several workers, at least, so that none waits long for the last one."""
LEAST_SENTENCES = 8
"""Of a batch of several workers, at least: a step of one takes as long as one of four."""
LEAST_MAX_TOKENS = 2048
"""Source tokens of a batch of several workers, at least, who share ``DEFAULT_MAX_TOKENS``, and with
them the memory, otherwise."""
MOST_BATCHES = 3
"""That a worker gets at a time; then it tells what it has done."""


def plan_batches(
    lengths: np.ndarray,
    config: GenerationConfig,
    vocab_size: int,
    device_type: str = "cpu",
    workers: int = 1,
) -> list[np.ndarray]:
    """Return the sentences of each batch, longest first.

    Args:
        lengths: source tokens of each sentence with the end symbol, [N].
        config: ``max_tokens``, ``batch_size`` and ``beam``; with neither of the former, batches
            are as large as suits the device, and small enough for each worker to have some.
        vocab_size: number of target symbols.
        device_type: ``cpu`` or ``cuda``.
        workers: processes that share them.
    """
    max_tokens, batch_size = config.max_tokens, config.batch_size
    if max_tokens is None and batch_size is None:
        max_tokens = DEFAULT_MAX_TOKENS
        max_logits = MAX_LOGITS.get(device_type, MAX_LOGITS["cpu"])
        batch_size = max(1, max_logits // (config.beam * vocab_size))
        if workers > 1:
            share = -(-len(lengths) // (BATCHES_EACH * workers))
            batch_size = min(batch_size, max(share, LEAST_SENTENCES))
            max_tokens = max(max_tokens // workers, LEAST_MAX_TOKENS)
    if batch_size is not None and workers > 1:
        number = -(-len(lengths) // batch_size)
        if number > workers:  # as many for each, and of like size
            number = workers * -(-number // workers)
            batch_size = -(-len(lengths) // number)

    def most(longest: int) -> int:
        fitting = len(lengths) if batch_size is None else batch_size
        return fitting if max_tokens is None else min(fitting, max_tokens // longest)

    return list(longest_first(lengths, most))


def deal_batches(batches: Sequence[np.ndarray], workers: int) -> list[Sequence[np.ndarray]]:
    """Return tasks of several batches, which go on together, of like work for each worker."""
    rounds = -(-len(batches) // (workers * MOST_BATCHES))
    size = workers * -(-len(batches) // (workers * rounds))
    blocks = [batches[first : first + size] for first in range(0, len(batches), size)]
    dealt = [block[worker::workers] for block in blocks for worker in range(workers)]
    return [task for task in dealt if task]

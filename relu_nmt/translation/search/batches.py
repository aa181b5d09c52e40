"""Batches of sentences that are translated together, and their worker processes."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from relu_nmt.data.translation_batches import longest_first
from relu_nmt.io.work import ordered_map
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.hypotheses import Hypothesis

Found = list[list[Hypothesis]]
"""The hypotheses of each sentence of a batch."""
Translate = Callable[[Sequence[np.ndarray]], Iterator[tuple[np.ndarray, Found]]]
"""Yields batches, as indices [B] of sentences, and their hypotheses."""

DEFAULT_MAX_TOKENS = 12000
"""Most source tokens of a batch if no batch size is given. Several workers share them."""
MAX_LOGITS = {"cpu": 2**22, "cuda": 2**26}
"""Most entries of the [B, K, V] logits of a step if no batch size is given: 16 MB on a CPU, near
the size of its caches, and 256 MB on a GPU."""
BATCHES_EACH = 2
"""Fewest batches for each of several workers, so that none waits long for the last one."""
LEAST_SENTENCES = 8
"""Fewest sentences of a batch of several workers: a step of one takes as long as one of four."""
LEAST_MAX_TOKENS = 2048
"""Smallest share of ``DEFAULT_MAX_TOKENS`` for each of several workers."""
MOST_BATCHES = 3
"""Most batches in one task of a worker. After each task it reports its results."""


def plan_batches(
    lengths: np.ndarray,
    config: GenerationConfig,
    vocab_size: int,
    device_type: str = "cpu",
    workers: int = 1,
) -> list[np.ndarray]:
    """Return the sentences of each batch, longest first, from their source tokens [N].

    Without ``max_tokens`` and ``batch_size``, batches are as large as suits the device, and small
    enough for each worker to have some.
    """
    # Without given sizes, limit the logits of a step, and leave batches for all workers.
    max_tokens = config.max_tokens
    batch_size = config.batch_size
    if max_tokens is None and batch_size is None:
        max_tokens = DEFAULT_MAX_TOKENS
        max_logits = MAX_LOGITS.get(device_type, MAX_LOGITS["cpu"])
        batch_size = max(1, max_logits // (config.beam * vocab_size))
        if workers > 1:
            share = -(-len(lengths) // (BATCHES_EACH * workers))
            batch_size = min(batch_size, max(share, LEAST_SENTENCES))
            max_tokens = max(max_tokens // workers, LEAST_MAX_TOKENS)
    # Give each worker equally many batches of similar size.
    if batch_size is not None and workers > 1:
        number = -(-len(lengths) // batch_size)
        if number > workers:
            number = workers * -(-number // workers)
            batch_size = -(-len(lengths) // number)

    # Cut the sentences, longest first, into batches that both limits allow.
    def size_of(longest: int) -> int:
        fitting = len(lengths) if batch_size is None else batch_size
        return fitting if max_tokens is None else min(fitting, max_tokens // longest)

    return list(longest_first(lengths, size_of))


def deal_batches(batches: Sequence[np.ndarray], workers: int) -> list[Sequence[np.ndarray]]:
    """Return tasks of several batches that one worker translates together, of similar work."""
    # Blocks of batches, longest first. Worker w gets every workers-th batch of a block.
    rounds = -(-len(batches) // (workers * MOST_BATCHES))
    size = workers * -(-len(batches) // (workers * rounds))
    blocks = [batches[first : first + size] for first in range(0, len(batches), size)]
    dealt = [block[worker::workers] for block in blocks for worker in range(workers)]
    return [task for task in dealt if task]


def run_batches(
    translate: Translate, batches: Sequence[np.ndarray], workers: int
) -> Iterator[tuple[np.ndarray, Found]]:
    """Yield each batch and its hypotheses, from at most ``workers`` processes."""
    workers = min(workers, len(batches))
    if workers <= 1:
        return translate(batches)
    tasks = deal_batches(batches, workers)
    results = ordered_map(_run, tasks, workers, _start_worker, translate)
    return itertools.chain.from_iterable(task_results for _, task_results in results)


_translate: list[Translate] = []
"""The work of a worker process."""


def _start_worker(translate: Translate) -> None:
    torch.set_num_threads(1)
    _translate.append(translate)


def _run(batches: Sequence[np.ndarray]) -> list[tuple[np.ndarray, Found]]:
    return list(_translate[-1](batches))

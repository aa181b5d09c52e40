"""Plans of batches, from the lengths of their sentences alone."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.groups import longer_side


def least_limit(limits: Iterable[int | None]) -> int | None:
    """Return the least of several limits; None stands for no limit."""
    return min((limit for limit in limits if limit is not None), default=None)


def plan_batches(
    source_sizes: np.ndarray,
    target_sizes: np.ndarray | None,
    limits: BatchLimits,
    shuffle_seed: tuple[int, int] | None = None,
) -> list[np.ndarray]:
    """Return the sentence numbers of each batch of an epoch, int64, grouped by similar length.

    The plan takes 8 bytes a sentence. A resumed epoch continues at a batch number of the same plan.

    Sentences are sorted by the longer side, then source, then target length, so that neither side
    needs much padding. A sentence longer than ``max_tokens`` gets a batch of its own.

    Args:
        source_sizes: int [N], tokens of each source sentence.
        target_sizes: int [N], tokens of each target sentence; None for source-only data.
        limits: most tokens and sentences of a batch.
        shuffle_seed: (seed, epoch) for the order of the batches and of equally long sentences;
            None sorts batches and sentences by length.

    Example:
        >>> [one.tolist() for one in plan_batches(np.array([3, 5, 4]), None, BatchLimits(10))]
        [[0, 2], [1]]
    """
    count = len(source_sizes)
    targets = source_sizes if target_sizes is None else target_sizes
    longer = longer_side(source_sizes, target_sizes)
    # Sort by length; equal lengths come in random order if there is a seed.
    if shuffle_seed is None:
        generator = None
        order = np.lexsort((targets, source_sizes, longer))
    else:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(shuffle_seed)))
        shuffled = generator.permutation(count)
        # lexsort is stable, so equal lengths stay in the random order.
        keys = (targets[shuffled], source_sizes[shuffled], longer[shuffled])
        order = shuffled[np.lexsort(keys)]
    # Cut the sorted sentences into batches, and shuffle the batches.
    starts = _cut(longer[order], limits)
    visit = np.arange(len(starts) - 1)
    if generator is not None:
        generator.shuffle(visit)
    order = order.astype(np.int64, copy=False)
    return [order[starts[batch] : starts[batch + 1]] for batch in visit]


def _cut(sorted_sizes: np.ndarray, limits: BatchLimits) -> np.ndarray:
    """Return the starts of the batches, each as large as the limits allow, int64 [batches + 1].

    The cost of a batch is its number of sentences times its last (longest) sentence. It only grows
    with the end of the batch, so that a binary search finds the end.
    """
    count = len(sorted_sizes)
    sizes = sorted_sizes.tolist()
    starts = [0]
    while starts[-1] < count:
        start = starts[-1]
        most = count - start
        if limits.max_sentences is not None:
            most = min(most, limits.max_sentences)
        if limits.max_tokens is not None:
            # Every sentence is at least as long as the first.
            most = min(most, max(1, limits.max_tokens // max(1, sizes[start])))
            # Search for the most sentences whose cost fits, between 1 and the bound.
            fits = 1
            while fits < most:
                middle = (fits + most + 1) // 2
                if middle * sizes[start + middle - 1] <= limits.max_tokens:
                    fits = middle
                else:
                    most = middle - 1
        # Round down to the multiple, except in the last batch.
        if limits.multiple < most < count - start:
            most -= most % limits.multiple
        starts.append(start + most)
    return np.array(starts, dtype=np.int64)


def longest_first(lengths: np.ndarray, most: Callable[[int], int]) -> Iterator[np.ndarray]:
    """Yield the sentence numbers of each batch, the longest sentences first.

    Args:
        lengths: tokens of each sentence, int [N].
        most: returns the most sentences of a batch for a number of tokens; a batch holds at least
            one sentence.
    """
    order, first = np.argsort(-lengths, kind="stable"), 0
    while first < len(order):
        last = first + max(1, most(max(1, int(lengths[order[first]]))))
        yield order[first:last]
        first = last

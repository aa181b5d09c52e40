"""Which sentence pairs form a batch: planned from the lengths alone, before any token is read."""

from dataclasses import dataclass

import numpy as np

from relu_nmt.config import option, settings
from relu_nmt.config.shared import BatchSizeOptions
from relu_nmt.errors import ConfigError, DataError


@settings
class BatchingConfig(BatchSizeOptions):
    """Limits of a batch, per process and accumulation step.

    Raises:
        ConfigError: no limit, or one below 1.
    """

    required_batch_size_multiple: int = option(
        1, "make batches larger than N sentences a multiple of N", least=1, metavar="N"
    )
    max_tokens_valid: int | None = option(
        None,
        "--max-tokens for validation, if another",
        least=1,
        needs=("disable_validation", False),
        metavar="N",
    )
    batch_size_valid: int | None = option(
        None,
        "--batch-size for validation, if another",
        least=1,
        needs=("disable_validation", False),
        metavar="N",
        flags=("--max-sentences-valid",),
    )
    skip_invalid_size_inputs: bool = option(
        False,
        "leave out training sentences longer than --max-tokens (they are counted), "
        "instead of stopping",
        flags=("--skip-invalid-size-inputs-valid-test",),
    )

    def check(self) -> None:
        """See that there is a limit."""
        if self.max_tokens is None and self.batch_size is None:
            raise ConfigError("give --max-tokens or --batch-size (or both): the size of a batch")

    @property
    def training_limits(self) -> "BatchLimits":
        """The limits of a training batch."""
        return BatchLimits(self.max_tokens, self.batch_size, self.required_batch_size_multiple)

    @property
    def validation_limits(self) -> "BatchLimits":
        """The limits of a validation batch."""
        return BatchLimits(
            self.max_tokens_valid or self.max_tokens, self.batch_size_valid or self.batch_size
        )


@dataclass(frozen=True)
class BatchLimits:
    """What a batch may hold; None is no limit.

    Args:
        max_tokens: longest sentence of the batch (either side) x sentences.
        max_sentences: number of sentences.
        multiple: more sentences than this come in multiples of it.
    """

    max_tokens: int | None = None
    max_sentences: int | None = None
    multiple: int = 1


def plan_batches(
    source_sizes: np.ndarray,
    target_sizes: np.ndarray | None,
    limits: BatchLimits,
    shuffle_seed: tuple[int, int] | None = None,
) -> list[np.ndarray]:
    """Return the batches of an epoch, each the numbers of sentences of like lengths, int64.

    Only this plan is kept (8 bytes a sentence), so an epoch is resumed by going on at a batch
    number.

    Sentences are sorted by the longer side, then source, then target length, so that neither side
    is padded much. A sentence longer than ``max_tokens`` gets a batch of its own; see
    :func:`find_too_long` to refuse or to drop it.

    Args:
        source_sizes: int [N], tokens of each source sentence.
        target_sizes: int [N], tokens of each target sentence; None for source-only data.
        limits: what a batch may hold.
        shuffle_seed: (seed, epoch) for the order of the batches and of equally long sentences;
            None keeps batches and sentences in order of length.

    Example:
        >>> [one.tolist() for one in plan_batches(np.array([3, 5, 4]), None, BatchLimits(10))]
        [[0, 2], [1]]
    """
    count = len(source_sizes)
    targets = source_sizes if target_sizes is None else target_sizes
    longer = np.maximum(source_sizes, targets)
    if shuffle_seed is None:
        generator = None
        order = np.lexsort((targets, source_sizes, longer))
    else:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(shuffle_seed)))
        shuffled = generator.permutation(count)
        # lexsort is stable, so equal lengths stay in the random order.
        keys = (targets[shuffled], source_sizes[shuffled], longer[shuffled])
        order = shuffled[np.lexsort(keys)]
    starts = _cut(longer[order], limits)
    visit = np.arange(len(starts) - 1)
    if generator is not None:
        generator.shuffle(visit)
    order = order.astype(np.int64, copy=False)
    return [order[starts[batch] : starts[batch + 1]] for batch in visit]


def _cut(sorted_sizes: np.ndarray, limits: BatchLimits) -> np.ndarray:
    """Return where batches begin, each as large as the limits allow.

    The cost of a batch, its last (longest) sentence x its sentences, only grows with its end, so
    the end is found by binary search.
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
            fits = 1
            while fits < most:
                middle = (fits + most + 1) // 2
                if middle * sizes[start + middle - 1] <= limits.max_tokens:
                    fits = middle
                else:
                    most = middle - 1
        if limits.multiple < most < count - start:
            most -= most % limits.multiple
        starts.append(start + most)
    return np.array(starts, dtype=np.int64)


def find_too_long(
    source_sizes: np.ndarray, target_sizes: np.ndarray | None, max_tokens: int | None
) -> np.ndarray:
    """Return the numbers of the sentences that are longer than ``max_tokens`` on either side."""
    if max_tokens is None:
        return np.zeros(0, dtype=np.int64)
    too_long = source_sizes > max_tokens
    if target_sizes is not None:
        too_long |= target_sizes > max_tokens
    return np.flatnonzero(too_long)


def refuse_too_long(
    source_sizes: np.ndarray, target_sizes: np.ndarray | None, max_tokens: int | None, origin: str
) -> None:
    """Stop if a sentence does not fit into a batch.

    Args:
        source_sizes: int [N], tokens of each source sentence.
        target_sizes: int [N], tokens of each target sentence; None for source-only data.
        max_tokens: the limit of a batch; None is no limit.
        origin: the data, for the message (``data-bin/train.de-en``).

    Raises:
        DataError: a sentence is longer than ``max_tokens``; names the first one and the count.
    """
    numbers = find_too_long(source_sizes, target_sizes, max_tokens)
    if not len(numbers):
        return
    first = int(numbers[0])
    source = int(source_sizes[first])
    longest = source if target_sizes is None else max(source, int(target_sizes[first]))
    others = f" (and {len(numbers) - 1:,} more)" if len(numbers) > 1 else ""
    raise DataError(
        f"{origin}: sentence {first} has {longest:,} tokens{others}, but --max-tokens is "
        f"{max_tokens:,}; raise --max-tokens, or leave such sentences out with "
        "--skip-invalid-size-inputs"
    )

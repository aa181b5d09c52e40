"""Batches of sentence pairs for training and validation: the plan joined with the data."""

import numpy as np

from relu_nmt.data.batch import TranslationBatch, collate
from relu_nmt.data.batching import BatchLimits, EpochBatches, find_too_long, plan_batches
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.document_groups import GroupedDataset
from relu_nmt.data.parallel import ParallelDataset
from relu_nmt.errors import DataError


class PairBatches:
    """The batches of a split, epoch by epoch, each loaded by its number.

    Args:
        dataset: the sentence pairs, or groups of them.
        limits: what a batch may hold.
        seed: shuffles batches anew each epoch; None keeps them in order of length (validation).
        skip_too_long: leave out sentences longer than ``limits.max_tokens``; otherwise each gets
            a batch of its own. :attr:`num_skipped` counts them.

    Raises:
        DataError: there is no sentence left.
    """

    def __init__(
        self,
        dataset: ParallelDataset | GroupedDataset,
        limits: BatchLimits,
        seed: int | None = None,
        skip_too_long: bool = False,
    ) -> None:
        self.dataset = dataset
        self._limits = limits
        self._seed = seed
        self._source_sizes, self._target_sizes = dataset.source_sizes, dataset.target_sizes
        self._kept: np.ndarray | None = None
        self.num_skipped = 0
        if skip_too_long:
            too_long = find_too_long(self._source_sizes, self._target_sizes, limits.max_tokens)
            self.num_skipped = len(too_long)
        if self.num_skipped:
            self._kept = np.setdiff1d(np.arange(len(dataset)), too_long, assume_unique=True)
            self._source_sizes = self._source_sizes[self._kept]
            if self._target_sizes is not None:
                self._target_sizes = self._target_sizes[self._kept]
        if not len(self._source_sizes):
            raise DataError(
                f"{dataset.source.prefix}: no sentence to use"
                + (f"; all {self.num_skipped:,} are longer than --max-tokens" * bool(len(dataset)))
            )
        self._plan: EpochBatches | None = None

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""
        if self._plan is None or self._seed is not None:
            shuffle_seed = None if self._seed is None else (self._seed, epoch)
            self._plan = plan_batches(
                self._source_sizes, self._target_sizes, self._limits, shuffle_seed
            )
        return len(self._plan)

    def sentences(self, index: int) -> np.ndarray:
        """Return the numbers of the sentences in batch ``index`` of the planned epoch, int64."""
        assert self._plan is not None, "begin_epoch comes first"
        numbers = self._plan[index]
        return numbers if self._kept is None else self._kept[numbers]

    def load(self, index: int) -> TranslationBatch:
        """Read batch ``index`` of the planned epoch."""
        numbers = self.sentences(index).tolist()
        pairs = [self.dataset.pair(number) for number in numbers]
        return collate(pairs, numbers, Dictionary.pad_index, Dictionary.eos_index)

"""Batches of groups of sentences: planned anew each epoch where several lengths are mixed."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from relu_nmt.data.batch import TranslationBatch
from relu_nmt.data.batching import BatchLimits
from relu_nmt.data.document_groups import (
    DocumentGroups,
    GroupedDataset,
    deal_lengths,
    plan_groups,
    sentence_lengths,
)
from relu_nmt.data.document_lengths import describe_lengths
from relu_nmt.data.pair_batches import PairBatches
from relu_nmt.data.parallel import ParallelDataset
from relu_nmt.errors import DataError

FIRST_EPOCH = 1


@dataclass(frozen=True)
class DocumentSplit:
    """A split with document boundaries.

    Args:
        dataset: its sentence pairs.
        documents: sentences of each document, int64 [documents].
    """

    dataset: ParallelDataset
    documents: np.ndarray

    def groups(self, lengths: tuple[int, ...], seed: tuple[int, int] = (0, 0)) -> DocumentGroups:
        """Return all groups of the split; together they hold every sentence once, in order.

        Args:
            lengths: the limit in tokens; several are dealt out to the documents.
            seed: seed of the run and epoch, for dealing.
        """
        sizes = sentence_lengths(self.dataset.source_sizes, self.dataset.target_sizes)
        limits = deal_lengths(self.documents, lengths, seed)
        return plan_groups(sizes, self.documents, limits)


class DocumentBatches:
    """The batches of a split whose sentences are joined, epoch by epoch.

    The groups and batches of an epoch follow from ``seed`` and its number, so that an epoch is
    resumed by planning it again.

    Args:
        split: sentence pairs and document boundaries.
        lengths: limits in tokens, 1 for single sentences; with several, each epoch deals them
            out anew (:func:`relu_nmt.data.document_groups.deal_lengths`).
        limits: what a batch may hold.
        seed: shuffles batches and deals lengths; sentences longer than their limit are left out.
            None (validation) keeps batches in order of length, and such sentences whole.
        skip_too_long: leave out single sentences longer than a batch, see :class:`PairBatches`.

    Raises:
        DataError: there is nothing left.
    """

    def __init__(
        self,
        split: DocumentSplit,
        lengths: tuple[int, ...],
        limits: BatchLimits,
        seed: int | None = None,
        skip_too_long: bool = False,
    ) -> None:
        assert seed is not None or len(lengths) == 1, "dealing needs a seed"
        self._split = split
        self._lengths = lengths
        self._limits = limits
        self._seed = seed
        self._skip_too_long = skip_too_long
        self._plan(FIRST_EPOCH)

    def _plan(self, epoch: int) -> None:
        """Make the groups of an epoch."""
        groups = self._split.groups(self._lengths, (self._seed or 0, epoch))
        self._epoch = epoch
        self._all_groups = groups
        used = groups if self._seed is None else groups.select(~groups.over_long)
        if len(groups) and not len(used):
            raise DataError(
                f"{self._split.dataset.source.prefix}: every sentence is longer than "
                f"{max(self._lengths)} tokens; raise --max-doc-tokens"
            )
        dataset = GroupedDataset(self._split.dataset, used)
        self._batches = PairBatches(dataset, self._limits, self._seed, self._skip_too_long)

    @property
    def num_skipped(self) -> int:
        """Single sentences of the epoch that are left out as longer than a batch."""
        return self._batches.num_skipped

    @property
    def groups(self) -> DocumentGroups:
        """All groups of the planned epoch, at first of epoch 1; over-long sentences included."""
        return self._all_groups

    def describe_lengths(self) -> list[dict[str, Any]]:
        """Return the realised lengths of the planned epoch for each limit, as JSON values."""
        return [
            describe_lengths(self._all_groups, limit, keep_over_long=self._seed is None)
            for limit in sorted(set(self._lengths))
        ]

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""
        if epoch != self._epoch and len(self._lengths) > 1:
            self._plan(epoch)
        return self._batches.begin_epoch(epoch)

    def load(self, index: int) -> TranslationBatch:
        """Read batch ``index`` of the planned epoch; its ids are the groups' first sentences."""
        batches = self._batches
        batch = batches.load(index)
        first = batches.dataset.groups.first[batches.sentences(index)]
        return replace(batch, ids=torch.from_numpy(first))

"""The data that a trainer is given, and which process loads which batches of it."""

import itertools
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

BATCHES_AHEAD = 4


class Batch(Protocol):
    """A batch, which the trainer moves to the device and hands to the objective."""

    @property
    def ids(self) -> Tensor:
        """Names of the samples in error messages, [B] int64."""

    @property
    def num_tokens(self) -> int:
        """Counted for the log; for images the number of images."""

    @property
    def num_sentences(self) -> int:
        """Counted for the log; for images the number of images."""

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on ``device``."""


class BatchSource(Protocol):
    """Batches by epoch and number; the same numbers give the same batches every time."""

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""

    def largest(self) -> int:
        """Return the number of the batch of the planned epoch that takes the most memory."""

    def load(self, index: int) -> Batch:
        """Return batch ``index`` of the planned epoch; called from several threads."""


class Scorer(Protocol):
    """Computes metrics of a validation set, for example BLEU of its translations.

    It is called in all processes, with the model in evaluation mode and its averaged weights in
    place, and returns the same values in all of them.
    """

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics."""

    def score(self) -> dict[str, float]:
        """Return the metrics by name."""

    def check(self, largest: bool) -> None:
        """Try it on little data, so that mistakes show before the first update.

        Args:
            largest: also on what takes the most memory.
        """


@dataclass(frozen=True)
class TrainingData:
    """What is trained on and validated with.

    Args:
        train: training batches.
        valid: validation batches by name; the first set decides which checkpoint is the best.
        scorers: further metrics by name of the validation set.
        signatures: how these metrics are computed, by name; scores with others are not comparable.
    """

    train: BatchSource
    valid: Mapping[str, BatchSource]
    scorers: Mapping[str, Scorer]
    signatures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Share:
    """The part of an epoch's batches that one process trains on.

    Batch ``i`` belongs to process ``i % world_size``, and an update takes ``update_freq`` batches
    of every process; so N processes without accumulation make the same updates as one process
    that accumulates N batches.

    Args:
        num_batches: batches of the epoch, over all processes.
        offset: batches of it that are already done.
        update_freq: batches per update and process.
        rank: this process.
        world_size: number of processes.

    Example:
        >>> share = Share(num_batches=5, offset=0, update_freq=1, rank=1, world_size=2)
        >>> share.updates()
        [[1], [3], [None]]
    """

    num_batches: int
    offset: int
    update_freq: int
    rank: int
    world_size: int

    @property
    def batches_per_update(self) -> int:
        """Batches of an update over all processes; the last update of an epoch may have fewer."""
        return self.update_freq * self.world_size

    @property
    def num_updates(self) -> int:
        """Updates of the whole epoch, those before ``offset`` included."""
        return self.updates_done(self.offset) + len(self._starts())

    def updates_done(self, offset: int) -> int:
        """Return how many updates the first ``offset`` batches make."""
        return -(-offset // self.batches_per_update)

    def updates(self) -> list[list[int | None]]:
        """Return for each remaining update this process's batches.

        ``None`` stands for a batch that the others have and this one lacks at the end of the
        epoch: all processes must go through as many batches.
        """
        updates = []
        for start in self._starts():
            end = min(start + self.batches_per_update, self.num_batches)
            firsts = range(start, end, self.world_size)
            updates.append([i + self.rank if i + self.rank < end else None for i in firsts])
        return updates

    def _starts(self) -> range:
        return range(self.offset, self.num_batches, self.batches_per_update)


def load_ahead(
    load: Callable[[int], Any], indices: Sequence[int], num_workers: int, pin_memory: bool
) -> Generator[Any, None, None]:
    """Yield ``load(index)`` in order, loading the next batches in threads meanwhile.

    Args:
        load: reads a batch.
        indices: numbers of the batches.
        num_workers: threads; 0 loads each batch when it is asked for.
        pin_memory: move batches that can be (``pin_memory()``) to page-locked memory, from which
            a GPU copies faster.
    """

    def load_pinned(index: int) -> Any:
        batch = load(index)
        return batch.pin_memory() if pin_memory and hasattr(batch, "pin_memory") else batch

    if num_workers == 0:
        yield from map(load_pinned, indices)
        return
    remaining = iter(indices)
    with ThreadPoolExecutor(num_workers, thread_name_prefix="batches") as pool:
        waiting = deque(
            pool.submit(load_pinned, index)
            for index in itertools.islice(remaining, num_workers + BATCHES_AHEAD)
        )
        try:
            while waiting:
                batch = waiting.popleft().result()
                for index in itertools.islice(remaining, 1):
                    waiting.append(pool.submit(load_pinned, index))
                yield batch
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

"""The data of a training, and each process's share of the batches."""

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from relu_nmt.errors import OutOfMemoryError, is_out_of_memory

BATCHES_AHEAD = 4


class Batch(Protocol):
    """A batch that the trainer moves to the device and hands to the objective."""

    @property
    def ids(self) -> Tensor:
        """Numbers of the samples for error messages, [B] int64."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens for the log; for images the number of images."""

    @property
    def num_sentences(self) -> int:
        """Number of sentences for the log; for images the number of images."""

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on ``device``."""


class BatchSource(Protocol):
    """Batches by epoch and number; the same numbers always give the same batches."""

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""

    def largest(self) -> int:
        """Return the number of the batch of the planned epoch that takes the most memory."""

    def load(self, index: int) -> Batch:
        """Return batch ``index`` of the planned epoch; called from several threads."""


class Scorer(Protocol):
    """Computes metrics of a validation set, for example BLEU of its translations.

    All processes call it, with the model in evaluation mode and its averaged weights in place, and
    get the same values.
    """

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics."""

    def score(self) -> dict[str, float]:
        """Return the metrics by name."""

    def check(self, largest: bool) -> None:
        """Score a little data, perhaps also the ``largest``, so that errors come early."""


@dataclass(frozen=True)
class TrainingData:
    """Batches for training and validation.

    Args:
        train: training batches.
        valid: validation batches by name; the first set decides which checkpoint is the best.
        scorers: further metrics by name of the validation set.
        signatures: the way these metrics are computed, by metric; scores with different
            signatures are not comparable.
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
        offset: batches of the epoch that are already done.
        update_freq: batches per update and process.

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
        """Return the number of updates that the first ``offset`` batches make."""
        return -(-offset // self.batches_per_update)

    def updates(self) -> list[list[int | None]]:
        """Return this process's batches of each remaining update.

        At the end of the epoch other processes may have one batch more. ``None`` stands for it,
        since all processes must compute the same number of batches.
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
    """Yield ``load(index)`` in order, while ``num_workers`` threads load the next batches.

    Without threads each batch is loaded when it is due. ``pin_memory`` moves batches with such a
    method to page-locked memory, from which a GPU copies faster.
    """

    def load_pinned(index: int) -> Any:
        batch = load(index)
        return batch.pin_memory() if pin_memory and hasattr(batch, "pin_memory") else batch

    if num_workers == 0:
        yield from map(load_pinned, indices)
        return
    # Queue a few batches more than there are threads, so that none is idle.
    remaining = iter(indices)
    with ThreadPoolExecutor(num_workers, thread_name_prefix="batches") as pool:
        waiting = deque(
            pool.submit(load_pinned, index)
            for index in itertools.islice(remaining, num_workers + BATCHES_AHEAD)
        )
        try:
            while waiting:
                batch = waiting.popleft().result()
                # Refill the queue before the batch is used, so that loading goes on meanwhile.
                for index in itertools.islice(remaining, 1):
                    waiting.append(pool.submit(load_pinned, index))
                yield batch
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def shapes_of(batch: Any) -> str:
    """Return the shapes of a batch's tensors in words.

    Example:
        >>> from types import SimpleNamespace
        >>> shapes_of(SimpleNamespace(ids=torch.ones(3), src_tokens=torch.ones(3, 7)))
        'src_tokens 3 x 7'
    """
    tensors = {name: one for name, one in vars(batch).items() if isinstance(one, Tensor)}
    shown = {name: " x ".join(map(str, one.shape)) for name, one in tensors.items()}
    large = [f"{name} {shown[name]}" for name, one in tensors.items() if one.dim() > 1]
    return ", ".join(large or [f"{name} {size}" for name, size in shown.items()])


@contextmanager
def naming_batch(batch: Any, work: str) -> Iterator[None]:
    """Name the batch, and work such as "update 7", in the error if memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"{work}: out of memory with a batch of {shapes_of(batch)}; earlier checkpoints are "
            "unharmed"
        ) from error

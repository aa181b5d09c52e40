"""The batches of a training: the share of each process, loading ahead, and names for errors."""

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from relu_nmt.errors import OutOfMemoryError, is_out_of_memory

BATCHES_AHEAD = 4


class BatchMemoryError(OutOfMemoryError):
    """A batch of a training does not fit into memory, and a smaller one may."""


class Batch(Protocol):
    """A batch that the trainer moves to the device and hands to the objective."""

    @property
    def ids(self) -> Tensor:
        """Numbers of the samples for error messages, [B] int64."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens for the log, for images the number of images."""

    @property
    def num_sentences(self) -> int:
        """Number of sentences for the log, for images the number of images."""

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on ``device``."""


class BatchSource(Protocol):
    """Batches by epoch and number. The same numbers always give the same batches."""

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""

    def largest(self) -> int:
        """Return the number of the batch of the planned epoch that takes the most memory."""

    def load(self, index: int) -> Batch:
        """Return batch ``index`` of the planned epoch. Called from several threads."""


class ValidationScorer(Protocol):
    """Computes metrics of a validation set, for example BLEU of its translations.

    All processes call it, with the model in evaluation mode and its averaged weights in place, and
    get the same values.
    """

    @property
    def signatures(self) -> Mapping[str, str]:
        """Signatures of the metrics by name. Scores with other signatures cannot be compared."""

    def score(self) -> dict[str, float]:
        """Return the metrics by name."""

    def check(self, largest: bool) -> None:
        """Score a little data, or the ``largest`` batch too, so that errors come early."""


@dataclass(frozen=True)
class TrainingData:
    """Batches for training, and for validation by name. The first set picks the best checkpoint."""

    train: BatchSource
    valid: Mapping[str, BatchSource]
    scorer: ValidationScorer | None = None


def batches_of_process(
    num_batches: int, offset: int, update_freq: int, rank: int, world_size: int
) -> list[list[int | None]]:
    """Return a process's batches of each remaining update of an epoch, after ``offset`` batches.

    Batch ``i`` belongs to process ``i % world_size``, and an update takes ``update_freq`` batches
    of every process. So N processes without accumulation make the same updates as one process
    that accumulates N batches. In the last update other processes may have one batch more. ``None``
    stands for a batch without effect, since all processes must compute the same number of batches.

    Example:
        >>> batches_of_process(num_batches=5, offset=0, update_freq=1, rank=1, world_size=2)
        [[1], [3], [None]]
    """
    per_update = update_freq * world_size
    updates: list[list[int | None]] = []
    for start in range(offset, num_batches, per_update):
        end = min(start + per_update, num_batches)
        indices: list[int | None] = [*range(start + rank, end, world_size)]
        if len(indices) < len(range(start, end, world_size)):  # the batches of the first process
            indices.append(None)
        updates.append(indices)
    return updates


def load_ahead(
    load: Callable[[int], Any], indices: Sequence[int], num_workers: int, pin_memory: bool
) -> Generator[Any, None, None]:
    """Yield ``load(index)`` in order, loaded ahead by threads, in pinned memory if asked."""

    def load_pinned(index: int) -> Any:
        batch = load(index)
        if pin_memory and hasattr(batch, "pin_memory"):
            batch = batch.pin_memory()
        return batch

    if num_workers == 0:
        yield from map(load_pinned, indices)
        return
    # Queue a few batches more than there are threads, so that none is idle.
    remaining = iter(indices)
    with ThreadPoolExecutor(num_workers, thread_name_prefix="batches") as pool:
        first = itertools.islice(remaining, num_workers + BATCHES_AHEAD)
        waiting = deque(pool.submit(load_pinned, index) for index in first)
        try:
            while waiting:
                batch = waiting.popleft().result()
                # Refill the queue before the batch is used, so that loading goes on meanwhile.
                waiting.extend(pool.submit(load_pinned, i) for i in itertools.islice(remaining, 1))
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
    vectors: list[str] = []
    larger: list[str] = []
    for name, x in vars(batch).items():
        if isinstance(x, Tensor):
            texts = larger if x.dim() > 1 else vectors
            texts.append(f"{name} {' x '.join(map(str, x.shape))}")
    return ", ".join(larger or vectors)


@contextmanager
def naming_batch(batch: Any, work: str) -> Iterator[None]:
    """Name the batch, and work such as "update 7", in the error if memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise BatchMemoryError(
            f"{work}: out of memory with a batch of {shapes_of(batch)}; earlier checkpoints are "
            "unharmed"
        ) from error

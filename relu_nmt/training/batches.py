"""The batches of a training: each process's share, loading ahead, and the memory they take.

The largest batch is tried before the first update, or its size is chosen by the memory.
"""

import itertools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from relu_nmt.errors import ConfigError, OutOfMemoryError, is_out_of_memory
from relu_nmt.io.process import free_memory, peak_resident_bytes
from relu_nmt.training.distributed import ProcessGroup, own_part

if TYPE_CHECKING:
    from relu_nmt.training.state import Components

BATCHES_AHEAD = 4
BYTES_OF_GRADIENT, BYTES_OF_MOMENTS = 4, 2 * 4
"""Bytes of the gradient and of Adam's moments per parameter."""
MEMORY_TO_FILL = 0.8
"""The share of the memory that ``--max-tokens auto`` fills; the rest is a margin."""
FIRST_TOKENS, LARGEST_STEP, SMALLEST_STEP, TOKENS_UNIT = 256, 4, 1.1, 64
"""Sizes of trial batches: the first one, the factors between two of them, and their unit."""
MOST_TOKENS = {"cpu": 4096, "cuda": 65_536}
"""The limits of ``--max-tokens auto``: larger batches are not faster, and make fewer updates."""


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
    def signatures(self) -> Mapping[str, str]:
        """The way that each metric is computed, by name; scores of another way do not compare."""

    def score(self) -> dict[str, float]:
        """Return the metrics by name."""

    def check(self, largest: bool) -> None:
        """Score a little data, perhaps also the ``largest``, so that errors come early."""


@dataclass(frozen=True)
class TrainingData:
    """Batches for training, and for validation by the name of the set.

    The first validation set, of which ``scorer`` gives further metrics, decides which checkpoint is
    the best.
    """

    train: BatchSource
    valid: Mapping[str, BatchSource]
    scorer: Scorer | None = None


def own_batches(
    num_batches: int, offset: int, update_freq: int, rank: int, world_size: int
) -> list[list[int | None]]:
    """Return a process's batches of each update that is left of an epoch after ``offset`` batches.

    Batch ``i`` belongs to process ``i % world_size``, and an update takes ``update_freq`` batches
    of every process; so N processes without accumulation make the same updates as one process
    that accumulates N batches. In the last update other processes may have one batch more. ``None``
    stands for it, since all processes must compute the same number of batches.

    Example:
        >>> own_batches(num_batches=5, offset=0, update_freq=1, rank=1, world_size=2)
        [[1], [3], [None]]
    """
    per_update, updates = update_freq * world_size, []
    for start in range(offset, num_batches, per_update):
        end = min(start + per_update, num_batches)
        own = range(start + rank, end + rank, world_size)
        updates.append([i if i < end else None for i in own])
    return updates


def load_ahead(
    load: Callable[[int], Any], indices: Sequence[int], num_workers: int, pin_memory: bool
) -> Generator[Any, None, None]:
    """Yield ``load(index)`` in order, while ``num_workers`` threads load the next batches.

    ``pin_memory`` moves batches with such a method to memory from which a GPU copies faster.
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
    shapes = {name: one.shape for name, one in vars(batch).items() if isinstance(one, Tensor)}
    large = {name: shape for name, shape in shapes.items() if len(shape) > 1}
    return ", ".join(f"{n} {' x '.join(map(str, shape))}" for n, shape in (large or shapes).items())


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


@contextmanager
def leaving_no_trace(model: nn.Module) -> Iterator[None]:
    """Restore random numbers, buffers and gradients after the block."""
    device = next(model.parameters()).device
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            model.zero_grad(set_to_none=True)
            # Restore the buffers; a table that grew stays, as it is as good as before.
            for name, buffer in model.named_buffers():
                if name in buffers and buffers[name].shape == buffer.shape:
                    buffer.copy_(buffers[name])
                else:
                    buffers.pop(name, None)
            # Load them too: some modules update values that they derive from a buffer.
            stored = model.state_dict().keys() & buffers.keys()
            model.load_state_dict({name: buffers[name] for name in stored}, strict=False)


def try_batch(parts: "Components", batch: Batch) -> str:
    """Go forward and backward with a batch; return its time and memory in words."""
    start = time.monotonic()
    peak = peak_of(parts, batch)
    return (
        f"preflight: the largest batch ({shapes_of(batch)}) took {time.monotonic() - start:.2f} "
        f"seconds forward and backward; predicted peak memory: {peak / 1e9:.2f} GB"
    )


def peak_of(parts: "Components", batch: Batch) -> int:
    """Go forward and backward with a batch; return the bytes that training with it takes."""
    device = parts.process.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with leaving_no_trace(parts.objective), naming_batch(batch, "preflight"):
        parts.loss(batch).loss.backward()
        # Read the peak of the GPU's tensors, or of this process on a CPU.
        peak = peak_resident_bytes()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            peak = torch.cuda.max_memory_allocated(device)
        # Add the moments that the optimiser's first step will allocate.
        if not parts.optimizer.state:
            peak += BYTES_OF_MOMENTS * num_trained(parts)
    return peak


def num_trained(parts: "Components") -> int:
    """Return the number of the weights that the optimiser of this process changes."""
    groups = parts.optimizer.param_groups
    return sum(own_part(p).numel() for group in groups for p in group["params"])


def memory_of(process: ProcessGroup) -> int:
    """Return the bytes that a process may use on its device, with those that it has."""
    if process.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(process.device)
        return free + torch.cuda.memory_reserved(process.device)
    # Let the peak count from now, where the system can (Linux).
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    # Share the machine's memory with its other processes.
    local = int(os.environ.get("LOCAL_WORLD_SIZE", process.world_size))
    return free_memory() // local + peak_resident_bytes()


def largest_that_fits(
    share_of: Callable[[int], float], least: int, most: int, goal: float = MEMORY_TO_FILL
) -> int:
    """Return the largest size whose share of the memory is at most ``goal``; 0 if none is.

    ``share_of`` tries a size. Sizes grow as far as ``goal`` allows if all memory grew in proportion
    to them. So none is tried that does not fit, after which the system would end the process.

    Example:
        >>> largest_that_fits(lambda tokens: 0.2 + tokens / 10_000, least=50, most=20_000)
        5440
    """
    size, fits = max(least, min(FIRST_TOKENS, most)), 0
    while (share := share_of(size)) <= goal:
        fits = size
        size = int(fits * min(LARGEST_STEP, goal / max(share, 0.01)))
        size = most if size >= most else size - size % TOKENS_UNIT
        # Stop before steps that gain little, except the last one.
        if size <= fits or (size < SMALLEST_STEP * fits and size < most):
            break
    return fits


def fitting_tokens(
    parts: "Components",
    batch_of: Callable[[int], Batch],
    least: int,
    share: int | None = None,
    stored: int | None = None,
) -> int:
    """Return the number of ``--max-tokens auto``: the largest batch that fits every process.

    ``batch_of`` returns the largest batch within a number of tokens; ``least`` is the longest
    group. Batches divide ``share``, the tokens of an update for this process, evenly. ``stored``,
    the number of the checkpoint to go on from, is only checked.
    """
    process = parts.process
    memory = memory_of(process)

    def share_of(size: int) -> float:
        try:
            # The later batches of an update find gradients of the first in memory.
            peak = peak_of(parts, batch_of(size)) + BYTES_OF_GRADIENT * num_trained(parts)
        except OutOfMemoryError:
            return max(process.gather(math.inf))
        return max(process.gather(peak / memory))

    limit = MOST_TOKENS[process.device.type]
    most = stored or max(least, min(share or limit, limit))
    goal = 1.0 if stored else MEMORY_TO_FILL
    found = largest_that_fits(share_of, min(least, most), most, goal)
    here = f"of the {memory / 1e9:.1f} GB of memory here"
    if stored and found < stored:
        raise ConfigError(
            f"--max-tokens auto: the {stored:,} tokens of the checkpoint need more {here}; go on "
            f"with a number, as --max-tokens {found or least}, and more --update-freq"
        )
    if not found:
        raise ConfigError(
            f"--max-tokens auto: the longest sentences, {least:,} tokens, need more than "
            f"{MEMORY_TO_FILL:.0%} {here}; take --checkpoint-activations or a smaller model, or "
            "leave them out with a number and --skip-invalid-size-inputs"
        )
    return max(least, -(-share // -(-share // found))) if share and not stored else found

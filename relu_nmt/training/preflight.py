"""Checks before the first update, and the largest batch that the memory holds."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from relu_nmt.errors import ConfigError, OutOfMemoryError
from relu_nmt.io.memory import free_memory, peak_resident_bytes
from relu_nmt.io.progress import progress_bar
from relu_nmt.training.batches import Batch, TrainingData, naming_batch, shapes_of
from relu_nmt.training.distributed import ProcessGroup, is_sharded, local_part, whole_weights
from relu_nmt.training.learner import Learner
from relu_nmt.training.log import TrainingLog
from relu_nmt.training.save_dir import CheckpointFolder
from relu_nmt.training.state import TrainingState
from relu_nmt.training.validation import names_of_metrics

BYTES_OF_GRADIENT = 4  # bytes of the gradient per parameter
BYTES_OF_MOMENTS = 2 * 4  # bytes of Adam's moments per parameter
MEMORY_TO_FILL = 0.8
"""The share of the memory that ``--max-tokens auto`` fills. The rest is a margin."""
FIRST_TRIAL_TOKENS = 256  # tokens of the first trial batch
LARGEST_STEP = 4
SMALLEST_STEP = 1.1
"""Factors between the sizes of two trial batches."""
TOKENS_UNIT = 64  # sizes of trial batches are multiples of it
MOST_AUTO_TOKENS = {"cpu": 4096, "cuda": 65_536}
"""The limits of ``--max-tokens auto``: larger batches are not faster, and make fewer updates."""


def check_before_start(
    learner: Learner,
    data: TrainingData,
    log: TrainingLog,
    state: TrainingState,
    description: Mapping[str, Any],
) -> None:
    """Check folder, memory, scorer and metric now, so that errors do not come after hours."""
    config = learner.config
    is_first = learner.process.is_first
    folder = CheckpointFolder(config)
    metric = config.best_checkpoint_metric
    if is_first:
        num_weights = sum(p.numel() for p in learner.model.parameters())
        folder.check(num_weights, config.optimizer.store_ema)
    with progress_bar(
        "preflight", 2, "steps", shows_waiting=True, only_if_slow=True, say=log.say
    ) as advance:
        if config.preflight:
            data.train.begin_epoch(state.epoch)
            log.say(try_batch(learner, data.train.load(data.train.largest())))
            # If the model is sharded, all processes are needed to gather its weights.
            if not config.no_save and (is_first or is_sharded(learner.objective)):
                with learner.snapshot(state, description) as checkpoint:
                    if is_first:
                        folder.try_out(checkpoint)
        advance(1)
        if not data.valid or config.disable_validation:
            return
        subset, source = next(iter(data.valid.items()))
        names = names_of_metrics(learner, source)
    # Try the scorer, and look for the metric of the best checkpoint.
    if data.scorer is not None:
        names += data.scorer.signatures
        with learner.evaluating(), whole_weights(learner.objective):
            data.scorer.check(largest=config.preflight)
    if metric not in names:
        advice = "; bleu needs --eval-bleu" if metric == "bleu" else ""
        raise ConfigError(
            f"--best-checkpoint-metric {metric}: the validation set '{subset}' has only "
            f"{', '.join(names)}{advice}"
        )


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
            # Restore the buffers, except a table that has grown, which is also right.
            for name, buffer in model.named_buffers():
                if name in buffers and buffers[name].shape == buffer.shape:
                    buffer.copy_(buffers[name])
                else:
                    buffers.pop(name, None)
            # Load the buffers, too, since some modules derive values from them when they are
            # loaded.
            stored = model.state_dict().keys() & buffers.keys()
            model.load_state_dict({name: buffers[name] for name in stored}, strict=False)


def try_batch(learner: Learner, batch: Batch) -> str:
    """Go forward and backward with a batch. Return its time and memory in words."""
    start = time.monotonic()
    peak = peak_of(learner, batch)
    return (
        f"preflight: the largest batch ({shapes_of(batch)}) took {time.monotonic() - start:.2f} "
        f"seconds forward and backward; predicted peak memory: {peak / 1e9:.2f} GB"
    )


def peak_of(learner: Learner, batch: Batch) -> int:
    """Go forward and backward with a batch. Return the bytes that training with it takes."""
    device = learner.process.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with leaving_no_trace(learner.objective), naming_batch(batch, "preflight"):
        learner.loss(batch).loss.backward()
        # Read the peak of the GPU's tensors, or of this process on a CPU.
        peak = peak_resident_bytes()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            peak = torch.cuda.max_memory_allocated(device)
        # Add the moments that the optimizer's first step will allocate.
        if not learner.optimizer.state:
            peak += BYTES_OF_MOMENTS * num_trained(learner)
    return peak


def num_trained(learner: Learner) -> int:
    """Return the number of the weights that the optimizer of this process changes."""
    return sum(local_part(parameter).numel() for parameter in learner.parameters)


def memory_of(process: ProcessGroup) -> int:
    """Return the bytes of its device that a process uses or may still use."""
    if process.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(process.device)
        return free + torch.cuda.memory_reserved(process.device)
    # Reset the peak of memory, where the system can (Linux).
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    # The processes of a machine share its memory.
    local = int(os.environ.get("LOCAL_WORLD_SIZE", process.world_size))
    return free_memory() // local + peak_resident_bytes()


def largest_that_fits(
    share_of: Callable[[int], float], smallest: int, largest: int, goal: float = MEMORY_TO_FILL
) -> int:
    """Return the largest size whose share of the memory is at most ``goal``, or 0.

    ``share_of`` tries a size. The next size is at most the one that would reach ``goal`` if all
    memory were proportional to the size. So no size is tried that does not fit, for which the
    system would end the process.
    """
    size = max(smallest, min(FIRST_TRIAL_TOKENS, largest))
    fits = 0
    share = share_of(size)
    while share <= goal:
        fits = size
        size = int(fits * min(LARGEST_STEP, goal / max(share, 0.01)))
        size = largest if size >= largest else size - size % TOKENS_UNIT
        # Stop before steps that gain little, except the last one.
        if size <= fits or (size < SMALLEST_STEP * fits and size < largest):
            break
        share = share_of(size)
    return fits


def fitting_tokens(
    learner: Learner,
    batch_of: Callable[[int], Batch],
    longest_group: int,
    share: int | None = None,
    stored: int | None = None,
) -> int:
    """Return ``--max-tokens auto``: the largest batch that fits, or an equal part of ``share``."""
    process = learner.process
    memory = memory_of(process)

    def share_of(size: int) -> float:
        try:
            # From the second batch of an update on, gradients take memory, too.
            peak = peak_of(learner, batch_of(size)) + BYTES_OF_GRADIENT * num_trained(learner)
        except OutOfMemoryError:
            return max(process.gather(math.inf))
        return max(process.gather(peak / memory))

    memory_text = f"of the {memory / 1e9:.1f} GB of memory here"
    # Go on with the number of a checkpoint, for which all memory may be filled.
    if stored:
        largest = largest_that_fits(share_of, min(longest_group, stored), stored, goal=1.0)
        if largest < stored:
            raise ConfigError(
                f"--max-tokens auto: the {stored:,} tokens of the checkpoint need more "
                f"{memory_text}; go on with a number, as --max-tokens {largest or longest_group}, "
                "and more --update-freq"
            )
        return stored
    limit = MOST_AUTO_TOKENS[process.device.type]
    if share:
        limit = min(share, limit)
    limit = max(longest_group, limit)
    largest = largest_that_fits(share_of, longest_group, limit)
    if not largest:
        raise ConfigError(
            f"--max-tokens auto: the longest sentences, {longest_group:,} tokens, need more than "
            f"{MEMORY_TO_FILL:.0%} {memory_text}; take --checkpoint-activations or a smaller "
            "model, or give a number and leave them out with --skip-invalid-size-inputs"
        )
    if not share:
        return largest
    # Divide the share among as few batches as possible, of equal sizes.
    num_batches = -(-share // largest)
    return max(longest_group, -(-share // num_batches))

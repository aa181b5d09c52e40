"""Trials before the first update, and the causes of errors of memory and of numbers."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.errors import ConfigError
from relu_nmt.io.work import progress_bar
from relu_nmt.training.batches import Batch, TrainingData, naming_batch, shapes_of
from relu_nmt.training.checkpoint_manager import CheckpointFolder
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import is_sharded, whole_weights
from relu_nmt.training.log import TrainingLog
from relu_nmt.training.results import peak_resident_bytes
from relu_nmt.training.state import Components, TrainingState
from relu_nmt.training.validation import measure

BYTES_PER_MOMENT = 4
MOMENTS = 2
"""Adam's moments per parameter; the first update allocates them."""


def check_before_start(
    parts: Components,
    data: TrainingData,
    config: TrainerConfig,
    state: TrainingState,
    description: Mapping[str, Any],
    log: TrainingLog,
) -> None:
    """Check folder, memory, scorers and metric, whose errors would otherwise come after hours.

    Args:
        parts: the model that is trained.
        data: batches for training and validation.
        config: all settings.
        state: state of the training that begins.
        description: metadata of its checkpoints.
        log: prints progress and predicted memory.

    Raises:
        ConfigError: the folder cannot be written, or validation has no such metric.
        OutOfMemoryError: the largest batch does not fit into memory.
    """
    folder = CheckpointFolder(config.checkpoint)
    is_first = parts.process.is_first
    if is_first:
        folder.check(sum(p.numel() for p in parts.model.parameters()), config.optimizer.store_ema)
    validates = bool(data.valid) and not config.checkpoint.disable_validation
    with progress_bar(
        "preflight", 2, "steps", shows_waiting=True, only_if_slow=True, say=log.say
    ) as advance:
        # Try the largest batch, and a checkpoint.
        if config.run.preflight:
            data.train.begin_epoch(state.epoch)
            log.say(try_batch(parts, data.train.load(data.train.largest())))
            # Let all processes join in if the model is sharded, to gather its weights.
            if not config.checkpoint.no_save and (is_first or is_sharded(parts.objective)):
                with parts.snapshot(state, description) as checkpoint:
                    if is_first:
                        folder.try_out(checkpoint)
        advance(1)
        if not validates:
            return
        # Compute the largest validation batch.
        subset, source = next(iter(data.valid.items()))
        names = list(measure(parts, source, largest_only=True))
    # Try the scorer, and look for the metric of the best checkpoint.
    if (scorer := data.scorers.get(subset)) is not None:
        names += scorer.metric_names
        with parts.evaluating(), whole_weights(parts.objective):
            scorer.check(largest=config.run.preflight)
    metric = config.checkpoint.best_checkpoint_metric
    if metric not in names:
        raise ConfigError(
            f"--best-checkpoint-metric {metric}: the validation set '{subset}' has only "
            f"{', '.join(names)}{'; bleu needs --eval-bleu' * (metric == 'bleu')}"
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
            # Restore the buffers; a table that grew stays, as it is as good as before.
            same = {}
            for name, buffer in model.named_buffers():
                if name in buffers and buffers[name].shape == buffer.shape:
                    same[name] = buffers[name]
                    buffer.copy_(same[name])
            # Load them too: some modules update values that they derive from a buffer.
            stored = model.state_dict().keys() & same.keys()
            model.load_state_dict({name: same[name] for name in stored}, strict=False)


def try_batch(parts: Components, batch: Batch) -> str:
    """Go forward and backward with a batch; return its time and memory in words."""
    device, start = parts.process.device, time.monotonic()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with leaving_no_trace(parts.objective), naming_batch(batch, "preflight"):
        parts.loss(batch).loss.backward()
        # Add the memory that the optimiser's first step will take.
        peak = _peak_bytes(device) + _bytes_to_come(parts.optimizer)
        seconds = time.monotonic() - start
    return (
        f"preflight: the largest batch ({shapes_of(batch)}) took {seconds:.2f} seconds forward and "
        f"backward; predicted peak memory: {peak / 1e9:.2f} GB"
    )


def _peak_bytes(device: torch.device) -> int:
    """Return the peak memory so far: of the GPU's tensors, or of this process on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return peak_resident_bytes() or 0


def _bytes_to_come(optimizer: torch.optim.Optimizer) -> int:
    """Return the memory that the optimiser allocates in its first update; 0 after it."""
    if optimizer.state:
        return 0
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return MOMENTS * BYTES_PER_MOMENT * sum(p.numel() for p in parameters)


def first_not_finite(parts: Components, batches: Sequence[Batch]) -> str | None:
    """Return the first weight, output or gradient of an update that is not finite, or None.

    The random numbers are seeded, and the weights are those before the update.
    """
    objective = parts.objective
    for name, parameter in objective.named_parameters():
        if not _is_finite(parameter):
            return f"the weight {name}, from before, is the first"
    bad: list[str] = []
    order: list[str] = []  # modules in the order of their forward passes

    def look(name: str, output: Any) -> None:
        order.append(name)
        if not all(map(_is_finite, _tensors_in(output))):
            bad.append(name)

    # Record the modules with bad outputs in each forward pass.
    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: look(name, output))
        for name, module in objective.named_modules()
        if name
    ]
    objective.zero_grad(set_to_none=True)
    try:
        for batch in batches:
            bad.clear()
            loss = parts.loss(batch).loss
            # Name the module that finished first with a bad output.
            if not _is_finite(loss):
                return f"the output of {bad[0]} is the first" if bad else "the loss is the first"
            loss.backward()
            found = objective.named_parameters()
            broken = [n for n, p in found if p.grad is not None and not _is_finite(p.grad)]
            if broken:  # the backward pass begins with the last module
                # Find the broken parameter whose module came last in the forward pass.
                places = {name: place for place, name in enumerate(order)}
                first = max(broken, key=lambda name: places.get(name.rpartition(".")[0], -1))
                return f"the gradient of {first} is the first"
    finally:
        for hook in hooks:
            hook.remove()
        objective.zero_grad(set_to_none=True)
    return None


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _tensors_in(output: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors in the output of a module."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        yield from _tensors_in(list(output.values()))
    elif isinstance(output, list | tuple):
        for part in output:
            yield from _tensors_in(part)
    elif hasattr(output, "__dataclass_fields__"):
        yield from _tensors_in(list(vars(output).values()))

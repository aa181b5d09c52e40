"""What is tried before the first update, and what is told where memory or numbers give out."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from relu_nmt.errors import OutOfMemoryError, is_out_of_memory
from relu_nmt.training.batches import Batch
from relu_nmt.training.results import peak_resident_bytes

if TYPE_CHECKING:
    from relu_nmt.training.state import Components

BYTES_PER_MOMENT = 4
MOMENTS = 2
"""Of Adam, which come with the first update."""


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
def telling_shape(batch: Any, what: str) -> Iterator[None]:
    """Name the batch where memory runs out.

    Args:
        batch: what is computed with.
        what: is done with it, such as "update 7".

    Raises:
        OutOfMemoryError: there is not enough memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"{what}: out of memory with a batch of {shapes_of(batch)}; earlier checkpoints are "
            "unharmed"
        ) from error


@contextmanager
def leaving_no_trace(model: nn.Module) -> Iterator[None]:
    """Afterwards random numbers, buffers and gradients are as they were before."""
    device = next(model.parameters()).device
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            model.zero_grad(set_to_none=True)
            # A table that grew is of use as it is.
            same = {}
            for name, buffer in model.named_buffers():
                if name in buffers and buffers[name].shape == buffer.shape:
                    same[name] = buffers[name]
                    buffer.copy_(same[name])
            # Loading also tells modules that hold what they made of a buffer.
            stored = model.state_dict().keys() & same.keys()
            model.load_state_dict({name: same[name] for name in stored}, strict=False)


def try_batch(parts: "Components", batch: Batch) -> str:
    """Go forward and backward with a batch; return what that took, in words.

    Raises:
        OutOfMemoryError: it does not fit into memory.
    """
    device, start = parts.process.device, time.monotonic()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with leaving_no_trace(parts.objective), telling_shape(batch, "preflight"):
        parts.loss(batch).loss.backward()
        peak = _peak_bytes(device) + _bytes_to_come(parts.optimizer)
        seconds = time.monotonic() - start
    return (
        f"preflight: the largest batch ({shapes_of(batch)}) took {seconds:.2f} seconds forward and "
        f"backward; predicted peak memory: {peak / 1e9:.2f} GB"
    )


def _peak_bytes(device: torch.device) -> int:
    """Return the most memory up to now: of the GPU's tensors, or of this process on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return peak_resident_bytes() or 0


def _bytes_to_come(optimizer: torch.optim.Optimizer) -> int:
    """Return the memory that the optimiser takes with its first update; 0 after it."""
    if optimizer.state:
        return 0
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return MOMENTS * BYTES_PER_MOMENT * sum(p.numel() for p in parameters)


def first_not_finite(parts: "Components", batches: Sequence[Batch]) -> str | None:
    """Return what becomes infinite or no number first, with the weights as they are; None: nothing.

    Args:
        parts: compute the loss.
        batches: of one update, in order; the random numbers are seeded.
    """
    objective = parts.objective
    for name, parameter in objective.named_parameters():
        if not _is_finite(parameter):
            return f"the weight {name}, from before, is the first"
    bad: list[str] = []
    order: list[str] = []  # of modules, as they are done

    def look(name: str, output: Any) -> None:
        order.append(name)
        if not all(map(_is_finite, _tensors_in(output))):
            bad.append(name)

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
            if not _is_finite(loss):
                return f"the output of {bad[0]} is the first" if bad else "the loss is the first"
            loss.backward()
            broken = [n for n, p in objective.named_parameters() if _has_bad_gradient(p)]
            if broken:  # backwards, what came last is the first
                places = {name: place for place, name in enumerate(order)}
                first = max(broken, key=lambda name: places.get(name.rpartition(".")[0], -1))
                return f"the gradient of {first} is the first"
    finally:
        for hook in hooks:
            hook.remove()
        objective.zero_grad(set_to_none=True)
    return None


def _has_bad_gradient(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and not _is_finite(parameter.grad)


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _tensors_in(output: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors in what a module returned."""
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

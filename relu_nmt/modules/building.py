"""Building of models whose weights fit into memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from relu_nmt.errors import OutOfMemoryError
from relu_nmt.io import memory

ModelT = TypeVar("ModelT", bound=nn.Module)


@contextmanager
def _checked_weights(check: Callable[[int], None]) -> Iterator[None]:
    """Call ``check`` with the bytes of the weights so far whenever a module gets a new weight."""
    weights: set[Tensor] = set()
    num_bytes = 0

    def count(_module: nn.Module, _name: str, weight: Tensor | None) -> None:
        nonlocal num_bytes
        if weight is not None and weight not in weights:
            weights.add(weight)
            num_bytes += weight.numel() * weight.element_size()
            check(num_bytes)

    counting = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        counting.remove()


def _stop_large(num_bytes: int) -> None:
    """Stop the building of a model whose size has to be checked first."""
    if num_bytes > memory.UNCHECKED_BYTES:
        raise OutOfMemoryError("the weights have not been counted")


def _require_free(num_bytes: int) -> None:
    memory.require_memory("the weights of this model", num_bytes, "take a smaller model")


def build_in_memory(build: Callable[[], ModelT]) -> ModelT:
    """Return the model that ``build`` returns. Check a large one first, without its memory."""
    if torch.get_default_device().type == "meta":
        return build()  # it takes no memory
    # Build a small model at once.
    random_state = torch.get_rng_state()
    try:
        with _checked_weights(_stop_large):
            return build()
    except Exception:  # it is large, or the last call fails alike
        torch.set_rng_state(random_state)
    try:
        # Tensors of the device "meta" have no numbers. Keep the random state for the last call.
        with (
            torch.random.fork_rng(devices=[]),
            torch.device("meta"),
            _checked_weights(_require_free),
        ):
            build()
    except OutOfMemoryError:
        raise
    except Exception:  # the last call fails alike, or the model needs its numbers
        pass
    return build()

"""Building of models whose weights fit into memory."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from relu_nmt.errors import OutOfMemoryError
from relu_nmt.io.memory import require_memory

ModelT = TypeVar("ModelT", bound=nn.Module)


def build_in_memory(build: Callable[[], ModelT]) -> ModelT:
    """Return the model that ``build`` returns. Check its size first, in a call without memory."""
    weights: set[Tensor] = set()
    num_bytes = 0

    def count(_module: nn.Module, _name: str, weight: Tensor | None) -> None:
        nonlocal num_bytes
        if weight is not None and weight not in weights:
            weights.add(weight)
            num_bytes += weight.numel() * weight.element_size()
            require_memory("the weights of this model", num_bytes, "take a smaller model")

    counting = register_module_parameter_registration_hook(count)
    try:
        # Tensors of the device "meta" have no numbers. Keep the random state for the second call.
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            build()
    except OutOfMemoryError:
        raise
    except Exception:  # the second call fails alike, or the model needs its numbers
        pass
    finally:
        counting.remove()
    return build()

"""Building of models whose weights fit into memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from relu_nmt.errors import OutOfMemoryError
from relu_nmt.io.memory import require_memory

ModelT = TypeVar("ModelT", bound=nn.Module)


class _WithoutMemory(TorchFunctionMode):
    """Makes empty tensors without memory. To fill them then does nothing.

    On the device ``meta`` even ``torch.tensor(1.0)`` has no value, and constructors read values.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if func is torch.empty:
            keywords["device"] = "meta"
        return func(*args, **keywords)


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
        # Keep the random state for the second call.
        with torch.random.fork_rng(devices=[]), _WithoutMemory():
            build()
    except OutOfMemoryError:
        raise
    except Exception:  # the second call fails alike, or the model needs its numbers
        pass
    finally:
        counting.remove()
    return build()

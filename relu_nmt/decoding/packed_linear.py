"""Models whose affine maps keep their weights in the order in which a CPU reads them."""

import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class PackedLinear(nn.Linear):
    """``nn.Linear`` with a second copy of its weight, as oneDNN's products want it.

    The copy serves on CPUs, without gradients, in its own type of numbers and while the weight is
    what it was; else this is the ``nn.Linear`` it was made from, whose parameters it shares. A step
    of a search, a few rows at a time, then reads the weight once, in order.

    Args:
        linear: the map, on a CPU.
        dtype: what will be computed in, float32 or bfloat16.

    Example:
        >>> linear, x = nn.Linear(4, 2), torch.ones(3, 4)
        >>> packed = PackedLinear(linear, torch.float32) if can_pack() else linear
        >>> with torch.no_grad():
        ...     bool(torch.allclose(packed(x), linear(x)))
        True
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.dtype = dtype
        weight = linear.weight.detach().to(dtype)
        self._packed: Tensor | None = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._packed_bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self._version = linear.weight._version

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the copy, which no other process can read."""
        return {**super().__getstate__(), "_packed": None}

    def rows(self, index: Tensor) -> nn.Linear:
        """Return the map to some of the outputs, whose numbers are ``index`` [D'']."""
        part = nn.Linear(self.in_features, len(index), bias=False, device="meta")
        # In inference mode they would have no version, which says whether they have changed.
        with torch.inference_mode(False), torch.no_grad():
            part.weight = nn.Parameter(self.weight[index], requires_grad=False)
            if self.bias is not None:
                part.bias = nn.Parameter(self.bias[index], requires_grad=False)
            return PackedLinear(part, self.dtype) if part.weight.is_cpu else part

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D']."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        if (
            self._packed is None
            or dtype != self.dtype
            or torch.is_grad_enabled()
            or not x.is_cpu
            or x.numel() == 0
            or self.weight._version != self._version
        ):
            return super().forward(x)
        return torch.ops.mkldnn._linear_pointwise(
            x.to(dtype), self._packed, self._packed_bias, "none", [], ""
        )


def can_pack() -> bool:
    """Return whether this machine has the products: x86, and a PyTorch with oneDNN."""
    return platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()


def pack_linear(model: nn.Module, dtype: torch.dtype) -> None:
    """Put a :class:`PackedLinear` in place of every affine map of a model on a CPU, if it can be.

    Args:
        model: changed in place; its parameters and their names stay.
        dtype: what will be computed in; nothing is packed but for float32 and bfloat16.
    """
    if can_pack() and dtype in (torch.float32, torch.bfloat16):
        replace_linear(model, lambda linear: PackedLinear(linear, dtype))


def replace_linear(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> None:
    """Put ``make(linear)`` in place of every ``nn.Linear`` of a model."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                setattr(parent, name, make(child))

"""Models whose affine maps keep their weights in the order in which a CPU reads them."""

import platform
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.engine import native

PANEL, GROUP_BYTES = 16, 4
"""Rows of a weight that lie side by side in a panel, and bytes of each before the next row's."""
MOST_PRODUCTS = 1 << 22
"""Of two numbers, up to which the kernel, of one thread, is as fast as oneDNN by several."""


class PanelLinear(nn.Module, ABC):
    """An affine map with a copy of its weight for a kernel of this engine, or of oneDNN.

    Copies are made when they are first needed, and stay out of what goes to other processes.
    """

    weight: Tensor
    kernel: str
    _panels: tuple[Tensor | None, ...] | None = None
    _packed: Any = None

    @abstractmethod
    def pack_for_kernel(self) -> tuple[Tensor | None, ...]:
        """Return what the kernel reads: the panels of the weight, and numbers for each output.

        Those are the bias, and of 8-bit integers the scales, and the sums of the rows.
        """

    @abstractmethod
    def wants_kernel(self, num_rows: int, dtype: torch.dtype) -> bool:
        """Return whether the kernel is to map so many rows of numbers of this type."""

    @property
    def has_kernel(self) -> bool:
        """Return whether there is a kernel that maps rows of this width."""
        return native.has_kernel(self.kernel)

    @property
    def is_current(self) -> bool:
        """Return whether the copies are still those of the weight and bias."""
        return True

    @property
    def panels(self) -> tuple[Tensor | None, ...]:
        """What the kernel reads, made when it is first needed."""
        if self._panels is None:
            self._panels = self.pack_for_kernel()
        return self._panels

    def drop_copies(self) -> None:
        """Forget the copies, as those of another weight."""
        self._panels = self._packed = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the copies, one of which no other process can read."""
        return {**super().__getstate__(), "_panels": None, "_packed": None}

    def by_kernel(self, x: Tensor) -> Tensor:
        """Map x [..., D] to [..., D'], both of the kernel's type of numbers.

        Raises:
            ValueError: x has rows of another width.
        """
        outputs, inputs = self.weight.shape
        if x.size(-1) != inputs:
            raise ValueError(f"rows of {x.size(-1)} numbers for an affine map of {inputs}")
        x = x.contiguous()
        found = x.new_empty(*x.shape[:-1], outputs)
        sizes = (x.numel() // inputs, inputs, outputs, self.num_groups(inputs), 0)
        native.call(self.kernel, (x, found, *self.panels), sizes)
        return found

    def num_groups(self, inputs: int) -> int:
        """Return how many groups of bytes a row of so many numbers has in the panels."""
        panels = self.panels[0]
        assert panels is not None, "it comes first"
        return -(-inputs * panels.element_size() // GROUP_BYTES)


class PackedLinear(PanelLinear, nn.Linear):
    """``nn.Linear`` with a second copy of its weight, in the order in which a CPU reads it.

    The copy serves on CPUs, without gradients, in its own type of numbers and while the weight is
    what it was; else this is the ``nn.Linear`` it was made from, whose parameters it shares. A step
    of a search, a few rows at a time, then reads the weight once, in order. The product is a kernel
    of :mod:`relu_nmt.engine.native`; or oneDNN's, with a copy of its own, where that is missing or
    several threads are faster.

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
        self.kernel = f"linear_{native.DTYPES[dtype]}"
        self._packed_of = self._numbers()
        if self.has_kernel:
            self._panels = self.pack_for_kernel()
        else:
            self._packed = self._pack_for_onednn()

    @property
    def has_kernel(self) -> bool:
        """See :meth:`PanelLinear.has_kernel`; rows of part of a group would have to be padded."""
        whole = self.in_features * self.dtype.itemsize % GROUP_BYTES == 0
        return whole and super().has_kernel

    def pack_for_kernel(self) -> tuple[Tensor | None, ...]:
        """See :meth:`PanelLinear.pack_for_kernel`."""
        bias = None if self.bias is None else pad_to_panels(self.bias.detach().float())
        return make_panels(self.weight.detach().to(self.dtype)), bias, None, None

    def wants_kernel(self, num_rows: int, dtype: torch.dtype) -> bool:
        """See :meth:`PanelLinear.wants_kernel`."""
        few = num_rows * self.weight.numel() <= MOST_PRODUCTS or torch.get_num_threads() == 1
        return few and self._serves(dtype) and self.has_kernel

    @property
    def is_current(self) -> bool:
        """See :meth:`PanelLinear.is_current`."""
        return self._numbers() == self._packed_of

    def _numbers(self) -> tuple[int, ...]:
        """Return what tells the numbers in weight and bias from those of other times."""
        # Asked for at every step, so not as attributes, which take three times as long.
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        assert weight is not None, "only a bias may be missing"
        numbers = weight.data_ptr(), weight._version
        return numbers if bias is None else (*numbers, bias.data_ptr(), bias._version)

    def _serves(self, dtype: torch.dtype) -> bool:
        """Return whether the copy is one for these numbers, of a weight that has not changed."""
        wanted = dtype == self.dtype and not torch.is_grad_enabled()
        return wanted and self.weight.is_cpu and self.is_current

    def _pack_for_onednn(self) -> tuple[Tensor, Tensor | None]:
        bias = None if self.bias is None else self.bias.detach().to(self.dtype)
        weight = self.weight.detach().to(self.dtype)
        return torch.ops.mkldnn._reorder_linear_weight(weight), bias

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the weight as it is; copies of it are made when they are needed."""
        super().__setstate__(state)
        self._packed_of = self._numbers()

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
        dtype = computing_dtype(x)
        if x.numel() == 0 or not (x.is_cpu and self._serves(dtype)):
            return super().forward(x)
        x = x.to(dtype)
        if self.wants_kernel(x.numel() // self.in_features, dtype):
            return self.by_kernel(x)
        if self._packed is None:
            self._packed = self._pack_for_onednn()
        return torch.ops.mkldnn._linear_pointwise(x, *self._packed, "none", [], "")


def computing_dtype(x: Tensor) -> torch.dtype:
    """Return in what an affine map of x on a CPU is computed."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def make_panels(weight: Tensor) -> Tensor:
    """Return a weight [D', D] as the kernels read it, [D'/16, D/g, 16, g], padded with zeros.

    g numbers of each row, four bytes, lie side by side.
    """
    group = GROUP_BYTES // weight.element_size()
    weight = F.pad(weight, (0, -weight.size(1) % group, 0, -len(weight) % PANEL))
    return weight.view(-1, PANEL, weight.size(1) // group, group).transpose(1, 2).contiguous()


def pad_to_panels(x: Tensor) -> Tensor:
    """Return a number for each row of a weight, [D'], padded with zeros as panels are."""
    return F.pad(x, (0, -len(x) % PANEL))


def can_pack(dtype: torch.dtype = torch.float32) -> bool:
    """Return whether this machine has the products: x86, and a PyTorch with oneDNN."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32


def pack_linear(model: nn.Module, dtype: torch.dtype) -> None:
    """Put a :class:`PackedLinear` in place of every affine map of a model on a CPU, if it can be.

    Args:
        model: changed in place; its parameters and their names stay.
        dtype: what will be computed in; nothing is packed but for float32 and bfloat16.
    """
    if can_pack(dtype):
        replace_linear(model, lambda linear: PackedLinear(linear, dtype))


def replace_linear(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> None:
    """Put ``make(linear)`` in place of every ``nn.Linear`` of a model."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                setattr(parent, name, make(child))

"""Affine maps that keep a copy of their weight in the order in which a CPU reads it.

The copy is in the compute dtype, or in 8-bit integers.
"""

import copy
import math
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.engine import native
from relu_nmt.errors import ConfigError

PANEL = native.CONSTANTS["PANEL"]
GROUP_BYTES = native.CONSTANTS["GROUP"]
LEVELS = native.CONSTANTS["LEVELS"]
ROUNDING = 1.5 * 2**23
"""Adding this to a float32 rounds it: the sum has no bits for fractions."""

MAX_PRODUCTS = 1 << 22
"""Use the kernel for float32 and bfloat16 products up to this many multiply-adds.

Above it oneDNN with several threads is faster. With one thread the kernel always serves."""

MAX_INT8_PRODUCTS = 1 << 25
"""Use the kernel for 8-bit products up to this many multiply-adds, or with few threads."""


class PanelLinear(nn.Module, ABC):
    """An affine map with a copy of its weight for a kernel of this engine, or of oneDNN.

    The first use makes a copy. Pickling leaves copies out. The kernel maps rows if this processor
    has it (``has_kernel``), the weight is unchanged since it was copied (``is_current``), and
    nothing else is faster for so many rows (``wants_kernel``).
    """

    weight: Tensor
    kernel: str
    _kernel_copy: dict[str, Tensor | None] | None = None
    _onednn_copy: Any = None

    @abstractmethod
    def pack_for_kernel(self) -> dict[str, Tensor | None]:
        """Return the fields of ``LinearWeights`` of native/arguments.inc."""

    @abstractmethod
    def wants_kernel(self, num_rows: int, dtype: torch.dtype) -> bool:
        """Return whether the kernel is the fastest way to map this many rows in this dtype."""

    @abstractmethod
    def restricted_to(self, index: Tensor) -> nn.Module:
        """Return the map to the outputs ``index`` [D''] alone."""

    @property
    def has_kernel(self) -> bool:
        """Return whether this processor has a kernel for rows of this width."""
        return native.has_kernel(self.kernel)

    @property
    def is_current(self) -> bool:
        """Return whether weight and bias are unchanged since they were copied."""
        return True

    @property
    def kernel_weights(self) -> dict[str, Tensor | None]:
        """The result of :meth:`pack_for_kernel`, made at the first use."""
        if self._kernel_copy is None:
            self._kernel_copy = self.pack_for_kernel()
        return self._kernel_copy

    @property
    def num_groups(self) -> int:
        """Groups of bytes in one row of the panels."""
        panels = self.kernel_weights["panels"]
        assert panels is not None, "every kernel reads panels"
        return panels.size(1)

    def drop_copies(self) -> None:
        """Drop the copies, after the weight has changed."""
        self._kernel_copy = self._onednn_copy = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the copies: no other process can read oneDNN's."""
        return {**super().__getstate__(), "_kernel_copy": None, "_onednn_copy": None}

    def by_kernel(self, x: Tensor) -> Tensor:
        """Map x [..., D] to [..., D'], both in the kernel's dtype."""
        outputs, inputs = self.weight.shape
        if x.size(-1) != inputs:
            raise ValueError(f"x has width {x.size(-1)}, the affine map needs {inputs}")
        x = x.contiguous()
        output = x.new_empty(*x.shape[:-1], outputs)
        values = {"source": x, "target": output, "weights": self.kernel_weights}
        sizes = {"rows": x.numel() // inputs, "inputs": inputs, "outputs": outputs}
        native.call(self.kernel, [("Linear", {**values, **sizes, "groups": self.num_groups})])
        return output


class PackedLinear(PanelLinear, nn.Linear):
    """``nn.Linear`` with a second copy of its weight, in the order in which a CPU reads it.

    The copy serves on CPUs, without gradients, in the dtype of the copy and while the weight is
    unchanged. Otherwise ``nn.Linear``, whose parameters this module shares, computes the map. The
    product is a kernel of :mod:`relu_nmt.engine.native`. Where the kernel is missing, or several
    threads are faster, oneDNN computes it with another copy.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        # Begin without memory on the meta device, then share the map's parameters.
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.dtype = dtype
        self.kernel = f"linear_{native.DTYPES[dtype]}"
        self._copied_version = self._version_of_weights()
        # Pack at once for the kernel if it exists, else for oneDNN.
        if self.has_kernel:
            self._kernel_copy = self.pack_for_kernel()
        else:
            self._onednn_copy = self._pack_for_onednn()

    @property
    def has_kernel(self) -> bool:
        """True if a kernel computes the map here, whose rows must be of whole groups."""
        has_whole_groups = self.in_features * self.dtype.itemsize % GROUP_BYTES == 0
        return has_whole_groups and super().has_kernel

    @property
    def is_current(self) -> bool:
        return self._version_of_weights() == self._copied_version

    def pack_for_kernel(self) -> dict[str, Tensor | None]:
        panels = make_panels(self.weight.detach().to(self.dtype))
        bias = None
        if self.bias is not None:
            bias = pad_to_panels(self.bias.detach().float())
        return {"panels": panels, "bias": bias, "scales": None, "sums": None}

    def wants_kernel(self, num_rows: int, dtype: torch.dtype) -> bool:
        few = num_rows * self.weight.numel() <= MAX_PRODUCTS
        is_faster = few or torch.get_num_threads() == 1
        return is_faster and self._may_use_copy(dtype) and self.has_kernel

    def restricted_to(self, index: Tensor) -> nn.Linear:
        part = nn.Linear(self.in_features, len(index), bias=False, device="meta")
        # Tensors made in inference mode have no version, which the fingerprint needs.
        with torch.inference_mode(False), torch.no_grad():
            part.weight = nn.Parameter(self.weight[index], requires_grad=False)
            if self.bias is not None:
                part.bias = nn.Parameter(self.bias[index], requires_grad=False)
            if not part.weight.is_cpu:
                return part
            return PackedLinear(part, self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D']."""
        # Fall back to the plain map for gradients, other dtypes and changed weights.
        dtype = computing_dtype(x)
        if x.numel() == 0 or not (x.is_cpu and self._may_use_copy(dtype)):
            return super().forward(x)
        x = x.to(dtype)
        if self.wants_kernel(x.numel() // self.in_features, dtype):
            return self.by_kernel(x)
        if self._onednn_copy is None:
            self._onednn_copy = self._pack_for_onednn()
        return torch.ops.mkldnn._linear_pointwise(x, *self._onednn_copy, "none", [], "")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the module. The first use makes new copies of the weight."""
        super().__setstate__(state)
        self._copied_version = self._version_of_weights()

    def _version_of_weights(self) -> tuple[int, ...]:
        """Return a fingerprint of the weight and bias, which changes when they change."""
        # Every step calls this, and access as attributes would take three times as long.
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        assert weight is not None, "only a bias may be missing"
        numbers = weight.data_ptr(), weight._version
        return numbers if bias is None else (*numbers, bias.data_ptr(), bias._version)

    def _may_use_copy(self, dtype: torch.dtype) -> bool:
        """Return whether the copy may serve: right dtype, no gradients, unchanged weight."""
        fits = dtype == self.dtype and not torch.is_grad_enabled()
        return fits and self.weight.is_cpu and self.is_current

    def _pack_for_onednn(self) -> tuple[Tensor, Tensor | None]:
        bias = None if self.bias is None else self.bias.detach().to(self.dtype)
        weight = self.weight.detach().to(self.dtype)
        return torch.ops.mkldnn._reorder_linear_weight(weight), bias


class Int8Linear(PanelLinear):
    """x W^T + b as a product of 8-bit integers, for inference on CPUs.

    Each row of W has a scale, its largest magnitude over 127. Each row of x is scaled by the range
    of the row, extended to include 0. The product is a kernel of :mod:`relu_nmt.engine.native`.
    Where the kernel is missing, or several threads are faster, oneDNN computes it.
    """

    kernel = "linear_int8"
    scale: Tensor
    sums: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        # Scale each row to integers of -127 to 127. The bound keeps null rows finite.
        scale = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        # Sum each row's integers, to correct for the zero level of inputs.
        self.register_buffer("sums", self.weight.sum(1, dtype=torch.int32))
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("bias", bias)
        if self.has_kernel:
            self._kernel_copy = self.pack_for_kernel()

    def pack_for_kernel(self) -> dict[str, Tensor | None]:
        return {
            "panels": make_panels(self.weight),
            "bias": pad_to_panels(self.bias),
            "scales": pad_to_panels(self.scale),
            "sums": pad_to_panels(self.sums),
        }

    def wants_kernel(self, num_rows: int, dtype: torch.dtype) -> bool:
        few = num_rows * self.weight.numel() <= MAX_INT8_PRODUCTS
        is_faster = few or native.is_wanted() or not torch.cpu._is_vnni_supported()
        return is_faster and self.has_kernel

    def restricted_to(self, index: Tensor) -> "Int8Linear":
        part = copy.copy(self)
        part._buffers = dict(self._buffers)
        for name, values in self._buffers.items():
            if values is not None:
                part._buffers[name] = values[index]
        part.drop_copies()
        return part

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] float32 to [..., D'] float32."""
        num_rows = x.numel() // self.weight.size(1)
        x = x.float()
        if self.wants_kernel(num_rows, x.dtype):
            return self.by_kernel(x)
        return self._by_onednn(x)

    def _by_onednn(self, x: Tensor) -> Tensor:
        if self._onednn_copy is None:
            self._onednn_copy = torch.ops.onednn.qlinear_prepack(self.weight, None)
        packed = self._onednn_copy
        levels, scale, zero = quantize(x)
        zeros = torch.zeros_like(self.sums, dtype=torch.int64)
        # oneDNN takes one scale for all rows, so the scale of each row is applied afterwards. The
        # arguments are scale and zero of x, the weights, then scale, zero and type of the output.
        output = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, 0, packed, self.scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        output = (output - zero * (self.scale * self.sums)) * scale
        return output if self.bias is None else output + self.bias


def quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize each row of x [..., D] float32, so that x is about scale (level - zero).

    Returns the levels [..., D] uint8, and each row's scale and zero [..., 1]. The scale is NaN
    where an element of the row is not finite.
    """
    low, high = x.aminmax(dim=-1, keepdim=True)
    low, high = low.clamp(max=0), high.clamp(min=0)
    # Divide the range into levels. A row of zeros gets a tiny scale.
    scale = (high - low).clamp(min=1e-30) / LEVELS  # NaN stays
    scale = scale.where(scale.isfinite(), math.nan)
    zero = (-low / scale).round().nan_to_num()
    # The lowest byte of each sum is the level. A cast to bytes would take several times as long.
    sums = torch.addcdiv(ROUNDING + zero, x, scale)
    return sums.view(torch.int32).to(torch.int8).view(torch.uint8), scale, zero


def computing_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which an affine map of x on a CPU is computed."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def make_panels(weight: Tensor) -> Tensor:
    """Return a weight [D', D] as panels [D'/16, D/g, 16, g], padded with zeros.

    The g elements of a group fill four bytes.
    """
    group = GROUP_BYTES // weight.element_size()
    weight = F.pad(weight, (0, -weight.size(1) % group, 0, -len(weight) % PANEL))
    return weight.view(-1, PANEL, weight.size(1) // group, group).transpose(1, 2).contiguous()


def pad_to_panels(x: Tensor | None) -> Tensor | None:
    """Return x [D'], one element per row of a weight, padded with zeros to whole panels."""
    return None if x is None else F.pad(x, (0, -len(x) % PANEL))


def can_pack(dtype: torch.dtype = torch.float32) -> bool:
    """Return whether packed products exist here, which need an x86 processor and oneDNN."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32


def has_fast_int8() -> bool:
    """Return whether 8-bit products are fast here: AVX2 and our kernels, or AVX512-VNNI.

    Without VNNI oneDNN's products overflow 16 bits, or are hundreds of times as slow.
    """
    return native.has_kernel(Int8Linear.kernel) or torch.cpu._is_vnni_supported()


def pack_linear(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace every affine map of a model on a CPU by a :class:`PackedLinear`, where possible.

    Parameters and their names stay. Only float32 and bfloat16 can be packed.
    """
    if can_pack(dtype):
        _replace_linear(model, lambda linear: PackedLinear(linear, dtype))


def use_int8(model: nn.Module) -> None:
    """Replace every affine map of a model on a CPU by an :class:`Int8Linear`, for good.

    The rest stays in float32. Where :mod:`relu_nmt.engine.layers` computes the layers, caches are
    float16. A model on a GPU, or a processor without the instructions, is a ConfigError.
    """
    if any(not weight.is_cpu for weight in model.parameters()):
        raise ConfigError("--int8 is for CPUs; add --cpu")
    if not has_fast_int8():
        raise ConfigError(
            "--int8 needs an x86 processor with AVX512-VNNI, or with AVX2 where relu_nmt was "
            "installed with a C++ compiler; leave it out"
        )
    _replace_linear(model, Int8Linear)


def _replace_linear(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> None:
    """Replace every ``nn.Linear`` of a model by ``make(linear)``."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                setattr(parent, name, make(child))

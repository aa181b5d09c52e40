"""Affine maps as products of 8-bit integers."""

import copy
import math

import torch
from torch import Tensor, nn

from relu_nmt.engine import native, tuned
from relu_nmt.engine.packed_linear import (
    PanelLinear,
    make_panels,
    pad_to_panels,
    replace_linear,
)
from relu_nmt.errors import ConfigError

LEVELS = native.CONSTANTS["LEVELS"]
ROUNDING = 1.5 * 2**23
"""Adding this to a float32 rounds it: the sum has no bits for fractions."""


class Int8Linear(PanelLinear):
    """x W^T + b as a product of 8-bit integers; for inference on CPUs.

    Each row of W has a scale, its largest magnitude over 127. Each row of x is scaled by its own
    range, extended to include 0. The product is a kernel of :mod:`relu_nmt.engine.native`, or
    oneDNN's where that is missing or several threads are faster.

    Args:
        linear: the map in float32.

    Example:
        >>> linear = nn.Linear(4, 2)
        >>> int8, x = Int8Linear(linear), torch.ones(3, 4)
        >>> bool(torch.allclose(int8(x), linear(x), atol=0.05)) if has_fast_int8() else True
        True
    """

    kernel = "linear_int8"
    scale: Tensor
    sums: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        # Scale each row to integers of -127 to 127; the bound keeps null rows finite.
        scale = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        # Sum each row's integers, to correct for the zero level of inputs.
        self.register_buffer("sums", self.weight.sum(1, dtype=torch.int32))
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("bias", bias)
        if self.has_kernel:
            self._panels = self.pack_for_kernel()

    def pack_for_kernel(self) -> dict[str, Tensor | None]:
        """See :meth:`PanelLinear.pack_for_kernel`."""
        return {
            "panels": make_panels(self.weight),
            "bias": None if self.bias is None else pad_to_panels(self.bias),
            "scales": pad_to_panels(self.scale),
            "sums": pad_to_panels(self.sums),
        }

    def wants_kernel(self, num_rows: int, dtype: torch.dtype) -> bool:
        """See :meth:`PanelLinear.wants_kernel`."""
        few = num_rows * self.weight.numel() <= tuned.MAX_INT8_PRODUCTS
        wanted = few or native.is_wanted() or not torch.cpu._is_vnni_supported()
        return wanted and self.has_kernel

    def rows(self, index: Tensor) -> "Int8Linear":
        """Return the map to the outputs ``index`` [D'']."""
        part = copy.copy(self)
        part._buffers = {
            name: None if values is None else values[index]
            for name, values in self._buffers.items()
        }
        part.drop_copies()
        return part

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] float32 to [..., D'] float32."""
        num_rows = x.numel() // self.weight.size(1)
        x = x.float()
        return self.by_kernel(x) if self.wants_kernel(num_rows, x.dtype) else self._by_onednn(x)

    def _by_onednn(self, x: Tensor) -> Tensor:
        if self._packed is None:
            self._packed = torch.ops.onednn.qlinear_prepack(self.weight, None)
        levels, scale, zero = quantize(x)
        weights = (self._packed, self.scale, torch.zeros_like(self.sums, dtype=torch.int64), None)
        output = (1.0, 0, torch.float32)  # scale, zero and type
        # oneDNN takes one scale for all rows, so the scale of each row is applied afterwards.
        found = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, 0, *weights, *output, "none", [], ""
        )
        found = (found - zero * (self.scale * self.sums)) * scale
        return found if self.bias is None else found + self.bias


def quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize each row of x [..., D] float32, so that x is about scale (level - zero).

    Returns:
        the levels [..., D] uint8, and each row's scale and level of 0, [..., 1]. The scale is NaN
        where an element of the row is not finite.
    """
    low, high = x.aminmax(dim=-1, keepdim=True)
    low, high = low.clamp(max=0), high.clamp(min=0)
    # Divide the range into levels; a row of zeros gets a tiny scale.
    scale = (high - low).clamp(min=1e-30) / LEVELS  # NaN stays
    scale = scale.where(scale.isfinite(), math.nan)
    zero = (-low / scale).round().nan_to_num()
    # The lowest byte of each sum is the level; a cast to bytes would take several times as long.
    sums = torch.addcdiv(ROUNDING + zero, x, scale)
    return sums.view(torch.int32).to(torch.int8).view(torch.uint8), scale, zero


def has_fast_int8() -> bool:
    """Return whether 8-bit products are fast here: AVX2 and our kernels, or AVX512-VNNI.

    Without VNNI oneDNN's products overflow 16 bits, or are hundreds of times as slow.
    """
    return native.has_kernel(Int8Linear.kernel) or torch.cpu._is_vnni_supported()


def use_int8(model: nn.Module) -> None:
    """Replace every affine map of a model on a CPU by an :class:`Int8Linear`, for good.

    Embeddings, attention and norms stay in float32. Only the cache of keys and values is float16
    where :mod:`relu_nmt.engine.layers_kernel` serves.

    Raises:
        ConfigError: the model is on a GPU, or this processor lacks the instructions.
    """
    # Check the device and the instructions before any weight is changed.
    if any(not weight.is_cpu for weight in model.parameters()):
        raise ConfigError("--int8 is for CPUs; add --cpu")
    if not has_fast_int8():
        raise ConfigError(
            "--int8 needs an x86 processor with AVX512-VNNI, or with AVX2 where relu_nmt was "
            "installed with a C++ compiler; leave it out"
        )
    replace_linear(model, Int8Linear)

"""Models whose affine maps are products of 8-bit integers."""

import copy
import math

import torch
from torch import Tensor, nn

from relu_nmt.engine import native
from relu_nmt.engine.packed_linear import (
    PanelLinear,
    make_panels,
    pad_to_panels,
    replace_linear,
)
from relu_nmt.errors import ConfigError

LEVELS = 254
"""Steps between the smallest and the largest value; one less than bytes have, for rounding."""
WHOLE = 1.5 * 2**23
"""Around it float32 has no fractions: what is added to it is rounded."""
MOST_PRODUCTS = 1 << 25
"""Of two numbers, up to which the kernel, of one thread, is as fast as oneDNN by several."""


class Int8Linear(PanelLinear):
    """x W^T + b as a product of 8-bit integers; for inference on CPUs.

    Each row of W has a scale, the largest magnitude over 127. Each row of what comes in is scaled
    by its own range, 0 included. The product is a kernel of :mod:`relu_nmt.engine.native`, or
    oneDNN's where that is missing or there are threads for it.

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
        scale = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("sums", self.weight.sum(1, dtype=torch.int32))
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("bias", bias)
        if self.has_kernel:
            self._panels = self.pack_for_kernel()

    def pack_for_kernel(self) -> tuple[Tensor | None, ...]:
        """See :meth:`PanelLinear.pack_for_kernel`."""
        rows = (self.bias, self.scale, self.sums)
        padded = (None if number is None else pad_to_panels(number) for number in rows)
        return make_panels(self.weight), *padded

    def wants_kernel(self, num_rows: int, dtype: torch.dtype) -> bool:
        """See :meth:`PanelLinear.wants_kernel`."""
        few = num_rows * self.weight.numel() <= MOST_PRODUCTS
        wanted = few or native.is_wanted() or not torch.cpu._is_vnni_supported()
        return wanted and self.has_kernel

    def rows(self, index: Tensor) -> "Int8Linear":
        """Return the map to some of the outputs, whose numbers are ``index`` [D'']."""
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
        # It knows one scale for all rows.
        found = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, 0, *weights, *output, "none", [], ""
        )
        found = (found - zero * (self.scale * self.sums)) * scale
        return found if self.bias is None else found + self.bias


def quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return levels of x [..., D] float32, uint8; each row's scale, and the level of 0, [..., 1].

    x is about scale (level - zero). The scale is NaN where a number of the row is not finite.
    """
    low, high = x.aminmax(dim=-1, keepdim=True)
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = (high - low).clamp(min=1e-30) / LEVELS  # NaN stays
    scale = scale.where(scale.isfinite(), math.nan)
    zero = (-low / scale).round().nan_to_num()
    # Their last bytes are the levels; several times as fast as a cast of fractions to bytes.
    whole = torch.addcdiv(WHOLE + zero, x, scale)
    return whole.view(torch.int32).to(torch.int8).view(torch.uint8), scale, zero


def has_fast_int8() -> bool:
    """Return whether there are products: x86 with AVX2 and our kernels, or with AVX512-VNNI.

    oneDNN's overflow 16 bits without VNNI, or are hundreds of times as slow.
    """
    return native.has_kernel(Int8Linear.kernel) or torch.cpu._is_vnni_supported()


def use_int8(model: nn.Module) -> None:
    """Put an :class:`Int8Linear` in place of every affine map of a model on a CPU, for good.

    What is not an ``nn.Linear`` stays in float32: embeddings, attention itself, norms; but where
    :mod:`relu_nmt.engine.layers_kernel` serves, keys and values are remembered in float16.

    Raises:
        ConfigError: the model is on a GPU, or this processor lacks the instructions.
    """
    if any(not weight.is_cpu for weight in model.parameters()):
        raise ConfigError("--int8 is for CPUs; add --cpu")
    if not has_fast_int8():
        raise ConfigError(
            "--int8 needs an x86 processor with AVX512-VNNI, or with AVX2 where relu_nmt was "
            "installed with a C++ compiler; leave it out"
        )
    replace_linear(model, Int8Linear)

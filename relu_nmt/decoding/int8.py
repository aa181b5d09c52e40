"""Models whose affine maps are products of 8-bit integers."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.decoding.packed_linear import replace_linear
from relu_nmt.errors import ConfigError
from relu_nmt.native import call, library

LEVELS = 254
"""Steps between the smallest and the largest value; one less than bytes have, for rounding."""
WHOLE = 1.5 * 2**23
"""Around it float32 has no fractions: what is added to it is rounded."""


class Int8Linear(nn.Module):
    """x W^T + b by oneDNN's product of 8-bit integers; for inference on CPUs.

    Each row of W has a scale, the largest magnitude over 127. What comes in is scaled by the range
    of all of it, 0 included, so results depend a little on what is in the same batch.

    Args:
        linear: the map in float32.

    Example:
        >>> linear = nn.Linear(4, 2)
        >>> int8, x = Int8Linear(linear), torch.ones(3, 4)
        >>> bool(torch.allclose(int8(x), linear(x), atol=0.05)) if has_fast_int8() else True
        True
    """

    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("zeros", torch.zeros_like(scale, dtype=torch.int64))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self._packed: Tensor | None = self._pack()

    def _pack(self) -> Tensor | None:
        """Return the weights in the order in which the product reads them, if it is fast here."""
        if not has_fast_int8():
            return None
        return torch.ops.onednn.qlinear_prepack(self.weight, None)

    def rows(self, index: Tensor) -> "Int8Linear":
        """Return the map to some of the outputs, whose numbers are ``index`` [D'']."""
        part = copy.copy(self)
        part._buffers = {
            name: None if values is None else values[index]
            for name, values in self._buffers.items()
        }
        part._packed = part._pack()
        return part

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the packed weights, which no other process can read."""
        return {**super().__getstate__(), "_packed": None}

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] float32 to [..., D'] float32."""
        if self._packed is None:  # it has come from another process
            self._packed = self._pack()
        levels, scale, zero = quantize(x)
        if scale == 0:
            return x.new_full((*x.shape[:-1], len(self.scale)), math.nan)
        weights = (self._packed, self.scale, self.zeros, self.bias)
        output = (1.0, 0, torch.float32)  # scale, zero and type
        return torch.ops.onednn.qlinear_pointwise(
            levels, scale, zero, *weights, *output, "none", [], ""
        )


def quantize(x: Tensor) -> tuple[Tensor, float, int]:
    """Return levels, uint8, of x float32 on a CPU; their scale; and the level of 0.

    x is about scale (level - zero). The scale is 0 where a number is not finite.
    """
    x = x.float()
    if library() is not None:
        x = x.contiguous()
        levels, found = torch.empty_like(x, dtype=torch.uint8), torch.empty(2, dtype=torch.float64)
        call("quantize", (x, levels, found), (x.numel(),), LEVELS)
        scale, zero = found.tolist()
        return levels, scale, int(zero)
    low, high = (value.item() for value in x.aminmax())
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max(high - low, 1e-30) / LEVELS  # NaN stays
    if not math.isfinite(scale):
        return torch.zeros_like(x, dtype=torch.uint8), 0.0, 0
    zero = round(-low / scale)
    # Their last bytes are the levels; several times as fast as a cast of fractions to bytes.
    whole = torch.add(torch.full((), WHOLE + zero), x, alpha=1 / scale)
    return whole.view(torch.int32).to(torch.int8).view(torch.uint8), scale, zero


def has_fast_int8() -> bool:
    """Return whether this processor has the instructions: x86 with AVX512-VNNI.

    Without them sums of two products overflow 16 bits, or oneDNN is hundreds of times as slow.
    """
    return torch.cpu._is_vnni_supported()


def use_int8(model: nn.Module) -> None:
    """Put an :class:`Int8Linear` in place of every affine map of a model on a CPU, for good.

    What is not an ``nn.Linear`` stays in float32: embeddings, attention itself, norms.

    Raises:
        ConfigError: the model is on a GPU, or this processor lacks the instructions.
    """
    if any(not weight.is_cpu for weight in model.parameters()):
        raise ConfigError("--int8 is for CPUs; add --cpu")
    if not has_fast_int8():
        raise ConfigError("--int8 needs an x86 processor with AVX512-VNNI; leave it out")
    replace_linear(model, Int8Linear)

"""Linear maps in 8-bit integers, for decoding on CPUs."""

from typing import cast

import torch
from torch import Tensor, nn

from relu_nmt.errors import ConfigError

LARGEST = 127
FASTEST = "onednn"
"""With VNNI instructions it reached 230 to 280 billion operations a second for 320 rows, x86 and
fbgemm, PyTorch's other libraries, 165 to 220."""


class Int8Linear(nn.Module):
    """A linear map whose products are of 8-bit integers; bias and result stay in float32.

    The rows of the weight have a scale each, fixed once; what comes in has one scale for all of
    it, found anew each time, so that results depend a little on what else is in a batch.

    Args:
        linear: the map in float32, on a CPU.

    Example:
        >>> linear = nn.Linear(64, 8)
        >>> x = torch.randn(3, 64)
        >>> bool((Int8Linear(linear)(x) - linear(x)).abs().max() < 0.1)
        True
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scales = weight.abs().amax(1).clamp_min(torch.finfo(weight.dtype).tiny) / LARGEST
        zeros = torch.zeros_like(scales, dtype=torch.int64)
        rows = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach().float()
        engines = torch.backends.quantized
        usual = engines.engine
        if FASTEST in engines.supported_engines:
            engines.engine = FASTEST
        try:
            self._packed = torch.ops.quantized.linear_prepack(rows, bias)
        finally:
            engines.engine = usual

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., N]."""
        # Seven bits of what comes in: without VNNI instructions, sums of eight would overflow.
        return cast(Tensor, torch.ops.quantized.linear_dynamic(x, self._packed, True))


def use_int8(model: nn.Module) -> None:
    """Replace all linear maps of a model, for good; it cannot be trained or saved any more.

    Args:
        model: in float32, on a CPU.

    Raises:
        ConfigError: it is on a GPU.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                if not child.weight.is_cpu:
                    raise ConfigError("--int8 is for CPUs; add --cpu, or use --fp16 or --bf16")
                setattr(module, name, Int8Linear(child))

"""The dtype of a training's computation, which a device may not have."""

import sys

import torch

from relu_nmt.config.shared import PrecisionOptions
from relu_nmt.errors import ConfigError


def autocast_dtype(precision: PrecisionOptions, device: torch.device) -> torch.dtype | None:
    """Return the 16-bit dtype of the computation on a device. None for the dtype of the weights."""
    if precision.fp16 and device.type != "cuda":
        raise ConfigError("--fp16 needs a CUDA GPU; on the CPU use --bf16 or neither")
    if precision.bf16 and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError("this GPU has no bfloat16; use --fp16 or neither")
    if precision.bf16 and device.type == "cpu" and not has_fast_bfloat16():
        print(
            "NOTE: this processor has no products of bfloat16, so --bf16 is slower than without",
            file=sys.stderr,
        )
    return stated_dtype(precision)


def stated_dtype(precision: PrecisionOptions) -> torch.dtype | None:
    """Return the 16-bit dtype that the flags name. None without such a flag."""
    if precision.fp16:
        return torch.float16
    return torch.bfloat16 if precision.bf16 else None


def has_fast_bfloat16() -> bool:
    """Return True if the CPU multiplies bfloat16 (AVX512-BF16, AMX) faster than float32."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()

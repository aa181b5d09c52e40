"""The format of numbers that is computed in, and loss scaling."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from relu_nmt.errors import ConfigError, TrainingError
from relu_nmt.training.config import RunConfig

FAIRSEQ_SCALE_WINDOW = 2**14


class Formats(Protocol):
    """Which 16-bit format is asked for, if any."""

    @property
    def fp16(self) -> bool:
        """Return whether it is float16."""

    @property
    def bf16(self) -> bool:
        """Return whether it is bfloat16."""


def autocast_dtype(asked: Formats, device: torch.device) -> torch.dtype | None:
    """Return the 16-bit format to compute in; None for that of the weights.

    On a CPU without products of bfloat16 a note says that it is slow.

    Raises:
        ConfigError: the device cannot compute in that format.
    """
    if asked.fp16:
        if device.type != "cuda":
            raise ConfigError("--fp16 needs a CUDA GPU; on the CPU use --bf16 or neither")
        return torch.float16
    if not asked.bf16:
        return None
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError("this GPU has no bfloat16; use --fp16 or neither")
    if device.type == "cpu" and not has_fast_bfloat16():
        print(
            "NOTE: this processor has no products of bfloat16, so --bf16 is slower than without",
            file=sys.stderr,
        )
    return torch.bfloat16


def has_fast_bfloat16() -> bool:
    """Return whether the CPU multiplies bfloat16, as with AVX512-BF16, faster than float32."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Precision:
    """The number format of the forward and backward pass; weights always have 32 bits.

    Args:
        config: ``fp16``, ``bf16`` and the loss scale.
        device: where the model computes.
        world_size: number of processes, for the default scale window.

    Raises:
        ConfigError: the device cannot compute in that format.

    Example:
        >>> precision = Precision(RunConfig(bf16=True), torch.device("cpu"), world_size=1)
        >>> with precision.autocast():
        ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
        torch.bfloat16
    """

    def __init__(self, config: RunConfig, device: torch.device, world_size: int) -> None:
        self._device_type = device.type
        self._dtype = autocast_dtype(config, device)
        self._min_scale = config.min_loss_scale
        window = config.fp16_scale_window or max(
            1, FAIRSEQ_SCALE_WINDOW // world_size // config.update_freq[0]
        )
        # Without float16 it leaves losses, gradients and steps as they are.
        self.scaler = torch.amp.GradScaler(
            "cuda", config.fp16_init_scale, growth_interval=window, enabled=config.fp16
        )

    def autocast(self) -> AbstractContextManager:
        """Return the context of a forward pass."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, self._dtype)

    def step(self, optimizer: torch.optim.Optimizer, finite: Tensor | None) -> bool:
        """Make the optimiser's step; return False if gradients overflowed and it was left out.

        Args:
            optimizer: has the gradients.
            finite: bool, whether loss and gradients are numbers. Otherwise a fused optimiser
                leaves the weights, so that the update can be looked into. None: it does not ask.

        Raises:
            TrainingError: the loss scale fell below ``--min-loss-scale``.
        """
        if not self.scaler.is_enabled():
            if finite is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
                # Fused optimisers look at it where they compute: a GPU need not be waited for.
                optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
            optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= before:
            return True
        if self.scaler.get_scale() < self._min_scale:
            raise TrainingError(
                f"the loss scale fell below --min-loss-scale {self._min_scale:g}: the loss or the "
                "gradient is not finite at any scale; lower --lr, set --clip-norm or use --bf16"
            )
        return False

    @property
    def loss_scale(self) -> float | None:
        """The current loss scale; None without loss scaling."""
        return self.scaler.get_scale() if self.scaler.is_enabled() else None

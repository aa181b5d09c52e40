"""Computing in 16 bits: autocast, and loss scaling for float16."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from relu_nmt.errors import ConfigError, TrainingError
from relu_nmt.training.config import RunConfig

FAIRSEQ_SCALE_WINDOW = 2**14


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
        if config.fp16 and device.type != "cuda":
            raise ConfigError("--fp16 needs a CUDA GPU; on the CPU use --bf16 or neither")
        if config.bf16 and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise ConfigError("this GPU has no bfloat16; use --fp16 or neither")
        self._device_type = device.type
        self._dtype = {(True, False): torch.float16, (False, True): torch.bfloat16}.get(
            (config.fp16, config.bf16)
        )
        self._min_scale = config.min_loss_scale
        window = config.fp16_scale_window or max(
            1, FAIRSEQ_SCALE_WINDOW // world_size // config.update_freq[0]
        )
        self.scaler = (
            torch.amp.GradScaler("cuda", config.fp16_init_scale, growth_interval=window)
            if config.fp16
            else None
        )

    def autocast(self) -> AbstractContextManager:
        """Return the context of a forward pass."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, self._dtype)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss, scaled if the format needs it."""
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the loss scale out of the gradients."""
        if self.scaler:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Make the optimiser's step; return False if gradients overflowed and it was left out.

        Raises:
            TrainingError: the loss scale fell below ``--min-loss-scale``.
        """
        if not self.scaler:
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
        return self.scaler.get_scale() if self.scaler else None

    def state(self) -> dict[str, float]:
        """Return what a resumed run must know, as plain values."""
        return self.scaler.state_dict() if self.scaler else {}

    def load_state(self, state: dict[str, float]) -> None:
        """Go on from :meth:`state`; nothing happens if either run has no loss scaling."""
        if self.scaler and state:
            self.scaler.load_state_dict(state)

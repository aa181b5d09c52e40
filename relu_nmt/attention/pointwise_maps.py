"""The pointwise maps h that turn a score z into a weight h(z), with their derivatives."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.errors import ConfigError


@dataclass(frozen=True)
class PointwiseMap:
    """h, one of ``relu relu2 gelu softplus identity relu6 sigmoid power``.

    Kernels choose their code by ``name``; this is what they must agree with.

    Args:
        name: which map.
        power: the exponent p of ``power``, z^p; 1 otherwise.

    Raises:
        ConfigError: no such map.

    Example:
        >>> PointwiseMap("power", 3).value(torch.tensor(2.0)).item()
        8.0
    """

    name: str
    power: int = 1

    def __post_init__(self) -> None:
        if self.name not in _VALUES:
            raise ConfigError(f"no map '{self.name}'; choose one of {', '.join(_VALUES)}")

    @property
    def non_negative(self) -> bool:
        """Whether h is never negative."""
        return self.name in ("relu", "relu2", "relu6", "softplus", "sigmoid") or (
            self.name == "power" and self.power % 2 == 0
        )

    @property
    def rectifies(self) -> bool:
        """Whether h is exactly 0, with derivative 0, for all z <= 0."""
        return self.name in ("relu", "relu2", "relu6")

    def value(self, z: Tensor) -> Tensor:
        """Return h(z), of z's shape; powers at least in float32."""
        if self.name == "power":
            # A score of 41 overflows float16 when cubed, one of 20 in the fourth power.
            return z.to(torch.promote_types(z.dtype, torch.float32)).pow(self.power)
        return _VALUES[self.name](z)

    def derivative(self, z: Tensor) -> Tensor:
        """Return h'(z), of z's shape; 0 at the kinks of ReLU and ReLU6."""
        if self.name == "power":
            return self.power * z.pow(self.power - 1)
        return _DERIVATIVES[self.name](z)


def _relu2(z: Tensor) -> Tensor:
    return z.relu().square()


def _gelu_derivative(z: Tensor) -> Tensor:
    # d/dz z Phi(z) = Phi(z) + z phi(z), with Phi(z) = erfc(-z / sqrt 2) / 2
    density = (-0.5 * z * z).exp() * 0.3989422804014327
    return 0.5 * torch.erfc(-z * 0.7071067811865476) + z * density


def _sigmoid_derivative(z: Tensor) -> Tensor:
    p = z.sigmoid()
    return p * (1 - p)


_VALUES = {
    "relu": torch.relu,
    "relu2": _relu2,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "identity": lambda z: z,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "power": None,
}
_DERIVATIVES = {
    "relu": lambda z: (z > 0).to(z.dtype),
    "relu2": lambda z: 2 * z.relu(),
    "gelu": _gelu_derivative,
    "softplus": torch.sigmoid,
    "identity": torch.ones_like,
    "relu6": lambda z: ((z > 0) & (z < 6)).to(z.dtype),
    "sigmoid": _sigmoid_derivative,
}

"""The pointwise maps h that turn a score z into a weight h(z), with their derivatives.

Your own map is one entry, in any file::

    pointwise_maps.register("cube")(PointwiseMap("cube", cube, cube_derivative))

Then ``--user-module FILE --attention pointwise:h=cube`` uses it.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.config.registry import Registry


@dataclass(frozen=True)
class PointwiseMap:
    """A map h with its derivative, for every back end.

    Args:
        name: the registered name.
        value: returns h(z), of z's shape and dtype or wider.
        derivative: returns h'(z), of z's shape; 0 at kinks where h is 0.
        non_negative: h is never negative.
        rectifies: h is exactly 0, with derivative 0, for all z <= 0.
        kernels: returns two functions made with ``triton.jit``: ``value(z, POWER)`` and
            ``times_derivative(x, z, POWER)``, x h'(z), on float32 tiles; ``POWER`` is
            ``tl.constexpr``. ``None``: the Triton back end refuses the map.
        power: ``POWER`` of the Triton functions.
        degree: p if h(a z) = a^p h(z) for all a > 0; None if there is no such p.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    non_negative: bool = False
    rectifies: bool = False
    kernels: Callable[[], tuple[Any, Any]] | None = None
    power: int = 1
    degree: int | None = None


pointwise_maps: Registry[PointwiseMap] = Registry("pointwise map", {})


@functools.cache
def power_map(power: int) -> PointwiseMap:
    """Return z^power, computed in float32 or wider: in float16 the cube of 41 would overflow."""

    def value(z: Tensor) -> Tensor:
        return z.to(torch.promote_types(z.dtype, torch.float32)).pow(power)

    def derivative(z: Tensor) -> Tensor:
        return power * z.pow(power - 1)

    return PointwiseMap(
        "power", value, derivative, power % 2 == 0, False, _triton_functions("power"), power, power
    )


def _triton_functions(name: str) -> Callable[[], tuple[Any, Any]]:
    def functions() -> tuple[Any, Any]:
        module = importlib.import_module("relu_nmt.attention.kernels.triton_parts")
        return getattr(module, name), getattr(module, f"{name}_slope")

    return functions


def _gelu_derivative(z: Tensor) -> Tensor:
    # d/dz z Phi(z) = Phi(z) + z phi(z), with Phi(z) = erfc(-z / sqrt 2) / 2
    density = (-0.5 * z * z).exp() * 0.3989422804014327
    return 0.5 * torch.erfc(-z * 0.7071067811865476) + z * density


def _sigmoid_derivative(z: Tensor) -> Tensor:
    p = z.sigmoid()
    return p * (1 - p)


for _map in (
    PointwiseMap("relu", torch.relu, lambda z: (z > 0).to(z.dtype), True, True, degree=1),
    PointwiseMap(
        "relu2", lambda z: z.relu().square(), lambda z: 2 * z.relu(), True, True, degree=2
    ),
    PointwiseMap("relu6", F.relu6, lambda z: ((z > 0) & (z < 6)).to(z.dtype), True, True),
    PointwiseMap("softplus", F.softplus, torch.sigmoid, True),
    PointwiseMap("sigmoid", torch.sigmoid, _sigmoid_derivative, True),
    PointwiseMap("gelu", F.gelu, _gelu_derivative),
    PointwiseMap("identity", lambda z: z, torch.ones_like, degree=1),
):
    pointwise_maps.register(_map.name)(replace(_map, kernels=_triton_functions(_map.name)))

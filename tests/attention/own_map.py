"""A pointwise map from outside the package, (z + sqrt(z^2 + 4)) / 2, with its Triton functions."""

import triton
import triton.language as tl

from relu_nmt.attention.pointwise import PointwiseMap, pointwise_maps


def value(z):
    return (z + (z * z + 4).sqrt()) / 2


def derivative(z):
    return (1 + z / (z * z + 4).sqrt()) / 2


@triton.jit
def squareplus(z, POWER: tl.constexpr):
    return 0.5 * (z + tl.sqrt(z * z + 4.0))


@triton.jit
def squareplus_slope(x, z, POWER: tl.constexpr):
    return x * (0.5 + 0.5 * z / tl.sqrt(z * z + 4.0))


pointwise_maps.register("squareplus")(
    PointwiseMap(
        "squareplus",
        value,
        derivative,
        non_negative=True,
        kernels=lambda: (squareplus, squareplus_slope),
    )
)

"""A pointwise map of one's own, with what the Triton kernels need of it: max(z, 0)^3."""

import triton
import triton.language as tl

from relu_nmt.attention.pointwise import PointwiseMap, pointwise_maps


@triton.jit
def relu_cubed(z, POWER: tl.constexpr):
    """Return h(z)."""
    w = tl.maximum(z, 0.0)
    return w * w * w


@triton.jit
def relu_cubed_slope(x, z, POWER: tl.constexpr):
    """Return x h'(z)."""
    w = tl.maximum(z, 0.0)
    return x * (3.0 * w * w)


pointwise_maps.register("relu_cubed")(
    PointwiseMap(
        "relu_cubed",
        lambda z: z.relu().pow(3),
        lambda z: 3 * z.relu().square(),
        non_negative=True,
        rectifies=True,
        kernels=lambda: (relu_cubed, relu_cubed_slope),
    )
)

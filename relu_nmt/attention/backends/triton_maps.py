"""The pointwise maps and their derivatives as the Triton kernels compute them.

For each map ``name`` of :mod:`relu_nmt.attention.pointwise_maps`: ``name(z, POWER)``, h(z), and
``name_slope(x, z, POWER)``, x h'(z).
"""

# Arguments are tiles whose types Triton infers.
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def relu(z, POWER: tl.constexpr):
    return tl.maximum(z, 0.0)


@triton.jit
def relu_slope(x, z, POWER: tl.constexpr):
    return tl.where(z > 0, x, 0.0)


@triton.jit
def relu2(z, POWER: tl.constexpr):
    w = tl.maximum(z, 0.0)
    return w * w


@triton.jit
def relu2_slope(x, z, POWER: tl.constexpr):
    return x * (2.0 * tl.maximum(z, 0.0))


@triton.jit
def relu6(z, POWER: tl.constexpr):
    return tl.minimum(tl.maximum(z, 0.0), 6.0)


@triton.jit
def relu6_slope(x, z, POWER: tl.constexpr):
    return tl.where((z > 0) & (z < 6), x, 0.0)


@triton.jit
def gelu(z, POWER: tl.constexpr):
    return 0.5 * z * (1.0 + tl.math.erf(z * 0.7071067811865476))


@triton.jit
def gelu_slope(x, z, POWER: tl.constexpr):
    density = tl.exp(-0.5 * z * z) * 0.3989422804014327
    return x * (0.5 * (1.0 + tl.math.erf(z * 0.7071067811865476)) + z * density)


@triton.jit
def sigmoid(z, POWER: tl.constexpr):
    return tl.sigmoid(z)


@triton.jit
def sigmoid_slope(x, z, POWER: tl.constexpr):
    p = tl.sigmoid(z)
    return x * (p * (1.0 - p))


@triton.jit
def softplus(z, POWER: tl.constexpr):
    e = tl.exp(-tl.abs(z))
    # log(1 + e) for small e, where 1 + e loses what e is
    series = e * (1.0 - e * (0.5 - e * (0.3333333333333333 - e * 0.25)))
    return tl.maximum(z, 0.0) + tl.where(e < 0.01, series, tl.log(1.0 + e))


@triton.jit
def softplus_slope(x, z, POWER: tl.constexpr):
    return x * tl.sigmoid(z)


@triton.jit
def identity(z, POWER: tl.constexpr):
    return z


@triton.jit
def identity_slope(x, z, POWER: tl.constexpr):
    return x


@triton.jit
def power(z, POWER: tl.constexpr):
    w = z
    for _ in tl.static_range(POWER - 1):
        w = w * z
    return w


@triton.jit
def power_slope(x, z, POWER: tl.constexpr):
    y = x * POWER
    for _ in tl.static_range(POWER - 1):
        y = y * z
    return y

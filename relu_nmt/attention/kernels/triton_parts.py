"""Parts of the Triton kernels of pointwise attention: tiles, biases, masks, dropout, maps.

For each map ``name`` of :mod:`relu_nmt.attention.pointwise` there are ``name(z, POWER)``,
h(z), and ``name_slope(x, z, POWER)``, x h'(z).

Names: ``z`` scores, ``w`` weights h(z), ``rows`` queries, ``columns`` keys, ``c`` the row scale.
"""

# Arguments are tiles, pointers and numbers whose types Triton infers.
# ruff: noqa: ANN001, ANN201, D103

import os

import triton
import triton.language as tl

TINY = tl.constexpr(1.1754943508222875e-38)
"""The smallest normal float32."""
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
DROPOUT_BITS = 24
"""Bits of the random numbers. A weight is dropped if its number is below a threshold."""


@triton.jit
def place_of_program(length, heads, SIZE: tl.constexpr):
    """Return block, number of blocks, head among all samples, sample, and head in the sample."""
    blocks = tl.cdiv(length, SIZE)
    head = tl.program_id(0) // blocks
    sample = tl.cast(head // heads, tl.int64)
    inner = tl.cast(head % heads, tl.int64)
    return tl.program_id(0) % blocks, blocks, head, sample, inner


@triton.jit
def matmul(a, b, acc=None):
    """Return a b + acc, as exact as float32: tensor cores take three products of TF32."""
    if INTERPRETED:  # the interpreter multiplies bfloat16 as if it were integers
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="tf32x3")


@triton.jit
def tile(
    matrix, start, stride, real, SIZE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Load rows start .. start + SIZE of a matrix, padded with 0 in width. 0 where not real."""
    columns = tl.arange(0, PADDED)[None, :]
    # A long sequence times a wide row exceeds 32 bits.
    pointers = matrix + tl.cast(start, tl.int64) * stride
    pointers = pointers + tl.arange(0, SIZE)[:, None] * stride + columns
    if MASKED:
        tile = tl.load(pointers, mask=real[:, None] & (columns < WIDTH), other=0.0)
    elif WIDTH != PADDED:
        tile = tl.load(pointers, mask=columns < WIDTH, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def store_tile(
    matrix, tile, start, stride, limit, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """Store the rows below ``limit`` of a tile."""
    columns = tl.arange(0, PADDED)[None, :]
    rows = tl.arange(0, SIZE)[:, None]
    pointers = matrix + tl.cast(start, tl.int64) * stride + rows * stride + columns
    mask = (start + rows < limit) & (columns < WIDTH)
    tl.store(pointers, tile.to(matrix.dtype.element_ty), mask=mask)


@triton.jit
def dropped(w, rows, columns, head, seed, threshold, keep_scale):
    """Drop entries of w by a random number that depends on head, row and column alone."""
    none = tl.zeros_like(rows + columns)
    bits, _, _, _ = tl.philox(seed, none + rows, none + columns, none + head, none, 7)
    return tl.where((bits >> 8).to(tl.int32) >= threshold, w * keep_scale, 0.0)


@triton.jit
def score_bias(bias, query_codes, key_codes, visible):
    """Return the bias of each score, 0 where it is not visible. ``bias`` points at code 0."""
    return tl.load(bias + (query_codes - key_codes), mask=visible, other=0.0)


@triton.jit
def seen_keys(key_mask, columns, num_keys, HAS_MASK: tl.constexpr):
    """Return a mask of the keys that exist and are not padding."""
    real = columns < num_keys
    if HAS_MASK:
        real = real & (tl.load(key_mask + columns, mask=real, other=0) != 0)
    return real


@triton.jit
def key_range(
    key_bounds, sample, first_row, num_queries, num_keys, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Return two ends: of the blocks of keys that need no mask, and of all blocks of keys."""
    plain, end = num_keys, num_keys
    if HAS_MASK:  # keys before the first hidden one need no mask
        plain = tl.load(key_bounds + 2 * sample)
        end = tl.load(key_bounds + 2 * sample + 1)
        plain = tl.minimum(plain, end)
    if CAUSAL:  # nor do keys that the first row of the block sees
        seen_by_first = first_row + num_keys - num_queries + 1
        plain = tl.minimum(plain, seen_by_first)
        end = tl.minimum(end, seen_by_first + ROWS - 1)
    # Round down to whole blocks. The rest gets the mask.
    return plain // COLUMNS * COLUMNS, end


@triton.jit
def score_gradient(
    z, dw, c, grad_total, grad_logs, VALUE: tl.constexpr, SLOPE: tl.constexpr, POWER: tl.constexpr,
    TOTAL_GRAD: tl.constexpr, LOGS_GRAD: tl.constexpr, SCALE_FIRST: tl.constexpr,
):  # fmt: skip
    """Return dz from the gradient dw of the weights. c and both gradients are broadcast to z."""
    if SCALE_FIRST:
        dw = dw * c
    if TOTAL_GRAD:
        dw = dw + grad_total
    if LOGS_GRAD:
        # of w log max(w, TINY), as the reference computes it
        w = VALUE(z, POWER)
        dw = dw + grad_logs * (tl.log(tl.maximum(w, TINY)) + tl.where(w >= TINY, 1.0, 0.0))
    return SLOPE(dw, z, POWER)


@triton.jit
def row_range(
    key_bounds, sample, first_column, num_queries, num_keys, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Return ``low, diagonal, high, plain, tail``: first blocks and numbers of blocks of rows.

    From ``low`` on, ``diagonal`` blocks need a mask. From ``high`` on, ``plain`` blocks need none.
    ``tail`` is 1 if the last block is not full and not on the diagonal: it needs a mask, too.
    """
    # Blocks of rows, and how many of them are full.
    blocks = tl.cdiv(num_queries, ROWS)
    full = num_queries // ROWS
    low = num_queries * 0
    high = low
    if CAUSAL:  # rows before ``low`` see none of the columns, rows from ``high`` on see all
        shift = num_keys - num_queries
        low = tl.maximum(first_column - shift, 0) // ROWS
        high = tl.minimum(tl.cdiv(tl.maximum(first_column + COLUMNS - 1 - shift, 0), ROWS), blocks)
    diagonal = high - low
    # Count full blocks behind the diagonal, and a partial last one.
    plain = tl.maximum(full - high, 0)
    tail = tl.minimum(blocks - full, tl.maximum(blocks - high, 0))
    if HAS_MASK:  # no row sees columns behind the last visible key
        alive = tl.where(first_column < tl.load(key_bounds + 2 * sample + 1), 1, 0)
        diagonal, plain, tail = diagonal * alive, plain * alive, tail * alive
    return low, diagonal, high, plain, tail


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
def rectified_power(z, POWER: tl.constexpr):
    return power(tl.maximum(z, 0.0), POWER)


@triton.jit
def rectified_power_slope(x, z, POWER: tl.constexpr):
    return power_slope(x, tl.maximum(z, 0.0), POWER)


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
    # log(1 + e) for small e, where 1 + e would round
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

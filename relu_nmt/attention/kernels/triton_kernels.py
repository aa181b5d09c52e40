"""Triton kernels of pointwise attention: forward, gradients by rows and by columns.

Only sums couple the keys of a row, so that no running maximum or rescaling is needed. One query
block (or, for the gradients of keys and values, one key block) stays on the chip and the other side
streams past it. Blocks that need no mask run in a loop of their own.

Names: ``z`` scores, ``w`` weights h(z), ``rows`` queries, ``columns`` keys, ``c`` the row scale.
Sums are float32 throughout.

Reference: the division into row and column passes comes from Dao 2023, "FlashAttention-2".
"""

# Arguments are pointers and numbers whose types Triton infers. triton.py gives their shapes.
# ruff: noqa: ANN001, ANN201, ANN202

import triton
import triton.language as tl

from relu_nmt.attention.kernels.triton_parts import (
    TINY,
    dropped,
    key_range,
    matmul,
    place_of_program,
    row_range,
    score_bias,
    score_gradient,
    seen_keys,
    store_tile,
    tile,
)

# A change of these numbers must not compile a kernel again.
_CHANGING = ["seed", "threshold", "num_queries", "num_keys", "zero", "bias_stride"]


@triton.jit
def _forward_step(
    acc, total, logs, nonzero, largest, q, rows, c, k, v, key_mask, bias, query_codes, key_codes,
    start, k_stride, v_stride, head, num_queries, num_keys, seed, threshold, keep_scale,
    VALUE: tl.constexpr, SLOPE: tl.constexpr, POWER: tl.constexpr, HAS_BIAS: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, MASKED: tl.constexpr, SUMS: tl.constexpr,
    LOGS: tl.constexpr, TELEMETRY: tl.constexpr, DROPOUT: tl.constexpr, SCALE_FIRST: tl.constexpr,
    SKIP: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns = start + tl.arange(0, COLUMNS)
    real_keys = columns < num_keys
    if MASKED:
        real_keys = seen_keys(key_mask, columns, num_keys, HAS_MASK)
    k_tile = tile(k, start, k_stride, real_keys, COLUMNS, WIDTH, PADDED, MASKED)
    v_tile = tile(v, start, v_stride, real_keys, COLUMNS, VALUE_WIDTH, VALUE_PADDED, MASKED)
    z = matmul(q, tl.trans(k_tile))  # [ROWS, COLUMNS]
    visible = real_keys[None, :]
    if MASKED and CAUSAL:
        visible = visible & (columns[None, :] <= rows[:, None] + (num_keys - num_queries))
    if HAS_BIAS:
        present = visible & (rows < num_queries)[:, None]
        codes = tl.load(key_codes + columns, mask=real_keys, other=0)
        z += score_bias(bias, query_codes[:, None], codes[None, :], present)
    if MASKED:
        z = tl.where(visible, z, 0.0)
    needed = True
    if SKIP:
        needed = tl.max(tl.max(z, 1), 0) > 0
    if needed:
        # Apply the map, and add to the sums of the rows.
        w = VALUE(z, POWER)
        if MASKED:
            w = tl.where(visible, w, 0.0)  # softplus(0) and sigmoid(0) are not 0
        if SUMS:
            total += tl.sum(w, 1)
        if LOGS:
            logs += tl.sum(w * tl.log(tl.maximum(w, TINY)), 1)
        if TELEMETRY:
            nonzero += tl.sum((w != 0).to(tl.float32), 1)
            largest = tl.maximum(largest, tl.max(tl.abs(w), 1))
        if DROPOUT:
            w = dropped(
                w, rows[:, None], columns[None, :], head, seed, threshold, keep_scale
            )  # fmt: skip
        if SCALE_FIRST:
            w = w * c[:, None]
        acc = matmul(w.to(v_tile.dtype), v_tile, acc)
    return acc, total, logs, nonzero, largest


@triton.jit(do_not_specialize=_CHANGING)
def forward_kernel(
    q, k, v, scale, key_mask, key_bounds, bias, query_codes, key_codes, out, total_out, logs_out,
    nonzero_out, largest_out, q_batch, q_head, q_stride, k_batch, k_head, k_stride, v_batch, v_head,
    v_stride, out_batch, out_head, out_stride, scale_batch, scale_stride, mask_batch, zero,
    bias_stride, query_code_batch, key_code_batch, seed, threshold, keep_scale, heads, num_queries,
    num_keys, VALUE: tl.constexpr, SLOPE: tl.constexpr, POWER: tl.constexpr, HAS_BIAS: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, SUMS: tl.constexpr, LOGS: tl.constexpr,
    TELEMETRY: tl.constexpr, DROPOUT: tl.constexpr, SCALE_FIRST: tl.constexpr, SKIP: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One block of queries: its outputs and the sums over its rows."""
    # Find the head and block of this program. The last rows start first: with a causal mask they
    # take longest.
    block, blocks, head, sample, inner = place_of_program(num_queries, heads, ROWS)
    first = (blocks - 1 - block) * ROWS
    rows = first + tl.arange(0, ROWS)
    real = rows < num_queries
    q_tile = tile(
        q + sample * q_batch + inner * q_head, first, q_stride, real, ROWS, WIDTH, PADDED, True
    )  # fmt: skip
    k += sample * k_batch + inner * k_head
    v += sample * v_batch + inner * v_head
    if HAS_MASK:
        key_mask += sample * mask_batch
    # Load the scale of the rows, and find the keys they see.
    c = tl.load(scale + sample * scale_batch + rows * scale_stride, mask=real, other=0.0)
    plain, end = key_range(
        key_bounds, sample, first, num_queries, num_keys, ROWS, COLUMNS, CAUSAL, HAS_MASK
    )
    query_code = rows
    if HAS_BIAS:
        bias += inner * bias_stride + zero
        query_code = tl.load(query_codes + sample * query_code_batch + rows, mask=real, other=0)
        key_codes += sample * key_code_batch
    # Stream the keys past the queries.
    acc = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    logs = tl.zeros([ROWS], tl.float32)
    nonzero = tl.zeros([ROWS], tl.float32)
    largest = tl.zeros([ROWS], tl.float32)
    for MASKED in tl.static_range(2):  # first the blocks that need no mask
        begin = MASKED * plain
        stop = plain + MASKED * (end - plain)
        # Two pipelined loops in one kernel make ptxas wait after every product (its C7515).
        for start in tl.range(begin, stop, COLUMNS, num_stages=1 if MASKED else None):
            acc, total, logs, nonzero, largest = _forward_step(
                acc, total, logs, nonzero, largest, q_tile, rows, c, k, v, key_mask, bias,
                query_code, key_codes, start, k_stride, v_stride, head, num_queries, num_keys,
                seed, threshold, keep_scale, VALUE, SLOPE, POWER, HAS_BIAS, CAUSAL, HAS_MASK,
                MASKED, SUMS, LOGS, TELEMETRY, DROPOUT, SCALE_FIRST, SKIP, WIDTH, VALUE_WIDTH,
                PADDED, VALUE_PADDED, COLUMNS,
            )  # fmt: skip
    if not SCALE_FIRST:
        acc = acc * c[:, None]
    out += sample * out_batch + inner * out_head
    store_tile(out, acc, first, out_stride, num_queries, ROWS, VALUE_WIDTH, VALUE_PADDED)
    row_offsets = tl.cast(head, tl.int64) * num_queries + rows
    if SUMS:
        tl.store(total_out + row_offsets, total, mask=real)
    if LOGS:
        tl.store(logs_out + row_offsets, logs, mask=real)
    if TELEMETRY:
        tl.store(nonzero_out + row_offsets, nonzero, mask=real)
        tl.store(largest_out + row_offsets, largest, mask=real)


@triton.jit
def _rows_step(
    dq, q, do, rows, c, grad_total, grad_logs, k, v, key_mask, bias, query_codes, key_codes,
    grad_bias, start, k_stride, v_stride, head, num_queries, num_keys, seed, threshold, keep_scale,
    VALUE: tl.constexpr, SLOPE: tl.constexpr, POWER: tl.constexpr, HAS_BIAS: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, MASKED: tl.constexpr, BIAS_GRAD: tl.constexpr,
    TOTAL_GRAD: tl.constexpr, LOGS_GRAD: tl.constexpr, DROPOUT: tl.constexpr,
    SCALE_FIRST: tl.constexpr, SKIP: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns = start + tl.arange(0, COLUMNS)
    real_keys = columns < num_keys
    if MASKED:
        real_keys = seen_keys(key_mask, columns, num_keys, HAS_MASK)
    k_tile = tile(k, start, k_stride, real_keys, COLUMNS, WIDTH, PADDED, MASKED)
    v_tile = tile(v, start, v_stride, real_keys, COLUMNS, VALUE_WIDTH, VALUE_PADDED, MASKED)
    z = matmul(q, tl.trans(k_tile))  # [ROWS, COLUMNS]
    visible = real_keys[None, :]
    if MASKED and CAUSAL:
        visible = visible & (columns[None, :] <= rows[:, None] + (num_keys - num_queries))
    if HAS_BIAS:
        present = visible & (rows < num_queries)[:, None]
        codes = tl.load(key_codes + columns, mask=real_keys, other=0)
        z += score_bias(bias, query_codes[:, None], codes[None, :], present)
    if MASKED:
        z = tl.where(visible, z, 0.0)
    needed = True
    if SKIP:
        needed = tl.max(tl.max(z, 1), 0) > 0
    if needed:
        # Compute the gradient of the weights, then of the scores.
        dw = matmul(do, tl.trans(v_tile))  # [ROWS, COLUMNS]
        if DROPOUT:
            dw = dropped(
                dw, rows[:, None], columns[None, :], head, seed, threshold, keep_scale
            )  # fmt: skip
        dz = score_gradient(
            z, dw, c[:, None], grad_total[:, None], grad_logs[:, None], VALUE, SLOPE, POWER,
            TOTAL_GRAD, LOGS_GRAD, SCALE_FIRST,
        )  # fmt: skip
        if MASKED:
            dz = tl.where(visible, dz, 0.0)
        # Add to the gradients of the bias and of the queries.
        if BIAS_GRAD:
            gradient = dz
            if not SCALE_FIRST:
                gradient = dz * c[:, None]
            targets = grad_bias + (query_codes[:, None] - codes[None, :])
            tl.atomic_add(targets, gradient, mask=present, sem="relaxed")
        dq = matmul(dz.to(k_tile.dtype), k_tile, dq)
    return dq


@triton.jit(do_not_specialize=_CHANGING)
def rows_kernel(
    q, k, v, do, scale, key_mask, key_bounds, bias, query_codes, key_codes, grad_total, grad_logs,
    dq, grad_bias, q_batch, q_head, q_stride, k_batch, k_head, k_stride, v_batch, v_head, v_stride,
    do_batch, do_head, do_stride, dq_batch, dq_head, dq_stride, scale_batch, scale_stride,
    mask_batch, zero, bias_stride, query_code_batch, key_code_batch, seed, threshold, keep_scale,
    heads, num_queries, num_keys, VALUE: tl.constexpr, SLOPE: tl.constexpr, POWER: tl.constexpr,
    HAS_BIAS: tl.constexpr, CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, BIAS_GRAD: tl.constexpr,
    TOTAL_GRAD: tl.constexpr, LOGS_GRAD: tl.constexpr, DROPOUT: tl.constexpr,
    SCALE_FIRST: tl.constexpr, SKIP: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One block of queries: their gradient."""
    # Find the head and block of this program, and load its queries.
    block, blocks, head, sample, inner = place_of_program(num_queries, heads, ROWS)
    first = (blocks - 1 - block) * ROWS
    rows = first + tl.arange(0, ROWS)
    real = rows < num_queries
    q_tile = tile(
        q + sample * q_batch + inner * q_head, first, q_stride, real, ROWS, WIDTH, PADDED, True
    )  # fmt: skip
    do_tile = tile(
        do + sample * do_batch + inner * do_head, first, do_stride, real, ROWS, VALUE_WIDTH,
        VALUE_PADDED, True,
    )  # fmt: skip
    k += sample * k_batch + inner * k_head
    v += sample * v_batch + inner * v_head
    if HAS_MASK:
        key_mask += sample * mask_batch
    c = tl.load(scale + sample * scale_batch + rows * scale_stride, mask=real, other=0.0)
    # Load the gradients of the row sums, 0 where unused.
    row_offsets = tl.cast(head, tl.int64) * num_queries + rows
    gt = tl.zeros([ROWS], tl.float32)
    gl = tl.zeros([ROWS], tl.float32)
    if TOTAL_GRAD:
        gt = tl.load(grad_total + row_offsets, mask=real, other=0.0)
    if LOGS_GRAD:
        gl = tl.load(grad_logs + row_offsets, mask=real, other=0.0)
    plain, end = key_range(
        key_bounds, sample, first, num_queries, num_keys, ROWS, COLUMNS, CAUSAL, HAS_MASK
    )
    query_code = rows
    if HAS_BIAS:
        bias += inner * bias_stride + zero
        query_code = tl.load(query_codes + sample * query_code_batch + rows, mask=real, other=0)
        key_codes += sample * key_code_batch
    if BIAS_GRAD:
        grad_bias += tl.cast(head, tl.int64) * bias_stride + zero
    # Stream the keys past the queries.
    acc = tl.zeros([ROWS, PADDED], tl.float32)
    for MASKED in tl.static_range(2):  # first the blocks that need no mask
        begin = MASKED * plain
        stop = plain + MASKED * (end - plain)
        # Two pipelined loops in one kernel make ptxas wait after every product (its C7515).
        for start in tl.range(begin, stop, COLUMNS, num_stages=1 if MASKED else None):
            acc = _rows_step(
                acc, q_tile, do_tile, rows, c, gt, gl, k, v, key_mask, bias, query_code,
                key_codes, grad_bias, start, k_stride, v_stride, head, num_queries, num_keys,
                seed, threshold, keep_scale, VALUE, SLOPE, POWER, HAS_BIAS, CAUSAL, HAS_MASK,
                MASKED, BIAS_GRAD, TOTAL_GRAD, LOGS_GRAD, DROPOUT, SCALE_FIRST, SKIP, WIDTH,
                VALUE_WIDTH, PADDED, VALUE_PADDED, COLUMNS,
            )  # fmt: skip
    if not SCALE_FIRST:
        acc = acc * c[:, None]
    dq += sample * dq_batch + inner * dq_head
    store_tile(dq, acc, first, dq_stride, num_queries, ROWS, WIDTH, PADDED)


@triton.jit
def _columns_step(
    dk, dv, k, v, columns, real_keys, bias, query_codes, key_code, q, do, c, scale, grad_total,
    grad_logs, dq, start, q_stride, do_stride, scale_stride, head, num_queries, num_keys, seed,
    threshold, keep_scale, VALUE: tl.constexpr, SLOPE: tl.constexpr, POWER: tl.constexpr,
    HAS_BIAS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, TOTAL_GRAD: tl.constexpr,
    LOGS_GRAD: tl.constexpr, DROPOUT: tl.constexpr, SCALE_FIRST: tl.constexpr, SKIP: tl.constexpr,
    FUSED: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    # Load a block of queries with the gradients of their outputs and sums.
    rows = start + tl.arange(0, ROWS)
    real = rows < num_queries
    q_tile = tile(q, start, q_stride, real, ROWS, WIDTH, PADDED, MASKED)
    do_tile = tile(do, start, do_stride, real, ROWS, VALUE_WIDTH, VALUE_PADDED, MASKED)
    gt = tl.zeros([ROWS], tl.float32)
    gl = tl.zeros([ROWS], tl.float32)
    row_scale = tl.zeros([ROWS], tl.float32)
    if SCALE_FIRST:
        row_scale = tl.load(scale + rows * scale_stride, mask=real, other=0.0)
    if TOTAL_GRAD:
        gt = tl.load(grad_total + rows, mask=real, other=0.0)
    if LOGS_GRAD:
        gl = tl.load(grad_logs + rows, mask=real, other=0.0)
    z = matmul(k, tl.trans(q_tile))  # [COLUMNS, ROWS]
    visible = real[None, :]
    if MASKED and CAUSAL:
        visible = visible & (columns[:, None] <= rows[None, :] + (num_keys - num_queries))
    if HAS_BIAS:
        codes = tl.load(query_codes + rows, mask=real, other=0)
        present = visible & real_keys[:, None] & real[None, :]
        z += score_bias(bias, codes[None, :], key_code[:, None], present)
    if MASKED:
        z = tl.where(visible, z, 0.0)
    needed = True
    if SKIP:
        needed = tl.max(tl.max(z, 1), 0) > 0
    if needed:
        # Compute the weights, their gradient, and the scores' gradient.
        w = VALUE(z, POWER)
        dw = matmul(v, tl.trans(do_tile))  # [COLUMNS, ROWS]
        if DROPOUT:
            w = dropped(w, rows[None, :], columns[:, None], head, seed, threshold, keep_scale)
            dw = dropped(dw, rows[None, :], columns[:, None], head, seed, threshold, keep_scale)
        dz = score_gradient(
            z, dw, row_scale[None, :], gt[None, :], gl[None, :], VALUE, SLOPE, POWER, TOTAL_GRAD,
            LOGS_GRAD, SCALE_FIRST,
        )  # fmt: skip
        if SCALE_FIRST:
            w = w * row_scale[None, :]
        if MASKED:
            w = tl.where(visible, w, 0.0)
            dz = tl.where(visible, dz, 0.0)
        # Add to the gradients of values and keys. If FUSED, also to the gradient of the queries.
        dv = matmul(w.to(do_tile.dtype), do_tile, dv)
        dz_tile = dz.to(q_tile.dtype)
        dk = matmul(dz_tile, q_tile, dk)
        if FUSED:
            dq_tile = matmul(tl.trans(dz_tile), k)
            if not SCALE_FIRST:
                dq_tile = dq_tile * c
            widths = tl.arange(0, PADDED)[None, :]
            targets = dq + tl.cast(start, tl.int64) * WIDTH
            targets = targets + tl.arange(0, ROWS)[:, None] * WIDTH + widths
            tl.atomic_add(targets, dq_tile, mask=real[:, None] & (widths < WIDTH), sem="relaxed")
    return dk, dv


@triton.jit(do_not_specialize=_CHANGING)
def columns_kernel(
    q, k, v, do, scale, key_mask, key_bounds, bias, query_codes, key_codes, grad_total, grad_logs,
    dq, dk, dv, q_batch, q_head, q_stride, k_batch, k_head, k_stride, v_batch, v_head, v_stride,
    do_batch, do_head, do_stride, dk_batch, dk_head, dk_stride, dv_batch, dv_head, dv_stride,
    scale_batch, scale_stride, mask_batch, zero, bias_stride, query_code_batch, key_code_batch,
    seed, threshold, keep_scale, heads, num_queries, num_keys, VALUE: tl.constexpr,
    SLOPE: tl.constexpr, POWER: tl.constexpr, HAS_BIAS: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_MASK: tl.constexpr, TOTAL_GRAD: tl.constexpr, LOGS_GRAD: tl.constexpr,
    DROPOUT: tl.constexpr, SCALE_FIRST: tl.constexpr, SKIP: tl.constexpr, FUSED: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One block of keys: the gradients of keys and values. If FUSED, also a share of the queries'.

    Hidden keys and values are read as 0 and their gradients are not stored, so that the stream of
    queries needs no mask for them.
    """
    # Find the head and block of this program, and load its keys and values.
    block, _, head, sample, inner = place_of_program(num_keys, heads, COLUMNS)
    first = block * COLUMNS
    columns = first + tl.arange(0, COLUMNS)
    if HAS_MASK:
        key_mask += sample * mask_batch
    real_keys = seen_keys(key_mask, columns, num_keys, HAS_MASK)
    k_tile = tile(
        k + sample * k_batch + inner * k_head, first, k_stride, real_keys, COLUMNS, WIDTH, PADDED,
        True,
    )  # fmt: skip
    v_tile = tile(
        v + sample * v_batch + inner * v_head, first, v_stride, real_keys, COLUMNS, VALUE_WIDTH,
        VALUE_PADDED, True,
    )  # fmt: skip
    # Move the pointers to this head's queries, gradients and sums.
    q += sample * q_batch + inner * q_head
    do += sample * do_batch + inner * do_head
    scale += sample * scale_batch
    row_offset = tl.cast(head, tl.int64) * num_queries
    if TOTAL_GRAD:
        grad_total += row_offset
    if LOGS_GRAD:
        grad_logs += row_offset
    if FUSED:
        dq += row_offset * WIDTH
    key_code = columns
    if HAS_BIAS:
        bias += inner * bias_stride + zero
        query_codes += sample * query_code_batch
        key_code = tl.load(key_codes + sample * key_code_batch + columns, mask=real_keys, other=0)
    c = tl.load(scale)
    low, diagonal, high, plain, tail = row_range(
        key_bounds, sample, first, num_queries, num_keys, ROWS, COLUMNS, CAUSAL, HAS_MASK
    )
    # Stream the queries past the keys.
    dk_tile = tl.zeros([COLUMNS, PADDED], tl.float32)
    dv_tile = tl.zeros([COLUMNS, VALUE_PADDED], tl.float32)
    for MASKED in tl.static_range(2):
        count = plain + MASKED * (diagonal + tail - plain)
        for step in tl.range(0, count, num_stages=1 if MASKED else None):
            start = (high + step) * ROWS
            if MASKED:
                # Take the diagonal blocks, then the last partial one.
                start = tl.where(step < diagonal, low + step, num_queries // ROWS) * ROWS
            dk_tile, dv_tile = _columns_step(
                dk_tile, dv_tile, k_tile, v_tile, columns, real_keys, bias, query_codes, key_code,
                q, do, c, scale, grad_total, grad_logs, dq, start, q_stride, do_stride,
                scale_stride, head, num_queries, num_keys, seed, threshold, keep_scale, VALUE,
                SLOPE, POWER, HAS_BIAS, CAUSAL, MASKED, TOTAL_GRAD, LOGS_GRAD, DROPOUT,
                SCALE_FIRST, SKIP, FUSED, WIDTH, VALUE_WIDTH, PADDED, VALUE_PADDED, ROWS,
            )  # fmt: skip
    # Scale once at the end where all rows share the factor.
    if not SCALE_FIRST:
        dk_tile = dk_tile * c
        dv_tile = dv_tile * c
    # Store the gradients, 0 for hidden keys.
    dk += sample * dk_batch + inner * dk_head
    dv += sample * dv_batch + inner * dv_head
    dk_tile = tl.where(real_keys[:, None], dk_tile, 0.0)
    dv_tile = tl.where(real_keys[:, None], dv_tile, 0.0)
    store_tile(dk, dk_tile, first, dk_stride, num_keys, COLUMNS, WIDTH, PADDED)
    store_tile(dv, dv_tile, first, dv_stride, num_keys, COLUMNS, VALUE_WIDTH, VALUE_PADDED)

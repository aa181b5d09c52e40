"""Pointwise attention by Triton kernels on a GPU, forward and backward in memory O(n d).

``TRITON_INTERPRET=1`` runs the kernels on the CPU, slowly, to test them.
"""

import contextlib
import importlib.util
import os
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relu_nmt.attention.base import AttentionOutput, AttentionProblem
from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.kernels.blockwise import refuse_second_derivatives, run_autograd
from relu_nmt.attention.kernels.tuned import INTERPRETED, BlockSizes, candidates, choose
from relu_nmt.attention.masks import TreeVisibility
from relu_nmt.attention.score_bias import ScoreBias
from relu_nmt.errors import ConfigError, MissingExtraError

MAX_WIDTH = 256
"""The widest head whose blocks fit into the shared memory of a GPU."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_MIN_CAPABILITY = (8, 0)
_MIN_PADDED = 16  # the narrowest operand of a tensor core
_SUMS = ("total_out", "logs_out", "nonzero_out", "largest_out")  # the kernels' names of RowSums
_DROPOUT_LEVELS = 1 << 24  # as DROPOUT_BITS of the kernels


def supports(problem: AttentionProblem) -> bool:
    """Return True if the kernels can solve the problem here. They never return the weights."""
    q, k, v = problem.q, problem.k, problem.v
    is_tree = isinstance(problem.visibility, TreeVisibility)
    if problem.need.weights or problem.attention.map.kernels is None or is_tree:
        return False
    learned = problem.bias is not None and problem.bias.table.requires_grad
    if learned and not _any_order():  # the gradient of the table is added up in any order
        return False
    if q.device.type == "cuda":
        if torch.cuda.get_device_capability(q.device) < _MIN_CAPABILITY or _interpreted():
            return False
    elif not _interpreted():
        return False
    # Look for the package last: it takes as long as a decoding step of a small model.
    if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        return False
    width = max(q.size(3) + problem.attention.shift_channels, v.size(3))
    return (
        all(x.dim() == 4 and x.dtype in _DTYPES and x.numel() > 0 for x in (q, k, v))
        and width <= MAX_WIDTH
        and not (problem.visibility.hides_later and q.size(2) > k.size(2))
    )


def require(device: torch.device | None) -> None:
    """Raise an error if Triton is not installed or does not run on a device."""
    if importlib.util.find_spec("triton") is None:
        raise MissingExtraError(
            "--attention-backend triton: Triton is not installed; "
            "pip install 'relu-nmt[triton]', or choose blockwise"
        )
    if device is None or device.type == "cuda" or _interpreted():
        return
    raise ConfigError(
        f"--attention-backend triton needs a GPU, but the model is on {device.type}; "
        "choose auto or blockwise"
    )


def pointwise(problem: AttentionProblem) -> AttentionOutput:
    """Return the outputs of pointwise attention and the sums over its rows, if wanted."""
    # Prepare the inputs of both directions besides q, k and v in the dtypes of the kernels.
    bias = _prepared(problem.bias)
    scale = problem.row_scale.detach().float()
    return run_autograd(
        _PointwiseAttention, replace(problem, bias=bias, row_scale=scale), num_seeds=1 << 31
    )


def _arguments(
    problem: AttentionProblem,
    seed: int,
    tokens: dict[str, Tensor],
    further: dict[str, Tensor | None],
) -> dict[str, Any]:
    """Return the arguments and constants that all kernels have, and its tensors, by name.

    ``tokens`` are q, k, v and the other tensors [B, H, N, d] of the kernel, which get strides.
    ``further`` are its tensors without strides.
    """
    q, k, v = tokens["q"], tokens["k"], tokens["v"]
    score_map = problem.attention.map
    value, slope = score_map.kernels()
    scale = problem.row_scale  # c, [B or 1, 1, Nq or 1]
    mask = problem.visibility.key_mask
    if mask is not None:  # of visible keys, [B, Nk]
        mask = mask.contiguous().view(torch.uint8)
    # Drop a weight if its random number of 24 bits is below this. 0: no dropout.
    threshold = round(problem.dropout * _DROPOUT_LEVELS)
    arguments: dict[str, Any] = {
        **tokens,
        **further,
        "scale": scale,
        "scale_batch": _stride(scale, 0),
        "scale_stride": _stride(scale, 2),
        "key_mask": mask,
        "mask_batch": _stride(mask, 0),
        "key_bounds": problem.visibility.key_bounds,
        "seed": seed,
        "threshold": threshold,
        "keep_scale": _DROPOUT_LEVELS / (_DROPOUT_LEVELS - threshold),
        "heads": q.size(1),
        "num_queries": q.size(2),
        "num_keys": k.size(2),
        **dict.fromkeys(("bias", "query_codes", "key_codes")),
        **dict.fromkeys(("bias_stride", "zero", "query_code_batch", "key_code_batch"), 0),
        "VALUE": value,
        "SLOPE": slope,
        "POWER": score_map.power,
        "HAS_BIAS": problem.bias is not None,
        "CAUSAL": problem.visibility.hides_later,
        "HAS_MASK": mask is not None,
        "DROPOUT": threshold > 0,
        "WIDTH": q.size(3),
        "VALUE_WIDTH": v.size(3),
        "PADDED": _padded(q.size(3)),
        "VALUE_PADDED": _padded(v.size(3)),
    }
    for name, x in tokens.items():
        for axis, stride in zip(("batch", "head", "stride"), x.stride(), strict=False):
            arguments[f"{name}_{axis}"] = stride
    bias = problem.bias
    if bias is not None:
        arguments |= {"bias": bias.table, "bias_stride": bias.table.size(1), "zero": bias.zero}
        arguments |= {"query_codes": bias.query_codes, "key_codes": bias.key_codes}
        arguments["query_code_batch"] = _stride(bias.query_codes, 0)
        arguments["key_code_batch"] = _stride(bias.key_codes, 0)
    return arguments


def _stride(x: Tensor | None, axis: int) -> int:
    """Return the stride of an axis, 0 if all share its only entry."""
    return 0 if x is None or x.size(axis) == 1 else x.stride(axis)


class _PointwiseAttention(torch.autograd.Function):
    """Map q, k, v and the table of the bias to the outputs and the sums over the rows."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor | None,
        problem: AttentionProblem,
        seed: int,
    ) -> tuple[Tensor | None, ...]:
        from relu_nmt.attention.kernels.triton_kernels import forward_kernel

        q, k, v = (_rows_in_one_piece(x) for x in (q, k, v))
        ctx.save_for_backward(q, k, v)
        ctx.problem = problem
        ctx.seed = seed
        out = _empty_like_tokens(v, q.size(2))
        has_sums = problem.need.any_statistics
        has_logs = has_sums and problem.attention.map.non_negative
        telemetry = problem.need.telemetry
        sums = [
            q.new_empty(q.shape[:3], dtype=torch.float32) if is_needed else None
            for is_needed in (has_sums, has_logs, telemetry, telemetry)
        ]
        further = dict(zip(_SUMS, sums, strict=True))
        arguments = _arguments(problem, seed, {"q": q, "k": k, "v": v, "out": out}, further)
        arguments |= {"SUMS": has_sums, "LOGS": has_logs, "TELEMETRY": telemetry}
        # Scale first in float16, which unscaled weights may overflow.
        arguments["SCALE_FIRST"] = v.dtype == torch.float16

        def launch(blocks: BlockSizes) -> None:
            _run(forward_kernel, q.size(2), blocks.rows, arguments, blocks)

        launch(_blocks("forward", launch, q, k, v, problem)[0])
        # Leave missing gradients None, so that the kernels leave them out.
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in sums[2:] if x is not None))
        return out, *sums

    @staticmethod
    def backward(
        ctx: Any, do: Tensor | None, grad_total: Tensor | None, grad_logs: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("triton")
        q, k, v = ctx.saved_tensors
        if do is None:  # the loss depends on the sums only
            do = v.new_zeros(()).expand(*q.shape[:3], v.size(3))
        sums = {"grad_total": grad_total, "grad_logs": grad_logs}
        sums = {name: None if g is None else g.float().contiguous() for name, g in sums.items()}
        inputs = {"q": q, "k": k, "v": v, "do": _rows_in_one_piece(do)}
        return *_gradients(ctx.problem, ctx.seed, inputs, sums, ctx.needs_input_grad[3]), None, None


def _gradients(
    problem: AttentionProblem,
    seed: int,
    inputs: dict[str, Tensor],
    grad_sums: dict[str, Tensor | None],
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k, v and the table of the bias.

    The inputs are q, k, v and the gradient of the outputs, ``do``. Two passes, by rows for q and by
    columns for k and v, compute scores and weight gradients twice. One fused pass computes them
    once and adds up the gradient of q atomically, in an order that varies. It is used where it is
    measured to be faster, unless PyTorch must be deterministic. Only the pass by rows has the
    gradient of a bias.
    """
    from relu_nmt.attention.kernels.triton_kernels import columns_kernel, rows_kernel

    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    dq, dk, dv = (_empty_like_tokens(x, x.size(2)) for x in (q, k, v))
    has_total, has_logs = (grad is not None for grad in grad_sums.values())
    scale_first = has_total or has_logs or v.dtype == torch.float16
    needs_sums = {"TOTAL_GRAD": has_total, "LOGS_GRAD": has_logs}

    def by_rows(blocks: BlockSizes) -> Tensor | None:
        """Write the gradient of q. Return the gradient of the table [H, R], if wanted."""
        grad_table = None
        if bias_grad and problem.bias is not None:
            # One table a sample, so that fewer threads wait for the same entry.
            grad_table = problem.bias.table.new_zeros(q.size(0), *problem.bias.table.shape)
        further = {**grad_sums, "grad_bias": grad_table}
        arguments = _arguments(problem, seed, {**inputs, "dq": dq}, further)
        arguments |= {"SCALE_FIRST": scale_first, "BIAS_GRAD": bias_grad}
        _run(rows_kernel, q.size(2), blocks.rows, arguments | needs_sums, blocks)
        return None if grad_table is None else grad_table.sum(0)

    def by_columns(blocks: BlockSizes, sum_dq: Tensor | None = None) -> None:
        """Write the gradients of k and v. Add dq to ``sum_dq`` [B, H, Nq, d], if given."""
        further = {**grad_sums, "dq": sum_dq}
        arguments = _arguments(problem, seed, {**inputs, "dk": dk, "dv": dv}, further)
        # The scale may vary within a block of rows.
        varying = problem.row_scale.size(2) > 1
        arguments |= {"SCALE_FIRST": varying or scale_first, "FUSED": sum_dq is not None}
        _run(columns_kernel, dk.size(2), blocks.columns, arguments | needs_sums, blocks)

    def in_one(blocks: BlockSizes) -> Tensor:
        # Sum in float32, since many blocks add to each row.
        sum_dq = q.new_zeros(q.shape, dtype=torch.float32)
        by_columns(blocks, sum_dq)
        return sum_dq

    # Compare their times, if the device may add in any order.
    row_blocks, row_time = _blocks("rows", by_rows, q, k, v, problem)
    column_blocks, column_time = _blocks("columns", by_columns, q, k, v, problem)
    if _any_order() and row_time > 0 and not bias_grad:
        fused_blocks, fused_time = _blocks("fused", in_one, q, k, v, problem)
        if fused_time < row_time + column_time:
            return dq.copy_(in_one(fused_blocks)), dk, dv, None
    grad_table = by_rows(row_blocks)
    by_columns(column_blocks)
    return dq, dk, dv, grad_table


def _prepared(bias: ScoreBias | None) -> ScoreBias | None:
    """Return the bias in the dtypes and layout of the kernels."""
    if bias is None:
        return None
    queries, keys = (x.to(torch.int32).contiguous() for x in (bias.query_codes, bias.key_codes))
    return ScoreBias(bias.table.float().contiguous(), queries, keys, bias.zero)


def _blocks(
    kernel: str, launch: Any, q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem
) -> tuple[BlockSizes, float]:
    """Return the block sizes for a kernel and its milliseconds, 0 if not measured."""
    # Use fixed sizes in the interpreter, which is too slow to measure.
    rectifies = problem.attention.map.rectifies
    if _interpreted():
        return BlockSizes(**{**vars(INTERPRETED), "skip": rectifies}), 0.0
    width = max(_padded(q.size(3)), _padded(v.size(3)))
    causal = problem.visibility.hides_later
    # Measure long inputs only, and never while a graph is captured.
    long = min(q.size(2), k.size(2)) >= tuned.TRITON_LONG
    long = long and not torch.cuda.is_current_stream_capturing()
    key = (kernel, q.device, q.dtype, width, causal, rectifies, long, problem.bias is None)
    return choose(key, candidates(kernel, width, q.dtype, long, rectifies), launch, long)


def _run(
    kernel: Any, length: int, block: int, arguments: dict[str, Any], blocks: BlockSizes
) -> None:
    """Launch a kernel over blocks of ``length`` and all heads of all samples."""
    q = arguments["q"]
    programs = -(-length // block) * q.size(0) * q.size(1)
    sizes = {"ROWS": blocks.rows, "COLUMNS": blocks.columns, "SKIP": blocks.skip}
    # Launch on the device of the inputs, not on the current one.
    device = torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext()
    with device:
        kernel[(programs,)](**arguments, **sizes, num_warps=blocks.warps, num_stages=blocks.stages)


def _any_order() -> bool:
    return not torch.are_deterministic_algorithms_enabled()


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _padded(width: int) -> int:
    return max(_MIN_PADDED, 1 << (width - 1).bit_length())


def _rows_in_one_piece(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def _empty_like_tokens(x: Tensor, length: int) -> Tensor:
    """Return an empty [B, H, length, d] with heads side by side, so that joining needs no copy."""
    return x.new_empty(x.size(0), length, x.size(1), x.size(3)).transpose(1, 2)

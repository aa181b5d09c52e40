"""Pointwise attention by Triton kernels on a GPU, forward and backward in memory O(n d).

``TRITON_INTERPRET=1`` runs the kernels on the CPU, slowly, to test them.
"""

import contextlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relu_nmt.attention.backends.reference import PointwiseProblem, PointwiseResult
from relu_nmt.attention.backends.triton_blocks import (
    INTERPRETED,
    LONG,
    Blocks,
    candidates,
    choose,
)
from relu_nmt.attention.bias import ScoreBias
from relu_nmt.attention.pointwise_maps import PointwiseMap
from relu_nmt.attention.stats import RowSums
from relu_nmt.errors import ConfigError

MAX_WIDTH = 256
"""The widest head whose blocks fit into the shared memory of a GPU."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_MIN_CAPABILITY = (8, 0)
_MIN_PADDED = 16  # the narrowest operand of a tensor core
_DROPOUT_LEVELS = 1 << 24  # as DROPOUT_BITS of the kernels


def supports(problem: PointwiseProblem) -> bool:
    """Whether the kernels can solve the problem here; the weights themselves they never have."""
    q, k, v = problem.q, problem.k, problem.v
    if problem.need.weights or problem.map.kernels is None:
        return False
    if problem.visibility.ancestry is not None:
        return False
    learnt = problem.bias is not None and problem.bias.table.requires_grad
    if learnt and not _any_order():  # the gradient of the table is added up in any order
        return False
    if q.device.type == "cuda":
        if torch.cuda.get_device_capability(q.device) < _MIN_CAPABILITY or _interpreted():
            return False
    elif not _interpreted():
        return False
    # Last, since looking for a package takes as long as a step of a small model's decoding.
    if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        return False
    return (
        all(x.dim() == 4 and x.dtype in _DTYPES and x.numel() > 0 for x in (q, k, v))
        and max(q.size(3), v.size(3)) <= MAX_WIDTH
        and not (problem.visibility.hides_later and q.size(2) > k.size(2))
    )


def pointwise(problem: PointwiseProblem) -> PointwiseResult:
    """Return the outputs of pointwise attention and the sums over its rows, if asked for.

    See :func:`relu_nmt.attention.backends.reference.pointwise`; weights are not to be had.
    """
    q, k, v, need = problem.q, problem.k, problem.v, problem.need
    dtype = v.dtype
    if torch.is_autocast_enabled(v.device.type):
        dtype = torch.get_autocast_dtype(v.device.type)
    task = _Task.of(problem)
    table = None if task.bias is None else task.bias.table
    out, *sums = _PointwiseAttention.apply(q.to(dtype), k.to(dtype), v.to(dtype), table, task)
    if not need.rows:
        return PointwiseResult(out.to(v.dtype))
    total, logs, nonzero, largest = sums
    return PointwiseResult(out.to(v.dtype), RowSums(total, logs, nonzero, largest))


@dataclass(frozen=True)
class _Task:
    """What both directions know besides q, k, v and their gradients.

    Args:
        map: h.
        bias: of the scores, its table [H, R] float32 and its codes int32.
        causal: whether later keys are hidden.
        key_mask: [B, Nk] uint8, 1 = visible.
        key_bounds: [B, 2] int32, see :attr:`Visibility.key_bounds`.
        scale: [B or 1, 1, Nq or 1] float32.
        seed: of the dropout mask, the same in both directions.
        threshold: a weight is dropped if its random number of 24 bits is below; 0 without dropout.
        sums, telemetry: whether those of the rows are asked for.
    """

    map: PointwiseMap
    bias: ScoreBias | None
    causal: bool
    key_mask: Tensor | None
    key_bounds: Tensor | None
    scale: Tensor
    seed: int
    threshold: int
    sums: bool
    telemetry: bool

    @classmethod
    def of(cls, problem: PointwiseProblem) -> "_Task":
        visibility, need = problem.visibility, problem.need
        mask = visibility.key_mask
        threshold = round(problem.dropout * _DROPOUT_LEVELS)
        return cls(
            problem.map,
            _prepared(problem.bias),
            visibility.hides_later,
            None if mask is None else mask.contiguous().view(torch.uint8),
            None if mask is None else visibility.key_bounds,
            problem.row_scale.detach().float(),
            # From the CPU's generator, since reading one from the GPU would wait for it.
            int(torch.randint(1 << 31, ())) if threshold else 0,
            threshold,
            need.rows,
            need.telemetry,
        )

    @property
    def keep_scale(self) -> float:
        return _DROPOUT_LEVELS / (_DROPOUT_LEVELS - self.threshold)

    @property
    def logs(self) -> bool:
        return self.sums and self.map.non_negative


class _PointwiseAttention(torch.autograd.Function):
    """From q, k, v and the table of the bias to the outputs and the sums over the rows."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, task: _Task
    ) -> tuple[Tensor | None, ...]:
        q, k, v = _rows_in_one_piece(q), _rows_in_one_piece(k), _rows_in_one_piece(v)
        out, total, logs, nonzero, largest = _forward(q, k, v, task)
        ctx.save_for_backward(q, k, v)
        ctx.task = task
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in (nonzero, largest) if x is not None))
        return out, total, logs, nonzero, largest

    @staticmethod
    def backward(
        ctx: Any, do: Tensor | None, grad_total: Tensor | None, grad_logs: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # once_differentiable would leave a second derivative out silently where the loss is
            # linear in the outputs.
            raise ConfigError(
                "--attention-backend triton has no second derivatives; choose reference"
            )
        q, k, v = ctx.saved_tensors
        if do is None:  # only the sums have been used
            do = v.new_zeros(()).expand(*q.shape[:3], v.size(3))
        sums = [None if g is None else g.float().contiguous() for g in (grad_total, grad_logs)]
        bias_grad = ctx.needs_input_grad[3]
        return *_backward(q, k, v, _rows_in_one_piece(do), sums, bias_grad, ctx.task), None


def _forward(q: Tensor, k: Tensor, v: Tensor, task: _Task) -> tuple[Tensor | None, ...]:
    """Return the output and the total, weighted logs, non-zeros and largest weights of the rows."""
    from relu_nmt.attention.backends.triton_kernels import forward_kernel

    out = _empty_like_tokens(v, q.size(2))

    def rows(wanted: bool) -> Tensor | None:
        return q.new_empty(q.shape[:3], dtype=torch.float32) if wanted else None

    sums = (rows(task.sums), rows(task.logs), rows(task.telemetry), rows(task.telemetry))
    constants = {
        **_constants(q, v, task),
        "SUMS": task.sums,
        "LOGS": task.logs,
        "TELEMETRY": task.telemetry,
        # Unscaled weights may exceed float16, which the sum of their products does not need.
        "SCALE_FIRST": v.dtype == torch.float16,
    }
    arguments = (
        *(q, k, v, task.scale, task.key_mask, task.key_bounds, *_bias(task), out, *sums),
        *(*_strides(q), *_strides(k), *_strides(v), *_strides(out), *_common(q, k, task)),
    )

    def launch(blocks: Blocks) -> None:
        _run(forward_kernel, q.size(2), blocks.rows, arguments, constants, blocks, q)

    launch(_blocks("forward", launch, q, k, v, task)[0])
    return out, *sums


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    grad_sums: list[Tensor | None],
    bias_grad: bool,
    task: _Task,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k, v and the table of the bias.

    Two passes, by rows for q and by columns for k and v, compute scores and weight gradients
    twice. One pass computes them once and adds up the gradient of q atomically, in an order that
    varies; it is taken where it is measured to be faster and need not repeat to the bit. The pass
    by rows alone has the gradient of a bias.
    """
    dk, dv = _empty_like_tokens(k, k.size(2)), _empty_like_tokens(v, k.size(2))
    split = _Backward(q, k, v, do, grad_sums, task)
    dq = _empty_like_tokens(q, q.size(2))

    def by_rows(blocks: Blocks) -> Tensor | None:
        return split.by_rows(blocks, dq, bias_grad)

    def by_columns(blocks: Blocks) -> None:
        split.by_columns(blocks, dk, dv, None)

    row_blocks, row_time = _blocks("rows", by_rows, q, k, v, task)
    column_blocks, column_time = _blocks("columns", by_columns, q, k, v, task)
    if _any_order() and row_time > 0 and not bias_grad:

        def in_one(blocks: Blocks) -> Tensor:
            sum_dq = q.new_zeros(q.shape, dtype=torch.float32)
            split.by_columns(blocks, dk, dv, sum_dq)
            return sum_dq

        fused_blocks, fused_time = _blocks("fused", in_one, q, k, v, task)
        if fused_time < row_time + column_time:
            return dq.copy_(in_one(fused_blocks)), dk, dv, None
    grad_table = by_rows(row_blocks)
    by_columns(column_blocks)
    return dq, dk, dv, grad_table


@dataclass(frozen=True)
class _Backward:
    """The inputs of the backward kernels, as in :func:`_backward`."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    grad_sums: list[Tensor | None]
    task: _Task

    def by_rows(self, blocks: Blocks, dq: Tensor, bias_grad: bool) -> Tensor | None:
        """Write the gradient of q; return that of the table of the bias [H, R], if asked for."""
        from relu_nmt.attention.backends.triton_kernels import rows_kernel

        q, bias, grad_table = self.q, self.task.bias, None
        if bias_grad and bias is not None:
            # One of each sample, so that fewer threads wait for the same entry.
            grad_table = bias.table.new_zeros(q.size(0), *bias.table.shape)
        arguments = self._arguments((dq, grad_table), (dq,))
        constants = {**self._constants(varying=False), "BIAS_GRAD": bias_grad}
        _run(rows_kernel, q.size(2), blocks.rows, arguments, constants, blocks, q)
        return None if grad_table is None else grad_table.sum(0)

    def by_columns(self, blocks: Blocks, dk: Tensor, dv: Tensor, dq: Tensor | None) -> None:
        """Write the gradients of k and v, and add that of q to ``dq`` [B, H, Nq, d], float32."""
        from relu_nmt.attention.backends.triton_kernels import columns_kernel

        arguments = self._arguments((dq, dk, dv), (dk, dv))
        varying = self.task.scale.size(2) > 1
        constants = {**self._constants(varying), "FUSED": dq is not None}
        length = self.k.size(2)
        _run(columns_kernel, length, blocks.columns, arguments, constants, blocks, self.q)

    def _arguments(
        self, outputs: tuple[Tensor | None, ...], strided: tuple[Tensor, ...]
    ) -> tuple[Any, ...]:
        """Return a kernel's arguments: inputs, outputs, strides of both, numbers."""
        q, k, v, do, task = self.q, self.k, self.v, self.do, self.task
        inputs = (q, k, v, do, task.scale, task.key_mask, task.key_bounds, *_bias(task))
        strides = (stride for x in (q, k, v, do, *strided) for stride in _strides(x))
        return (*inputs, *self.grad_sums, *outputs, *strides, *_common(q, k, task))

    def _constants(self, varying: bool) -> dict[str, Any]:
        """Return what a kernel is compiled for; ``varying``: the scale does within its block."""
        has_total, has_logs = (grad is not None for grad in self.grad_sums)
        half = self.v.dtype == torch.float16
        return {
            **_constants(self.q, self.v, self.task),
            "TOTAL_GRAD": has_total,
            "LOGS_GRAD": has_logs,
            "SCALE_FIRST": varying or has_total or has_logs or half,
        }


def _constants(q: Tensor, v: Tensor, task: _Task) -> dict[str, Any]:
    """Return what all kernels are compiled for."""
    assert task.map.kernels is not None, "supports() leaves such maps to others"
    value, slope = task.map.kernels()
    return {
        "VALUE": value,
        "SLOPE": slope,
        "POWER": task.map.power,
        "HAS_BIAS": task.bias is not None,
        "CAUSAL": task.causal,
        "HAS_MASK": task.key_mask is not None,
        "DROPOUT": task.threshold > 0,
        "WIDTH": q.size(3),
        "VALUE_WIDTH": v.size(3),
        "PADDED": _padded(q.size(3)),
        "VALUE_PADDED": _padded(v.size(3)),
    }


def _common(q: Tensor, k: Tensor, task: _Task) -> tuple[int | float, ...]:
    """Return the numbers that all kernels take last."""
    scale, mask = task.scale, task.key_mask
    zero = width = query_batch = key_batch = 0
    if task.bias is not None:
        zero, width = task.bias.zero, task.bias.table.size(1)
        query_batch, key_batch = (
            codes.size(1) if codes.size(0) > 1 else 0
            for codes in (task.bias.query_codes, task.bias.key_codes)
        )
    return (
        scale.stride(0) if scale.size(0) > 1 else 0,
        scale.stride(2) if scale.size(2) > 1 else 0,
        mask.stride(0) if mask is not None and mask.size(0) > 1 else 0,
        zero,
        width,
        query_batch,
        key_batch,
        task.seed,
        task.threshold,
        task.keep_scale,
        q.size(1),
        q.size(2),
        k.size(2),
    )


def _prepared(bias: ScoreBias | None) -> ScoreBias | None:
    """Return the bias with everything in the dtype and layout of the kernels."""
    if bias is None:
        return None
    queries, keys = (x.to(torch.int32).contiguous() for x in (bias.query_codes, bias.key_codes))
    return ScoreBias(bias.table.float().contiguous(), queries, keys, bias.zero)


def _bias(task: _Task) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the table, the codes of the queries and those of the keys."""
    bias = task.bias
    return (None, None, None) if bias is None else (bias.table, bias.query_codes, bias.key_codes)


def _blocks(
    kernel: str, launch: Any, q: Tensor, k: Tensor, v: Tensor, task: _Task
) -> tuple[Blocks, float]:
    """Return the block sizes for a kernel and the milliseconds it takes, 0 if not measured."""
    if _interpreted():
        return Blocks(**{**vars(INTERPRETED), "skip": task.map.rectifies}), 0.0
    width = max(_padded(q.size(3)), _padded(v.size(3)))
    rectifies = task.map.rectifies
    long = min(q.size(2), k.size(2)) >= LONG and not torch.cuda.is_current_stream_capturing()
    key = (kernel, q.device, q.dtype, width, task.causal, rectifies, long, task.bias is None)
    return choose(key, candidates(kernel, width, q.dtype, long, rectifies), launch, long)


def _run(
    kernel: Any,
    length: int,
    block: int,
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    blocks: Blocks,
    q: Tensor,
) -> None:
    """Launch a kernel over blocks of ``length`` and all heads of all samples."""
    programs = -(-length // block) * q.size(0) * q.size(1)
    sizes = {"ROWS": blocks.rows, "COLUMNS": blocks.columns, "SKIP": blocks.skip}
    device = torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext()
    with device:
        kernel[(programs,)](
            *arguments, **constants, **sizes, num_warps=blocks.warps, num_stages=blocks.stages
        )


def _any_order() -> bool:
    return not torch.are_deterministic_algorithms_enabled()


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _padded(width: int) -> int:
    return max(_MIN_PADDED, 1 << (width - 1).bit_length())


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)


def _rows_in_one_piece(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def _empty_like_tokens(x: Tensor, length: int) -> Tensor:
    """Return an empty [B, H, length, d] whose heads lie side by side, so that joining is free."""
    return x.new_empty(x.size(0), length, x.size(1), x.size(3)).transpose(1, 2)

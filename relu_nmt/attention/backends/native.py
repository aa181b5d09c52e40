"""Attention of few queries on a CPU, as in decoding, by a kernel in C++.

A step of a search has some five queries a sentence and a few dozen keys: so little that PyTorch's
products and fused kernels spend most of their time on what is around it. Queries of hypotheses that
are not computed can be left out.
"""

import math

import torch
from torch import Tensor

from relu_nmt import native as kernels
from relu_nmt.attention.backends.reference import PointwiseProblem, PointwiseResult
from relu_nmt.attention.base import Attention, AttentionOutput, AttentionProblem
from relu_nmt.errors import ConfigError

MOST_QUERIES = 64
"""Queries of a sample up to which it is faster than products: 0.25 to 0.85 of their time."""
MULTIPLE = 16
"""Of the widths of heads: as many numbers are computed at a time."""
MAPS = {"softmax": 0, "relu": 1, "relu2": 2}


def require(device: torch.device | None) -> None:
    """Raise a ConfigError if there are no kernels, or the device is no CPU."""
    if kernels.library() is None:
        raise ConfigError(
            "--attention-backend native: its kernels were not compiled when relu_nmt was "
            "installed; install it again with a C++ compiler, or choose auto"
        )
    if device is not None and device.type != "cpu":
        raise ConfigError(
            f"--attention-backend native is for CPUs, but the model is on {device.type}; "
            "choose auto"
        )


def supports(problem: AttentionProblem) -> bool:
    """Whether only outputs are asked for, of numbers that the kernel knows, without gradients."""
    q, k, v = problem.q, problem.k, problem.v
    return (
        is_known(problem.attention)
        and not (problem.need.rows or problem.need.weights or problem.dropout)
        and (problem.picked is not None or (q.size(2) <= MOST_QUERIES and q.size(0) == k.size(0)))
        and q.dtype == k.dtype == v.dtype
        and k.shape[:3] == v.shape[:3]
        and (q.size(1), q.size(3)) == (k.size(1), k.size(3))
        and v.size(3) % MULTIPLE == 0
        and all(_computes(x, q.size(3)) for x in (q, k, v))
    )


def supports_pointwise(problem: PointwiseProblem) -> bool:
    """Whether the kernel has the map, too."""
    return problem.map.name in MAPS and supports(problem)


def preferred(problem: AttentionProblem) -> bool:
    """Whether there are few queries, and few threads."""
    few = problem.picked is not None or problem.q.size(2) <= MOST_QUERIES
    return few and kernels.is_wanted()


def is_known(attention: Attention | None) -> bool:
    """Whether the kernel computes what this class does, not what one does that it comes from."""
    return attention is None or vars(type(attention)).get("has_kernel", False)


def picks(attention: Attention, x: Tensor) -> bool:
    """Whether an attention would take this back end for some of a step's queries."""
    backend = attention.backend
    wanted = backend == "native" or (backend == "auto" and kernels.is_wanted())
    # Hooks are those of records, which want the weights of all.
    looked_at = attention._forward_pre_hooks or attention._forward_hooks
    return wanted and not looked_at and is_known(attention) and _computes(x, attention.head_dim)


def _computes(x: Tensor, width: int) -> bool:
    """Whether the kernel is there and takes what is like x, in heads of this width."""
    return x.dtype in kernels.DTYPES and width % MULTIPLE == 0 and _is_readable(x)


def _is_readable(x: Tensor) -> bool:
    """Whether there are kernels, and x is on a CPU without anybody who follows what is computed."""
    return (
        x.is_cpu
        and not torch.is_grad_enabled()
        and not (torch.compiler.is_compiling() or torch.jit.is_tracing())  # nor exporting
        and kernels.library() is not None
    )


def softmax(problem: AttentionProblem) -> AttentionOutput:
    """Compute softmax attention."""
    scale = 1 / math.sqrt(problem.q.size(3))
    return AttentionOutput(_attend(problem, MAPS["softmax"], False, scale, None))


def pointwise(problem: PointwiseProblem) -> PointwiseResult:
    """Compute attention with rectified scores."""
    map = MAPS[problem.map.name]
    return PointwiseResult(_attend(problem, map, problem.centered, 1.0, problem.row_scale))


def _attend(
    problem: AttentionProblem,
    map: int,
    centered: bool,
    score_scale: float,
    row_scale: Tensor | None,
) -> Tensor:
    """Return the values [B, H, Nq, dv], of which those of all heads of a query lie together."""
    q, k, v = (with_rows(x) for x in (problem.q, problem.k, problem.v))
    picked, visibility = problem.picked, problem.visibility
    batch, heads, queries, _ = q.shape
    visible = None if visibility.mask is None else with_rows(visibility.mask)
    bias = None if problem.bias is None else with_rows(problem.bias.values().float())
    scales = None if row_scale is None else row_scale[..., None].float()  # [B or 1, 1, Nq or 1, 1]
    out = v.new_empty(batch, queries, heads, v.size(3))
    of_a_sample = queries if picked is None else visibility.num_queries
    strides = q.stride(0), q.stride(1), q.stride(2)
    sizes = shape(batch * queries, of_a_sample, strides, k, v, visible, bias, scales, map, centered)
    tensors = (q, k, v, picked, visible, bias, scales, out)
    kernels.call(f"attend_{kernels.DTYPES[q.dtype]}", tensors, sizes, score_scale)
    return out.transpose(1, 2)


def shape(
    num_rows: int,
    num_queries: int,
    q_strides: tuple[int, int, int],
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    map: int,
    centered: bool,
) -> tuple[int, ...]:
    """Return the members of a kernel's ``AttentionShape``.

    Args:
        num_rows: queries of all samples, or those that are picked.
        num_queries: of a sample.
        q_strides: from sample to sample, head to head and query to query.
        k: [B, H, Nk, d].
        v: [B, H, Nk, dv].
        visible: [B or 1, 1, Nq or 1, Nk] bool; None: all.
        bias: of the scores, [B or 1, H, Nq, Nk] float32; None for none.
        scales: of the rows of weights, [B or 1, 1, Nq or 1, 1] float32; None for softmax.
        map: one of :data:`MAPS`.
        centered: whether each score loses the mean of its row.
    """
    k_strides, v_strides = k.stride(), v.stride()
    return (
        *(num_rows, k.size(1), num_queries, k.size(2), k.size(3), v.size(3)),
        *(*q_strides, *k_strides[:3], *v_strides[:3]),
        *(_stride(visible, 0), _stride(visible, 2)),
        *(_stride(bias, 0), _stride(bias, 1), _stride(bias, 2)),
        *(_stride(scales, 0), _stride(scales, 2), map, centered),
    )


def with_rows(x: Tensor) -> Tensor:
    """Return x with numbers of the last dimension that lie side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _stride(x: Tensor | None, dim: int) -> int:
    """Return the stride of a dimension; 0 where all share what is there."""
    return 0 if x is None or x.size(dim) == 1 else x.stride(dim)


def put_picked(x: Tensor, picked: Tensor, to: Tensor) -> None:
    """Write the vectors of picked queries, [1, H, N', d], to their places in ``to`` [B, H, Nq, d].

    Args:
        x: on a CPU.
        picked: their places among all B Nq, int64 [N'].
        to: changed in place.
    """
    assert to.stride(3) == 1, "the kernel writes numbers side by side"
    x = with_rows(x.to(to.dtype))
    _, heads, rows, width = x.shape
    strides = x.stride(2), x.stride(1), *to.stride()[:3]
    sizes = (rows, heads, to.size(2), *_in_bytes(x, width, *strides))
    kernels.call("put", (x, picked, to), sizes)


def takes(x: Tensor) -> bool:
    """Whether :func:`take_entries` copies what is like keys or values x."""
    return kernels.is_wanted() and _is_readable(x)


def take_entries(x: Tensor, trees: Tensor, entries: Tensor, room: int) -> Tensor:
    """Return [R', H, M' + room, d] of x [R, H, M, d]: entries [R', M'] of trees [R'].

    Args:
        x: keys or values of the tokens of trees of hypotheses, as :func:`takes` tells.
        trees: int64.
        entries: int64.
        room: entries behind them, which are 0.
    """
    x = with_rows(x)
    (num_trees, num_entries), heads, width = entries.shape, x.size(1), x.size(3)
    taken = x.new_empty(num_trees, heads, num_entries + room, width)
    sizes = (num_trees, heads, num_entries, room, *_in_bytes(x, width, *x.stride()[:3]))
    kernels.call("take", (x, trees.contiguous(), entries.contiguous(), taken), sizes)
    return taken


def _in_bytes(x: Tensor, *sizes: int) -> list[int]:
    return [size * x.element_size() for size in sizes]

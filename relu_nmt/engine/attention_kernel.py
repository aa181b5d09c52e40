"""Attention of few queries on a CPU, as in decoding, by a kernel in C++.

A step of a search has about five queries per sentence and a few dozen keys. PyTorch's products and
fused kernels spend most of their time around so little work. The kernel can also skip queries.
"""

import math

import torch
from torch import Tensor

from relu_nmt.attention.base import Attention, AttentionOutput, AttentionProblem
from relu_nmt.attention.bias import ScoreBias
from relu_nmt.attention.kernels import Backend, add_backend
from relu_nmt.attention.kernels.reference import PointwiseProblem, PointwiseResult
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.normalized import SoftmaxAttention
from relu_nmt.attention.pointwise import PointwiseAttention, ScaledPointwiseAttention
from relu_nmt.attention.rela import RelaAttention
from relu_nmt.attention.reluformer import ReLUFormerAttention
from relu_nmt.engine import native, tuned
from relu_nmt.errors import ConfigError

MULTIPLE = 16
"""The width of a head must be a multiple of this."""
MAPS = {
    "softmax": native.CONSTANTS["SOFTMAX"],
    "relu": native.CONSTANTS["RELU"],
    "relu2": native.CONSTANTS["SQUARED_RELU"],
}
KNOWN = (SoftmaxAttention, ReLUFormerAttention, RelaAttention, ScaledPointwiseAttention)
"""Classes that the kernel computes; a subclass may compute something else."""


def require(device: torch.device | None) -> None:
    """Raise a ConfigError if the kernels are missing or the device is not a CPU."""
    if native.library() is None:
        raise ConfigError(
            "--attention-backend native: its kernels were not compiled when relu_nmt was "
            "installed; install it again with a C++ compiler, or choose auto"
        )
    if device is not None and device.type != "cpu":
        raise ConfigError(
            f"--attention-backend native is for CPUs, but the model is on {device.type}; "
            "choose auto"
        )


def has_map(attention: Attention) -> bool:
    """Return whether the kernel computes the weights of an attention."""
    if isinstance(attention, PointwiseAttention) and attention.map.name not in MAPS:
        return False
    return type(attention) in KNOWN


def serves_rows(attention: Attention, x: Tensor) -> bool:
    """Return whether :func:`attend_rows` computes an attention for the states x.

    Another back end or a hook that reads the weights, as records do, needs the usual code.
    """
    wanted = attention.backend == "native" or (attention.backend == "auto" and native.is_wanted())
    watched = attention._forward_pre_hooks or attention._forward_hooks
    return wanted and not watched and has_map(attention) and _computes(x, attention.head_dim)


def attend_rows(
    attention: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visibility: Visibility,
    bias: ScoreBias | None,
    rows: Tensor,
) -> Tensor:
    """Return the joined heads [1, N, D] of some queries.

    Args:
        attention: an attention that :func:`serves_rows`.
        q: [1, H, N, d], not scaled.
        k: [B, H, Nk, d].
        v: [B, H, Nk, d].
        visibility: the visible keys of all queries.
        bias: of the scores of all queries.
        rows: [N] int64, the index of each query among all B Nq.
    """
    # Scale scores in the kernel, but queries of pointwise attention before it.
    scale, row_scale, gain = 1 / math.sqrt(attention.head_dim), None, None
    if isinstance(attention, PointwiseAttention):
        q, scale = q / math.sqrt(attention.head_dim), 1.0  # the mechanism rounds scaled queries
        row_scale = attention.row_scale(visibility.positive_counts)
        gain = attention.gain()
    map, centered = form(attention)
    values = _attend(q, k, v, visibility, bias, map, centered, scale, row_scale, rows)
    # Apply the learnt gain of each head, where the mechanism has gains.
    if gain is not None:
        values = (values * gain[:, None, None]).to(values.dtype)
    return values.transpose(1, 2).flatten(2)


def form(attention: Attention) -> tuple[int, bool]:
    """Return the number of the map in the kernel, and whether scores are centered."""
    if isinstance(attention, PointwiseAttention):
        return MAPS[attention.map.name], attention.centered
    return MAPS["softmax"], False


def _supports(problem: AttentionProblem) -> bool:
    """Return whether the problem needs only outputs, without gradients, in a kernel's dtype."""
    q, k, v = problem.q, problem.k, problem.v
    return (
        has_map(problem.attention)
        and not (problem.need.rows or problem.need.weights or problem.dropout)
        and q.size(2) <= tuned.MAX_QUERIES
        and q.dtype == k.dtype == v.dtype
        # Require equal batch, heads and width, since the kernel does not broadcast.
        and k.shape[:3] == v.shape[:3]
        and (*q.shape[:2], q.size(3)) == (*k.shape[:2], k.size(3))
        and v.size(3) % MULTIPLE == 0
        and all(_computes(x, q.size(3)) for x in (q, k, v))
    )


def _preferred(problem: AttentionProblem) -> bool:
    """Return whether the kernel is the fastest back end: few queries and few threads."""
    return problem.q.size(2) <= tuned.MAX_QUERIES and native.is_wanted()


def _computes(x: Tensor, width: int) -> bool:
    """Return whether the kernel takes x, in heads of this width."""
    return x.dtype in native.DTYPES and width % MULTIPLE == 0 and _is_readable(x)


def _is_readable(x: Tensor) -> bool:
    """Return whether a kernel may read x: on a CPU, without gradients, and not traced."""
    return (
        x.is_cpu
        and not torch.is_grad_enabled()
        and not (torch.compiler.is_compiling() or torch.jit.is_tracing())
        and native.library() is not None
    )


def _softmax(problem: AttentionProblem) -> AttentionOutput:
    p, scale = problem, 1 / math.sqrt(problem.q.size(3))
    map, centered = MAPS["softmax"], False
    return AttentionOutput(
        _attend(p.q, p.k, p.v, p.visibility, p.bias, map, centered, scale, None, None)
    )


def _pointwise(problem: PointwiseProblem) -> PointwiseResult:
    p, map = problem, MAPS[problem.map.name]
    return PointwiseResult(
        _attend(p.q, p.k, p.v, p.visibility, p.bias, map, p.centered, 1.0, p.row_scale, None)
    )


def register_backends() -> None:
    """Add the back end ``native`` to softmax and pointwise attention."""
    add_backend(SoftmaxAttention, "native", Backend(_softmax, _supports, _preferred, require))
    add_backend(
        PointwiseAttention,
        "native",
        Backend(_pointwise, _supports, _preferred, require, centers=True),
    )


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visibility: Visibility,
    score_bias: ScoreBias | None,
    map: int,
    centered: bool,
    score_scale: float,
    row_scale: Tensor | None,
    rows: Tensor | None,
) -> Tensor:
    """Return the values [B, H, Nq, dv]; all heads of a query lie together in memory."""
    # Bring all tensors into the form that the kernel reads.
    q, k, v = (with_rows(x) for x in (q, k, v))
    batch, heads, queries, _ = q.shape
    visible = None if visibility.mask is None else with_rows(visibility.mask)
    bias = None if score_bias is None else with_rows(score_bias.values().float())
    scales = None if row_scale is None else row_scale[..., None].float()  # [B or 1, 1, Nq or 1, 1]
    # Lay the heads of a query side by side, so that joining them copies nothing.
    out = v.new_empty(batch, queries, heads, v.size(3))
    # Listed queries [1, H, N, d] come from samples of the visibility's size.
    queries_of_sample = queries if rows is None else visibility.num_queries
    strides = q.stride(0), q.stride(1), q.stride(2)
    seen = k, v, visible, bias, scales
    arguments = native.Arguments().add(
        "Attend",
        q=q,
        k=k,
        v=v,
        picked=rows,
        visible=visible,
        bias=bias,
        scales=scales,
        out=out,
        shape=shape(batch * queries, queries_of_sample, strides, *seen, map, centered),
    )
    # Let the kernel fill the output, then show it as [B, H, Nq, dv].
    native.call(f"attend_{native.DTYPES[q.dtype]}", arguments, score_scale)
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
) -> dict[str, int]:
    """Return the fields of ``AttentionShape`` of native/arguments.inc.

    Args:
        num_rows: queries of all samples, or the listed queries.
        num_queries: of one sample.
        q_strides: from sample to sample, head to head and query to query.
        k: [B, H, Nk, d].
        v: [B, H, Nk, dv].
        visible: [B or 1, 1, Nq or 1, Nk] bool; None: all.
        bias: of the scores, [B or 1, H, Nq, Nk] float32.
        scales: of the rows of weights, [B or 1, 1, Nq or 1, 1] float32; None for softmax.
        map: one of :data:`MAPS`.
        centered: subtract the mean of each row of scores.
    """
    # Pass strides in elements, so that the kernel reads views without copies.
    q_batch, q_head, q_row = q_strides
    k_batch, k_head, k_row, _ = k.stride()
    v_batch, v_head, v_row, _ = v.stride()
    return {
        "rows": num_rows,
        "heads": k.size(1),
        "queries": num_queries,
        "keys": k.size(2),
        "width": k.size(3),
        "value_width": v.size(3),
        "q_batch": q_batch,
        "q_head": q_head,
        "q_row": q_row,
        "k_batch": k_batch,
        "k_head": k_head,
        "k_row": k_row,
        "v_batch": v_batch,
        "v_head": v_head,
        "v_row": v_row,
        # Give 0 as the stride of dimensions that all queries or samples share.
        "visible_batch": _stride(visible, 0),
        "visible_query": _stride(visible, 2),
        "bias_batch": _stride(bias, 0),
        "bias_head": _stride(bias, 1),
        "bias_query": _stride(bias, 2),
        "scale_batch": _stride(scales, 0),
        "scale_query": _stride(scales, 2),
        "map": map,
        "centered": centered,
    }


def with_rows(x: Tensor) -> Tensor:
    """Return x, copied if the elements of its last dimension are not adjacent."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _stride(x: Tensor | None, dim: int) -> int:
    """Return the stride of a dimension; 0 if its size is 1, so that all share its element."""
    return 0 if x is None or x.size(dim) == 1 else x.stride(dim)


def put_rows(x: Tensor, rows: Tensor, to: Tensor) -> None:
    """Write the vectors of some queries, [1, H, N, d], into those of all, [B, H, Nq, d].

    Args:
        x: on a CPU.
        rows: [N] int64, the index of each query among all B Nq.
        to: changed in place.
    """
    assert to.stride(3) == 1, "the kernel writes adjacent elements"
    # Convert to the dtype of the target, since the kernel copies plain bytes.
    x, size = with_rows(x.to(to.dtype)), to.element_size()
    # Give sizes and strides in bytes: one kernel serves all dtypes.
    arguments = native.Arguments().add(
        "Put",
        source=x,
        picked=rows,
        target=to,
        rows=x.size(2),
        heads=x.size(1),
        queries=to.size(2),
        bytes=x.size(3) * size,
        source_row=x.stride(2) * size,
        source_head=x.stride(1) * size,
        target_batch=to.stride(0) * size,
        target_head=to.stride(1) * size,
        target_row=to.stride(2) * size,
    )
    native.call("put", arguments)


def takes(x: Tensor) -> bool:
    """Return whether :func:`take_entries` copies keys or values such as x."""
    return native.is_wanted() and _is_readable(x)


def take_entries(x: Tensor, trees: Tensor, entries: Tensor, room: int) -> Tensor:
    """Return [R', H, M' + room, d] of x [R, H, M, d]: entries [R', M'] of trees [R'].

    Args:
        x: keys or values of the tokens of trees of hypotheses, for which :func:`takes` is True.
        trees: int64.
        entries: int64.
        room: entries of zeros behind them.
    """
    x, size = with_rows(x), x.element_size()
    (num_trees, num_entries), heads, width = entries.shape, x.size(1), x.size(3)
    # Leave the memory empty: the kernel also writes the zeros behind the entries.
    taken = x.new_empty(num_trees, heads, num_entries + room, width)
    arguments = native.Arguments().add(
        "Take",
        source=x,
        trees=trees.contiguous(),
        entries=entries.contiguous(),
        target=taken,
        num_trees=num_trees,
        heads=heads,
        num_entries=num_entries,
        room=room,
        bytes=width * size,
        source_tree=x.stride(0) * size,
        source_head=x.stride(1) * size,
        source_entry=x.stride(2) * size,
    )
    native.call("take", arguments)
    return taken

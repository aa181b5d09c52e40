"""Attention of few queries on a CPU, as in decoding, by a kernel in C++.

A step of a search has about five queries per sentence and a few dozen keys. PyTorch's products and
fused kernels spend most of their time around so little work.
"""

import math

import torch
from torch import Tensor

from relu_nmt.attention.base import Attention, AttentionOutput, AttentionProblem, Backend
from relu_nmt.attention.normalized import SoftmaxAttention
from relu_nmt.attention.pointwise import PointwiseAttention, ScaledPointwiseAttention
from relu_nmt.attention.rela import RelaAttention
from relu_nmt.attention.reluformer import ReLUFormerAttention
from relu_nmt.engine import native
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

MAX_QUERIES = 64
"""Use the kernel up to this many queries of a sample."""
# With 60 queries and keys it takes 0.62 of the time of PyTorch's fused kernel, with fewer less.
# AMD EPYC (AVX512), 2 cores, 2026-11-24, hand-written code; table in docs/lab/decoding.md.


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


def form(attention: Attention) -> tuple[int, bool]:
    """Return the number of the map in the kernel, and whether scores are centered."""
    if isinstance(attention, PointwiseAttention):
        return MAPS[attention.map.name], attention.centered
    return MAPS["softmax"], False


def supports(problem: AttentionProblem) -> bool:
    """Return whether the problem needs only outputs, without gradients, in a kernel's dtype."""
    q, k, v = problem.q, problem.k, problem.v
    return (
        has_map(problem.attention)
        and not (problem.need.rows or problem.need.weights or problem.dropout)
        and q.size(2) <= MAX_QUERIES
        and q.dtype == k.dtype == v.dtype
        and q.dtype in native.DTYPES
        # Require equal batch, heads and width, since the kernel does not broadcast.
        and k.shape[:3] == v.shape[:3]
        and (*q.shape[:2], q.size(3)) == (*k.shape[:2], k.size(3))
        and q.size(3) % MULTIPLE == v.size(3) % MULTIPLE == 0
        # Leave GPUs, training and traced models to PyTorch.
        and q.is_cpu
        and k.is_cpu
        and v.is_cpu
        and not torch.is_grad_enabled()
        and not (torch.compiler.is_compiling() or torch.jit.is_tracing())
        and native.library() is not None
    )


def _preferred(problem: AttentionProblem) -> bool:
    """Return whether the kernel is the fastest back end: few queries and few threads."""
    return problem.q.size(2) <= MAX_QUERIES and native.is_wanted()


def _softmax(problem: AttentionProblem) -> AttentionOutput:
    scale = 1 / math.sqrt(problem.q.size(3))
    return AttentionOutput(_attend(problem, MAPS["softmax"], False, scale, None))


def _pointwise(problem: AttentionProblem) -> AttentionOutput:
    return AttentionOutput(_attend(problem, *form(problem.attention), 1.0, problem.row_scale))


def register_backends() -> None:
    """Put the back end ``native`` before those of softmax and pointwise attention."""
    softmax = Backend(_softmax, supports, _preferred, require)
    pointwise = Backend(_pointwise, supports, _preferred, require)
    SoftmaxAttention.backends = {"native": softmax, **SoftmaxAttention.backends}
    PointwiseAttention.backends = {"native": pointwise, **PointwiseAttention.backends}


def _attend(
    problem: AttentionProblem,
    map: int,
    centered: bool,
    score_scale: float,
    row_scale: Tensor | None,
) -> Tensor:
    """Return the values [B, H, Nq, dv]; all heads of a query lie together in memory."""
    # Bring all tensors into the form that the kernel reads.
    q, k, v = (with_rows(x) for x in (problem.q, problem.k, problem.v))
    batch, heads, queries, _ = q.shape
    mask, score_bias = problem.visibility.mask, problem.bias
    visible = None if mask is None else with_rows(mask)
    bias = None if score_bias is None else with_rows(score_bias.values().float())
    scales = None if row_scale is None else row_scale[..., None].float()  # [B or 1, 1, Nq or 1, 1]
    # Lay the heads of a query side by side, so that joining them copies nothing.
    out = v.new_empty(batch, queries, heads, v.size(3))
    seen = k, v, visible, bias, scales
    arguments = native.Arguments().add(
        "Attend",
        q=q,
        k=k,
        v=v,
        visible=visible,
        bias=bias,
        scales=scales,
        out=out,
        shape=shape(batch * queries, queries, q.stride()[:3], *seen, map, centered),
    )
    # Let the kernel fill the output, then show it as [B, H, Nq, dv].
    native.call(f"attend_{native.DTYPES[q.dtype]}", arguments, score_scale)
    return out.transpose(1, 2)


def shape(
    num_rows: int,
    num_queries: int,
    q_strides: tuple[int, ...],
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    map: int,
    centered: bool,
) -> dict[str, int]:
    """Return the fields of ``AttentionShape`` of native/arguments.inc.

    ``num_rows`` are the queries of all samples, or the listed ones of a search; ``num_queries``
    those of one sample. ``q_strides`` lead from sample to sample, head to head, query to query. The
    shapes are k and v [B, H, Nk, d], visible [B or 1, 1, Nq or 1, Nk] bool, bias [B or 1, H, Nq,
    Nk] and scales [B or 1, 1, Nq or 1, 1] float32.
    """
    # Pass strides in elements, so that the kernel reads views without copies.
    strides = {
        f"{name}_{axis}": stride
        for name, own in (("q", q_strides), ("k", k.stride()), ("v", v.stride()))
        for axis, stride in zip(("batch", "head", "row"), own, strict=False)
    }
    return {
        **strides,
        "rows": num_rows,
        "heads": k.size(1),
        "queries": num_queries,
        "keys": k.size(2),
        "width": k.size(3),
        "value_width": v.size(3),
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

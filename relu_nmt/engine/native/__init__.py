"""Kernels in C++ for the small computations of decoding on CPUs, and attention by one of them.

Each kernel computes in one call and one thread the result of many calls of PyTorch. Where no
compiler was available at installation, or gradients are needed, PyTorch computes the result. A step
of a search has about five queries per sentence and a few dozen keys: PyTorch's products and fused
kernels of attention spend most of their time around so little work.
"""

import ctypes
import re
import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, AttentionOutput, AttentionProblem, Backend
from relu_nmt.attention.normalized import SoftmaxAttention
from relu_nmt.attention.pointwise import PointwiseAttention, ScaledPointwiseAttention
from relu_nmt.attention.rela import RelaAttention
from relu_nmt.attention.reluformer import ReLUFormerAttention

MAX_THREADS = 2
"""Prefer the single-threaded kernels over PyTorch's up to this many threads of PyTorch."""
# Attention of 5 to 60 queries takes 0.25 to 0.85 of the time of PyTorch's fused kernel.
# AMD EPYC (AVX512), 2 cores, 2026-11-24, hand-written code; table in docs/lab/decoding.md.

DTYPES = {torch.float32: "float", torch.bfloat16: "bfloat16"}
"""Compute dtypes, and their names at the end of kernel names."""
FORMS = {"AVX512": ("avx512", "avx2", "any"), "AVX2": ("avx2", "any")}
"""Forms of kernels that a processor can run, best first, by PyTorch's name of its capability."""
INSTRUCTIONS = {
    "linear_bfloat16": "_is_avx512_bf16_supported",
    "linear_int8": "_is_vnni_supported",
    "layers_step_bfloat16": "_is_avx512_bf16_supported",
    "layers_step_int8": "_is_vnni_supported",
}
"""Functions of ``torch.cpu`` that must return True for the form ``avx512`` of a kernel."""


def _entries(table: str) -> list[tuple[str, list[str]]]:
    """Return the kind and the words of each entry of a table of arguments."""
    entries = re.findall(r"^ *([A-Z]+)(?:\((.*?)\))?", table, re.MULTILINE)
    return [(kind, re.split(r", *", words)) for kind, words in entries]


def _structs() -> dict[str, dict[str, str]]:
    """Return the fields of each struct of the table, with ``POINTER``, ``SIZE`` or a struct."""
    structs: dict[str, dict[str, str]] = {}
    for kind, words in _TABLE:
        if kind == "STRUCT":
            fields = structs.setdefault(words[0], {})
        elif kind in ("POINTER", "NESTED", "SIZE"):
            fields[words[-1]] = words[0] if kind == "NESTED" else kind
    return structs


def words_of(struct: str, values: Mapping[str, Any]) -> list[int]:
    """Return the values of all fields of a struct as words of 8 bytes, in the table's order.

    Pointers are tensors or None, sizes integers or flags, nested structs mappings. The words of
    tensors are their addresses.

    Raises:
        TypeError: a field is missing or unknown.

    Example:
        >>> words_of("LogSoftmax", {"symbols": 2, "rows": 1, "logits": torch.zeros(1, 2)})[1:]
        [1, 2]
    """
    fields = STRUCTS[struct]
    # Look up every field by name, so the order of ``values`` does not matter.
    if fields.keys() != values.keys():
        missing = sorted(fields.keys() - values)
        unknown = sorted(values.keys() - fields)
        raise TypeError(f"{struct} of arguments.inc: missing {missing}, unknown fields {unknown}")
    words: list[int] = []
    for name, kind in fields.items():
        value = values[name]
        if kind == "SIZE":
            words.append(value)
        elif kind == "POINTER":
            words.append(0 if value is None else value.data_ptr())
        else:
            words += words_of(kind, value)
    return words


_TABLE = _entries(Path(__file__).with_name("arguments.inc").read_text("utf-8"))
STRUCTS = _structs()
CONSTANTS = {words[0]: int(words[1]) for kind, words in _TABLE if kind == "CONSTANT"}

MULTIPLE = 16
"""The width of a head must be a multiple of this."""
MAPS = {
    "softmax": CONSTANTS["SOFTMAX"],
    "relu": CONSTANTS["RELU"],
    "relu2": CONSTANTS["SQUARED_RELU"],
}
KNOWN = (SoftmaxAttention, ReLUFormerAttention, RelaAttention, ScaledPointwiseAttention)
"""Classes that the kernel computes; a subclass may compute something else."""

MAX_QUERIES = 64
"""Use the kernel up to this many queries of a sample."""
# With 60 queries and keys it takes 0.62 of the time of PyTorch's fused kernel, with fewer less.
# AMD EPYC (AVX512), 2 cores, 2026-11-24, hand-written code; table in docs/lab/decoding.md.


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernels; None if they are missing, or come from another table."""
    path = Path(__file__).with_name(f"kernels{EXTENSION_SUFFIXES[0]}")
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError:
        return None
    # Compare the tables, since fields at other places would be read as wrong addresses.
    table = ""
    with suppress(AttributeError):
        loaded.kernels_arguments.restype = ctypes.c_char_p
        table = loaded.kernels_arguments().decode()
    if _entries(table) == _TABLE:
        return loaded
    warnings.warn(
        f"{path}: compiled from other sources than these, and not used: decoding is slower; "
        "install relu_nmt again",
        stacklevel=2,
    )
    return None


def is_wanted() -> bool:
    """Return whether kernels are there, and faster than PyTorch with its number of threads."""
    return torch.get_num_threads() <= MAX_THREADS and library() is not None


def has_kernel(name: str) -> bool:
    """Return whether this processor has a kernel."""
    return library() is not None and _find(name) is not None


def call(name: str, structs: Sequence[tuple[str, Mapping[str, Any]]], number: float = 1.0) -> None:
    """Call a kernel by its name without the form.

    ``structs`` of arguments.inc follow one another in memory, each with its name and the values of
    :func:`words_of`; ``number`` is the kernel's factor or epsilon, if it has one.
    """
    kernel = _find(name)
    assert kernel is not None, f"look with has_kernel before calling {name}"
    words = array("q")  # 8 bytes each
    for struct, values in structs:
        words.extend(words_of(struct, values))
    kernel(words.buffer_info()[0], number)


def forms() -> tuple[str, ...]:
    """Return the forms of kernels that this processor can run, best first."""
    return FORMS.get(torch.backends.cpu.get_cpu_capability(), ("any",))


@cache
def _find(name: str) -> Callable[..., None] | None:
    """Return the best form of a kernel for this processor; None if it has no form."""
    loaded = library()
    assert loaded is not None, f"look with has_kernel before calling {name}"
    # Try the best form first; AVX512 kernels may need further instructions.
    for form in forms():
        needed = INSTRUCTIONS.get(name) if form == "avx512" else None
        function = getattr(loaded, f"{name}_{form}", None)
        if function is not None and (needed is None or getattr(torch.cpu, needed, bool)()):
            # Declare the types, since ctypes would cut addresses to 4 bytes.
            function.argtypes = [ctypes.c_void_p, ctypes.c_double]
            function.restype = None
            return function
    return None


# ---------------------------------------------------------------------- attention


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
        not (problem.need.rows or problem.need.weights or problem.dropout)
        and q.size(2) <= MAX_QUERIES
        and q.dtype == k.dtype == v.dtype
        and q.dtype in DTYPES
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
        and library() is not None
    )


def use_attention_kernel(model: nn.Module) -> None:
    """Add the back end ``native`` to each attention of a model that the kernel computes."""
    native = Backend(_attend, supports, _preferred, _anywhere)
    for module in model.modules():
        if isinstance(module, Attention) and has_map(module):
            module.added_backends = {"native": native}


def _anywhere(device: torch.device | None) -> None:
    """Never refuse a device: elsewhere than on a CPU the next back end computes the result."""


def _preferred(problem: AttentionProblem) -> bool:
    """Return whether the kernel is the fastest back end: few queries and few threads."""
    return problem.q.size(2) <= MAX_QUERIES and is_wanted()


def _attend(problem: AttentionProblem) -> AttentionOutput:
    """Return the values [B, H, Nq, dv], with all heads of a query together in memory."""
    # Bring all tensors into the form that the kernel reads.
    q, k, v = (with_rows(x) for x in (problem.q, problem.k, problem.v))
    batch, heads, queries, width = q.shape
    mask, score_bias = problem.visibility.mask, problem.bias
    visible = None if mask is None else with_rows(mask)
    bias = None if score_bias is None else with_rows(score_bias.values().float())
    scales = problem.row_scale[..., None].float()  # [B or 1, 1, Nq or 1, 1]
    # Lay the heads of a query side by side, so that joining them copies nothing.
    out = v.new_empty(batch, queries, heads, v.size(3))
    seen = k, v, visible, bias, scales, *form(problem.attention)
    values = {"q": q, "k": k, "v": v, "visible": visible, "bias": bias, "scales": scales}
    sizes = shape(batch * queries, queries, q.stride()[:3], *seen)
    # Let the kernel fill the output, then show it as [B, H, Nq, dv]. Pointwise attention has
    # scaled its queries.
    score_scale = 1.0 if isinstance(problem.attention, PointwiseAttention) else width**-0.5
    structs = [("Attend", {**values, "out": out, "shape": sizes})]
    call(f"attend_{DTYPES[q.dtype]}", structs, score_scale)
    return AttentionOutput(out.transpose(1, 2))


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
    """Return the fields of ``AttentionShape`` of arguments.inc.

    ``num_rows`` is the number of queries of all samples, or of the listed queries of a search.
    ``num_queries`` is the number of queries of one sample. ``q_strides`` lead from sample to
    sample, head to head, query to query. The shapes are k and v [B, H, Nk, d], visible [B or 1, 1,
    Nq or 1, Nk] bool, bias [B or 1, H, Nq, Nk] and scales [B or 1, 1, Nq or 1, 1] float32.
    """
    # Pass strides in elements, so that the kernel reads views without copies.
    strides = {}
    for name, tensor_strides in (("q", q_strides), ("k", k.stride()), ("v", v.stride())):
        for axis, stride in zip(("batch", "head", "row"), tensor_strides, strict=False):
            strides[f"{name}_{axis}"] = stride
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
    """Return the stride of a dimension, or 0 if its size is 1, so that all share its element."""
    return 0 if x is None or x.size(dim) == 1 else x.stride(dim)

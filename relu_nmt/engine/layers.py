"""A step of all layers of a decoder in one call of a kernel in C++.

With plain PyTorch a layer takes about sixty calls. With a few sentences, or with 8-bit integers,
most of the time then passes between products: in Python, in PyTorch's calls, and in memory traffic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention import thresholded_relu
from relu_nmt.attention.base import Attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.normalized import SoftmaxAttention
from relu_nmt.attention.pointwise import PointwiseAttention
from relu_nmt.attention.reluformer import ReLUFormerAttention
from relu_nmt.attention.thresholded_relu import ThresholdedReLUAttention
from relu_nmt.engine import native
from relu_nmt.engine.linear import PanelLinear, computing_dtype
from relu_nmt.modules.feed_forward import FeedForward
from relu_nmt.modules.multihead import CrossAttention, SelfAttention
from relu_nmt.modules.positions import RelativePositions
from relu_nmt.modules.transformer_layer import Residual, RMSNorm, TransformerLayer
from relu_nmt.translation.base import SearchStep
from relu_nmt.translation.decoder_state import LayerCache

Values = dict[str, Any]
"""The values of the fields of a struct of native/arguments.inc."""
KERNELS = {
    "linear_float": ("layers_step_float", torch.float32),
    "linear_bfloat16": ("layers_step_bfloat16", torch.bfloat16),
    "linear_int8": ("layers_step_int8", torch.float16),
}
"""The kernel of layers and the dtype of its caches, by the kernel of the affine maps.

Rounding keys and values to float16 adds little to the error of 8-bit products."""

SUPPORTED_ATTENTIONS = (SoftmaxAttention, ReLUFormerAttention, ThresholdedReLUAttention)
"""Classes that the kernel computes, not their subclasses, which may compute something else."""
HEAD_MULTIPLE = 16
"""The width of a head must be a multiple of this."""
MAX_QUERIES = 64
"""Use the kernel up to this many newest tokens of a tree."""
MAX_ROWS = 16
"""Compute whole layers in one thread up to this many rows, whatever the number of threads."""


class FastCache(LayerCache):
    """A cache to which the kernel writes, and which may store 16-bit keys and values."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__(keys, values)
        self.dtype = keys.dtype

    def memory(self) -> tuple[Tensor, Tensor]:
        return _as(self.source, self.dtype)

    def append_keys(self, keys: Tensor, values: Tensor, used: int) -> tuple[Tensor, Tensor]:
        all_keys, all_values = _as(super().append_keys(keys, values, used), keys.dtype)
        if keys.is_cpu and keys.dtype.itemsize == 2:
            # Products in 16 bits copy slices, and copies of a transposed slice are slow.
            return all_keys.contiguous(), all_values.contiguous()
        return all_keys, all_values

    def for_kernel(self, shape: tuple[int, int, int, int], dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the fields of ``Cache`` of native/arguments.inc. The kernel writes new entries.

        ``shape`` is R, H, k and d of the first step.
        """
        self.keep_as(dtype)
        # Allocate the entries of the first step only. The state adds capacity later. In the first
        # step the kernel leaves out entries of dead beams, which must not be NaN: 0 * NaN is NaN.
        if self.target is None:
            self.target = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        keys, values = self.target
        memory_keys, memory_values = self.source
        return {
            "keys": keys,
            "values": values,
            "memory_keys": memory_keys,
            "memory_values": memory_values,
        }

    def keep_as(self, dtype: torch.dtype) -> None:
        """Store keys and values in this dtype, which may differ from the compute dtype."""
        self.source = _as(self.source, dtype)
        if self.target is not None:
            self.target = _as(self.target, dtype)


def _as(pair: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    keys, values = pair
    if keys.dtype == dtype:
        return pair
    if dtype == torch.float16:  # clamp numbers beyond its range
        largest = torch.finfo(dtype).max
        keys = keys.clamp(-largest, largest)
        values = values.clamp(-largest, largest)
    return keys.to(dtype), values.to(dtype)


@dataclass(frozen=True)
class StepView:
    """A step of one search in a decoder: its rows and the tokens visible to them."""

    num_rows: int  # N, number of computed beams
    num_trees: int  # R, trees of k beams each
    # [N] int64, indices of the computed beams among all R k = B K, rising. None: all.
    computed: Tensor | None
    # The cache entries visible to the beams of each tree, their newest ones included.
    visibility: Visibility
    # The position scheme's rotation and bias, computed once for all layers.
    relative: RelativePositions
    memory_visibility: Visibility  # the memory visible to the beams of each sentence
    caches: Sequence[FastCache]  # keys and values of each layer


class _KernelWeights(NamedTuple):
    """The weights of all layers, which do not change between steps."""

    address: int  # of the first norm, which moves if the model moves
    tensors: list[Values]  # the weights, held here because ``fields`` has their addresses
    fields: Values  # fields of ``Layers`` of native/arguments.inc


class LayersKernel:
    """A step of all layers of a decoder in one call.

    The kernel computes layers that are all alike. Their affine maps have panels of one kind, their
    attention is softmax or rectifies scores, and has no learned gains, gates, or norms of queries
    and keys. The feed-forward network is plain with ReLU. The norms are LayerNorm or RMSNorm.
    """

    def __init__(self, layers: Sequence[TransformerLayer]) -> None:
        self.layers = list(layers)
        self.linears: list[PanelLinear] = []
        self.attentions: list[Attention] = []
        for layer in layers:
            linears, _, attentions = _parts(layer)
            self.linears += linears.values()
            self.attentions += attentions
        self.kernel, self.cache_dtype = KERNELS[self.linears[0].kernel]
        self.largest = max(self.linears, key=lambda linear: linear.weight.numel())
        self._weights: _KernelWeights | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the addresses, which are valid in one process only."""
        return {**vars(self), "_weights": None}

    @classmethod
    def supports(cls, layers: Sequence[TransformerLayer]) -> bool:
        """Return whether the kernel can compute these layers."""
        if not layers or not all(map(_is_supported, layers)):
            return False
        form = _form(layers[0])
        if any(_form(layer) != form for layer in layers):
            return False
        # Require affine maps of one kernel, for which there is also a kernel of whole layers.
        kernels, norms = form[:2]
        if len(norms) != 1 or len(kernels) != 1 or not kernels <= KERNELS.keys():
            return False
        return native.has_kernel(KERNELS[min(kernels)][0])

    def takes(self, steps: Sequence[SearchStep], num_rows: int) -> bool:
        """Return whether the kernel can compute these steps, and is the faster way.

        ``num_rows`` is the number of computed beams of all searches.
        """
        norm = _norm(self.layers[0].self_attention_residual)
        return (
            # Use one thread only where few threads or few rows leave little to share.
            (native.is_wanted() or num_rows <= MAX_ROWS)
            and norm.weight.dtype == torch.float32
            and norm.weight.is_cpu
            # Leave training and traced models to PyTorch.
            and not (torch.is_grad_enabled() or self.layers[0].training)
            and not (torch.compiler.is_compiling() or torch.jit.is_tracing())
            # Require that the kernel is faster, and that its copies hold the current weights.
            and self.largest.wants_kernel(num_rows, computing_dtype(norm.weight))
            and all(linear.is_current for linear in self.linears)
            # Leave attention that hooks watch, or that names a back end, to the model's own layers.
            and all(_is_plain(attention) for attention in self.attentions)
            and all(step.tokens.size(1) <= MAX_QUERIES for step in steps)
        )

    def __call__(self, x: Tensor, views: Sequence[StepView]) -> Tensor:
        """Return the states behind the last layer, before the final norm.

        The kernel writes the states to x [1, N, D], which must lie in memory without gaps, and new
        entries to the caches.
        """
        # Renew the addresses if the norms have moved, for example into shared memory.
        norm = _norm(self.layers[0].self_attention_residual)
        weights = self._weights
        if weights is None or weights.address != norm.weight.data_ptr():
            # Assign the finished object, because other threads may use it.
            weights = self._weights = _kernel_weights(self.layers)
        layers = {"states": x, "rows": x.size(1), "searches": len(views), **weights.fields}
        structs = [("Layers", layers)]
        for view in views:
            structs += self._search(view, width=x.size(2))
        assert norm.eps is not None, "the layers set an epsilon"
        native.call(self.kernel, structs, norm.eps)
        return x

    def _search(self, view: StepView, width: int) -> list[tuple[str, Values]]:
        """Return the structs of a search and of its caches of all layers."""
        attention, cross = self.attentions[:2]
        size = view.visibility.num_queries
        # Make room in each layer's cache.
        first_shape = view.num_trees, attention.num_heads, size, attention.head_dim
        caches = [cache.for_kernel(first_shape, self.cache_dtype) for cache in view.caches]
        first_cache = caches[0]

        cosines = sines = bias = None
        if view.relative.rotation is not None:
            cosines, sines = view.relative.rotation
        if view.relative.bias is not None:
            bias = view.relative.bias.values().float().contiguous()
        self_fields = attention_fields(
            attention, view.visibility, first_cache["keys"], first_cache["values"], bias
        )
        memory_fields = attention_fields(
            cross, view.memory_visibility, first_cache["memory_keys"], first_cache["memory_values"]
        )
        # Queries are columns of the projected rows: [N, 3 D] and, for cross-attention, [N, D].
        self_fields |= {"rows": view.num_rows, "q_row": 3 * width}
        memory_fields |= {"rows": view.num_rows, "q_row": width}
        search = {
            "picked": view.computed,
            "cosines": cosines,
            "sines": sines,
            "own": self_fields,
            "memory": memory_fields,
        }
        return [("Search", search), *(("Cache", tensors) for tensors in caches)]


def _kernel_weights(layers: Sequence[TransformerLayer]) -> _KernelWeights:
    """Collect the weights of all layers. The kernel reads norms themselves, not copies."""
    weights: list[Values] = []
    for layer in layers:
        linears, residuals, _ = _parts(layer)
        fields: Values = {name: linear.kernel_weights for name, linear in linears.items()}
        for name, residual in residuals.items():
            norm = _norm(residual)
            fields[name] = {"gain": norm.weight, "bias": getattr(norm, "bias", None)}
        weights.append(fields)
    # Read the sizes from the last layer, since all layers are alike.
    inner = linears["inner"]
    outer = linears["outer"]
    norm = _norm(layers[0].self_attention_residual)
    words = [native.struct_words("LayerWeights", layer_weights) for layer_weights in weights]
    fields = {
        "weights": torch.tensor(words),
        "layers": len(layers),
        "width": outer.weight.size(0),
        "inner": outer.weight.size(1),
        "groups": inner.num_groups,
        "inner_groups": outer.num_groups,
        "normed_before": layers[0].feed_forward_residual.normalize_before,
        "centered": isinstance(norm, nn.LayerNorm),
    }
    return _KernelWeights(norm.weight.data_ptr(), weights, fields)


def _is_supported(layer: TransformerLayer) -> bool:
    """Return whether the kernel computes what the modules of a layer compute."""
    attention = layer.self_attention
    cross = layer.cross_attention
    network = layer.feed_forward
    is_relu = type(network) is FeedForward and network.activation is F.relu
    if cross is None or not is_relu:
        return False
    # Require plain modules, whose computations the kernel repeats.
    if type(attention) is not SelfAttention or type(cross) is not CrossAttention:
        return False
    linears, residuals, attentions = _parts(layer)
    if attention.parts != 3 or not all(map(_has_kernel, attentions)):
        return False
    for residual in residuals.values():
        norm = _norm(residual)
        if type(norm) not in (nn.LayerNorm, RMSNorm) or norm.weight is None:
            return False
        if residual.gain is not None:
            return False
    return all(isinstance(linear, PanelLinear) and linear.has_kernel for linear in linears.values())


def _form(layer: TransformerLayer) -> tuple[Any, ...]:
    """Return the kernels, norms, attentions and sizes of a layer, which all layers must share."""
    linears, residuals, attentions = _parts(layer)
    norms = [_norm(residual) for residual in residuals.values()]
    return (
        {linear.kernel for linear in linears.values()},
        {(type(norm), norm.eps) for norm in norms},
        layer.feed_forward_residual.normalize_before,
        [(type(a), a.config, a.num_heads, a.head_dim) for a in attentions],
        linears["outer"].weight.shape,
    )


def _parts(
    layer: TransformerLayer,
) -> tuple[dict[str, PanelLinear], dict[str, Residual], list[Attention]]:
    """Return a layer's maps and residuals, by names in ``LayerWeights``, and its attentions."""
    attention = layer.self_attention
    cross = layer.cross_attention
    network = layer.feed_forward
    assert cross is not None, "the kernel is for decoders"
    linears = {
        "qkv": attention.qkv,
        "own_out": attention.out_proj,
        "query": cross.q,
        "memory_out": cross.out_proj,
        "inner": network.inner,
        "outer": network.outer,
    }
    residuals = {
        "own_norm": layer.self_attention_residual,
        "memory_norm": layer.cross_attention_residual,
        "feed_forward_norm": layer.feed_forward_residual,
    }
    return cast(dict[str, PanelLinear], linears), residuals, [attention.attention, cross.attention]


def _norm(residual: Residual) -> nn.LayerNorm | RMSNorm:
    return cast(nn.LayerNorm | RMSNorm, residual.norm)


def _has_kernel(attention: Attention) -> bool:
    """Return whether the kernel computes all of an attention, learned maps included."""
    return (
        type(attention) in SUPPORTED_ATTENTIONS
        and not (isinstance(attention, PointwiseAttention) and attention.gain() is not None)
        and attention.query_gain is None
        and type(attention).finish is Attention.finish
        and attention.head_dim % HEAD_MULTIPLE == 0
    )


def _is_plain(attention: Attention) -> bool:
    """Return whether no hook reads the attention, and no back end is named."""
    hooks = attention._forward_pre_hooks or attention._forward_hooks
    return not hooks and attention.backend == "auto"


def attention_fields(
    attention: Attention,
    visibility: Visibility,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None = None,
) -> Values:
    """Return the fields of ``Attention`` of arguments.inc, without ``rows`` and ``q_row``.

    Keys and values are [B, H, capacity, d], the bias is [B or 1, H, Nq, Nk].
    """
    visible = visibility.mask
    if visible is not None and visible.stride(-1) != 1:
        visible = visible.contiguous()
    scales = None
    thresholds = None
    power = 0
    centered = False
    if isinstance(attention, PointwiseAttention):
        scales = attention.row_scale(visibility.positive_counts)[..., None].float()
        power = attention.config.power
        is_thresholded = isinstance(attention, ThresholdedReLUAttention)
        if is_thresholded:
            thresholds = _thresholds(power)
        centered = is_thresholded or attention.config.centered
    # Pass strides in elements, so that the kernel reads views without copies.
    strides = {}
    for name, tensor in (("k", keys), ("v", values)):
        for dim, axis in enumerate(("batch", "head", "row")):
            strides[f"{name}_{axis}"] = tensor.stride(dim)
    return {
        **strides,
        "heads": attention.num_heads,
        "queries": visibility.num_queries,
        "keys": visibility.num_keys,
        "width": attention.head_dim,
        "visible": visible,
        "visible_batch": _stride(visible, 0),
        "visible_query": _stride(visible, 2),
        "bias": bias,
        "bias_batch": _stride(bias, 0),
        "bias_head": _stride(bias, 1),
        "bias_query": _stride(bias, 2),
        "scales": scales,
        "scale_batch": _stride(scales, 0),
        "scale_query": _stride(scales, 2),
        "thresholds": thresholds,
        "power": power,
        "centered": centered,
    }


@cache
def _thresholds(power: int) -> Tensor:
    """Return the table of thresholds of a power, as the kernel reads it, [4 + 6 T] float32."""
    polynomials = thresholded_relu.threshold_table(power, torch.float32, torch.device("cpu"))
    first = thresholded_relu.first_of_table(power)
    last_position = (thresholded_relu.LARGEST - 1 - first) * thresholded_relu.INTERVALS
    limits = [thresholded_relu.LEAST_VARIANCE, first, thresholded_relu.INTERVALS, last_position]
    return torch.cat([torch.tensor(limits), polynomials.flatten()])


def _stride(x: Tensor | None, dim: int) -> int:
    """Return the stride of a dimension, or 0 if its size is 1, so that all share its element."""
    return 0 if x is None or x.size(dim) == 1 else x.stride(dim)

"""A step of a decoder's layers in one call of a kernel in C++, instead of some sixty a layer.

A step of a search computes so little that with a few sentences, or 8-bit integers, most of its time
is spent between products: on Python, on PyTorch's calls, and on memory that goes to and fro.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise import PointwiseAttention
from relu_nmt.engine import native
from relu_nmt.engine.attention_kernel import MOST_QUERIES, MULTIPLE, form, has_map, shape, with_rows
from relu_nmt.engine.packed_linear import GROUP_BYTES, PanelLinear, computing_dtype
from relu_nmt.engine.rows import FastCache, LayerStep
from relu_nmt.modules.feed_forward import ReluFeedForward
from relu_nmt.modules.multihead import CrossAttention, SelfAttention
from relu_nmt.modules.transformer_layer import Residual, RMSNorm, TransformerLayer

KERNELS = {
    "linear_float": ("layers_step_float", torch.float32, torch.float32),
    "linear_bfloat16": ("layers_step_bfloat16", torch.bfloat16, torch.bfloat16),
    "linear_int8": ("layers_step_int8", torch.float32, torch.float16),
}
"""By that of their products, the kernel of layers, its type of numbers, and that of keys and values
in caches: beside the 8 bits that they are made with, the rounding to 16 is small."""
FEW_ROWS = 16
"""Up to which there is nothing for several threads to share."""


class LayersKernel:
    """A step of all layers of a decoder in one call, where the kernel computes them.

    That is: layers alike, whose affine maps all have panels of one kind, with softmax attention or
    one that rectifies scores, without learnt gains, gates or norms of queries and keys; a plain
    feed-forward network with ReLU; LayerNorm or RMSNorm on either side.

    Args:
        layers: of a decoder, that :meth:`fits`.
    """

    def __init__(self, layers: Sequence[TransformerLayer]) -> None:
        self.layers = list(layers)
        linears = [linear for layer in layers for linear in _linears(layer)]
        self.linears = cast(list[PanelLinear], linears)
        self.attentions = [attention for layer in layers for attention in _attentions(layer)]
        self.kernel, self.dtype, self.kept = KERNELS[self.linears[0].kernel]
        self.largest = max(self.linears, key=lambda linear: linear.weight.numel())
        self._constant: _Constant | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made when it is first needed."""
        return {**vars(self), "_constant": None}

    @classmethod
    def fits(cls, layers: Sequence[TransformerLayer]) -> bool:
        """Return whether the kernel computes what all of these layers do."""
        kinds = [_kind(layer) for layer in layers]
        return bool(kinds) and kinds[0] is not None and kinds.count(kinds[0]) == len(kinds)

    def takes(self, x: Tensor, steps: Sequence[Sequence[LayerStep]]) -> bool:
        """Return whether the kernel computes this step, and is the faster way.

        Args:
            x: the newest tokens' states [1, N, D].
            steps: of each layer, of each search.
        """
        num_rows, dtype = x.size(1), computing_dtype(x)
        return (
            (native.is_wanted() or num_rows <= FEW_ROWS)
            and x.dtype == torch.float32
            and x.is_cpu
            and not (torch.is_grad_enabled() or self.layers[0].training)
            and not (torch.compiler.is_compiling() or torch.jit.is_tracing())
            and self.largest.wants_kernel(num_rows, dtype)
            and all(linear.is_current for linear in self.linears)
            and all(_is_plain(attention) for attention in self.attentions)
            and all(_sees_all(step) for step in steps[0])
        )

    def __call__(self, x: Tensor, steps: Sequence[Sequence[LayerStep]]) -> Tensor:
        """Return the states [1, N, D] behind the last layer, before the final norm.

        Args:
            x: the newest tokens' states [1, N, D].
            steps: of each layer, of each search; their caches are added to.
        """
        num_rows, width = x.shape[1:]
        constant = self._constant
        if constant is None or constant.is_moved:
            # All at once, as others may use it in other threads.
            constant = self._constant = _Constant.of(self)
        states = x.clone(memory_format=torch.contiguous_format)
        room = torch.empty(num_rows * constant.room_of_a_row, dtype=torch.uint8)
        tensors: list[Tensor | None] = [states, room, constant.addresses]
        sizes = [num_rows, *constant.sizes, len(steps[0])]
        for of_search in zip(*steps, strict=True):
            self._add(of_search, width, tensors, sizes)
        native.call(self.kernel, tensors, sizes, constant.epsilon)
        return states

    def _add(
        self,
        steps: Sequence[LayerStep],
        width: int,
        tensors: list[Tensor | None],
        sizes: list[int],
    ) -> None:
        """Add what the kernel reads of a search, and where it writes its keys and values.

        Args:
            steps: of each layer; they differ in their caches alone, which are made alike.
            width: of the states.
            tensors: the kernel's; added to.
            sizes: likewise.
        """
        step, (attention, cross) = steps[0], self.attentions[:2]
        own, memory, relative = step.visibility, step.memory_visibility, step.relative
        rows, queries = step.num_rows, own.num_queries
        # Where the cache is empty, all beams are computed.
        shape_of_keys = (rows // queries, attention.num_heads, attention.head_dim)
        caches: list[Tensor] = []
        for each in steps:
            cache = cast(FastCache, each.cache)
            cache.keep_as(self.kept)
            caches += cache.reserve(own, shape_of_keys, self.kept)
            caches += each.cache.source
        rotation = None if relative is None else relative.rotation
        turns = (None, None) if rotation is None else (rotation.cosines, rotation.sines)
        bias = None if relative is None or relative.bias is None else relative.bias.values()
        bias = None if bias is None else bias.float().contiguous()
        scales, memory_scales = _scales(attention, own), _scales(cross, memory)
        picked = None if step.computed is None else step.computed.rows
        visible, memory_visible = (
            None if m is None else with_rows(m) for m in (own.mask, memory.mask)
        )
        tensors += (picked, visible, bias, scales, *turns, memory_visible, memory_scales, *caches)
        keys, values, memory_keys, memory_values = caches[:4]
        strides = (queries * 3 * width, attention.head_dim, 3 * width)
        seen = (keys, values, visible, bias, scales)
        sizes += (rows, *shape(rows, queries, strides, *seen, *form(attention)))
        queries = memory.num_queries
        strides = (queries * width, cross.head_dim, width)
        seen = (memory_keys, memory_values, memory_visible, None, memory_scales)
        sizes += shape(rows, queries, strides, *seen, *form(cross))


@dataclass(frozen=True)
class _Constant:
    """What the kernel is told at every step of the same layers.

    Args:
        addresses: of the weights and norms of each layer, int64 [30 L]; 0 for none.
        tensors: what is there, which is to stay.
        sizes: those in its shape.
        room_of_a_row: bytes for what it makes of a row of states.
        epsilon: of the norms.
        norm: weight of the first norm; unlike panels, norms are not copied.
        address: where it was.
    """

    addresses: Tensor
    tensors: list[Tensor | None]
    sizes: tuple[int, ...]
    room_of_a_row: int
    epsilon: float
    norm: Tensor
    address: int

    @property
    def is_moved(self) -> bool:
        """Return whether the norms are elsewhere now, as in memory that processes share."""
        return self.norm.data_ptr() != self.address

    @classmethod
    def of(cls, step: LayersKernel) -> "_Constant":
        tensors: list[Tensor | None] = []
        for layer in step.layers:
            for linear in cast(list[PanelLinear], _linears(layer)):
                tensors += linear.panels
            for norm in _norms(layer):
                tensors += (norm.weight, getattr(norm, "bias", None))
        addresses = torch.tensor([0 if x is None else x.data_ptr() for x in tensors])
        first, last = step.linears[0], step.linears[-1]
        width, inner = last.weight.shape
        groups, inner_groups = first.num_groups(width), last.num_groups(inner)
        before = step.layers[0].feed_forward_residual.normalize_before
        [norm, *_] = _norms(step.layers[0])
        sizes = (width, inner, groups, inner_groups, before, isinstance(norm, nn.LayerNorm))
        numbers = (width + max(3 * width, inner)) * step.dtype.itemsize
        # Levels, as words where products are of 16 bits, a scale and a zero.
        levels = 2 * max(groups, inner_groups) * GROUP_BYTES + 8
        assert norm.eps is not None, "ours have one"
        constant = addresses, tensors, (*sizes, len(step.layers)), numbers + levels, norm.eps
        return cls(*constant, norm.weight, norm.weight.data_ptr())


def _kind(layer: TransformerLayer) -> tuple[Any, ...] | None:
    """Return what layers are to have in common, if the kernel computes what this one does."""
    own, cross = layer.self_attention, layer.cross_attention
    if cross is None or type(layer.feed_forward) is not ReluFeedForward:
        return None
    residuals, linears, norms = _residuals(layer), _linears(layer), _norms(layer)
    kernels = {
        linear.kernel if isinstance(linear, PanelLinear) and linear.has_kernel else ""
        for linear in linears
    }
    fits = (
        own.parts == 3
        and type(own) is SelfAttention
        and type(cross) is CrossAttention
        and all(_has_kernel(attention) for attention in _attentions(layer))
        and all(residual.gain is None for residual in residuals)
        and {type(norm) for norm in norms} in ({nn.LayerNorm}, {RMSNorm})
        and all(isinstance(norm.weight, Tensor) for norm in norms)
        and len({norm.eps for norm in norms}) == 1
        and kernels in ({name} for name in KERNELS)
        and native.has_kernel(KERNELS[next(iter(kernels))][0])
    )
    if not fits:
        return None
    forms = [(type(a), a.config, a.num_heads, a.head_dim) for a in _attentions(layer)]
    normed = type(norms[0]), norms[0].eps, layer.feed_forward_residual.normalize_before
    return kernels, normed, forms, cast(Tensor, linears[-1].weight).shape


def _residuals(layer: TransformerLayer) -> list[Residual]:
    residuals = [layer.self_attention_residual, layer.cross_attention_residual]
    return [*residuals, layer.feed_forward_residual]


def _linears(layer: TransformerLayer) -> list[nn.Module]:
    """Return the affine maps of a layer, in the order in which they come."""
    own, cross, network = layer.self_attention, layer.cross_attention, layer.feed_forward
    assert cross is not None, "the kernel is for decoders"
    parts = [own.qkv, own.out_proj, cross.q, cross.out_proj, network.inner, network.outer]
    return cast(list[nn.Module], parts)


def _norms(layer: TransformerLayer) -> list[nn.LayerNorm | RMSNorm]:
    return cast(list[nn.LayerNorm | RMSNorm], [part.norm for part in _residuals(layer)])


def _attentions(layer: TransformerLayer) -> list[Attention]:
    assert layer.cross_attention is not None, "the kernel is for decoders"
    return [layer.self_attention.attention, layer.cross_attention.attention]


def _has_kernel(attention: Attention) -> bool:
    """Return whether the kernel computes all of an attention, its own maps included."""
    return (
        has_map(attention)
        and (not isinstance(attention, PointwiseAttention) or attention.gain() is None)
        and attention.query_gain is None
        and type(attention).finish is Attention.finish
        and attention.head_dim % MULTIPLE == 0
    )


def _is_plain(attention: Attention) -> bool:
    """Return whether nobody looks at the attention, or wants another way to compute it."""
    looked_at = attention._forward_pre_hooks or attention._forward_hooks
    return not looked_at and attention.backend in ("auto", "native")


def _sees_all(step: LayerStep) -> bool:
    """Return whether attention is all to the own tree, and to the whole source."""
    own, memory = step.visibility, step.memory_visibility
    keys, values = step.cache.source
    return (
        max(own.num_queries, memory.num_queries) <= MOST_QUERIES
        and keys.stride(3) == values.stride(3) == 1
    )


def _scales(attention: Attention, visibility: Visibility) -> Tensor | None:
    """Return the factors of the rows of weights, [B or 1, 1, Nq or 1, 1]; None for softmax."""
    if isinstance(attention, PointwiseAttention):
        return attention.row_scale(visibility.positive_counts)[..., None].float()
    return None

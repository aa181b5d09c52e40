"""A step of a decoder layer in one call of a kernel in C++, instead of some sixty of PyTorch.

A step of a search computes so little that with a few sentences, or 8-bit integers, most of its time
is spent between products: on Python, on PyTorch's calls, and on memory that goes to and fro.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from relu_nmt import native
from relu_nmt.attention.backends.native import (
    MAPS,
    MOST_QUERIES,
    MULTIPLE,
    is_known,
    shape,
    with_rows,
)
from relu_nmt.attention.base import Attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise import PointwiseAttention
from relu_nmt.attention.softmax import SoftmaxAttention
from relu_nmt.decoding.packed_linear import GROUP_BYTES, PanelLinear, computing_dtype
from relu_nmt.modules.feed_forward import ReluFeedForward
from relu_nmt.modules.layer_cache import LayerStep
from relu_nmt.modules.transformer_layer import Residual, RMSNorm, TransformerLayer

KERNELS = {
    "linear_float": ("layer_step_float", torch.float32, torch.float32),
    "linear_bfloat16": ("layer_step_bfloat16", torch.bfloat16, torch.bfloat16),
    "linear_int8": ("layer_step_int8", torch.float32, torch.float16),
}
"""By that of its products, the kernel of a layer, its type of numbers, and that of keys and values
in caches: beside the 8 bits that they are made with, the rounding to 16 is small."""
FEW_ROWS = 16
"""Up to which there is nothing for several threads to share."""


class NativeStep:
    """What :meth:`TransformerLayer.step` does, in one call, where the kernel can.

    That is: layers whose affine maps all have panels of one kind, with softmax attention or one
    that rectifies scores, without learnt gains, gates or norms of queries and keys; a plain
    feed-forward network with ReLU; LayerNorm or RMSNorm on either side.

    Args:
        layer: one that :meth:`fits`.
    """

    def __init__(self, layer: TransformerLayer) -> None:
        self.layer = layer
        self.linears = cast(list[PanelLinear], _linears(layer))
        self.norms = cast(list[nn.LayerNorm | RMSNorm], [r.norm for r in _residuals(layer)])
        assert layer.cross_attention is not None, "it fits"
        self.attentions = layer.self_attention.attention, layer.cross_attention.attention
        self.kernel, self.dtype, self.kept = KERNELS[self.linears[0].kernel]
        self.largest = max(self.linears, key=lambda linear: linear.weight.numel())
        self._constant: tuple[Tensor, list[Tensor | None]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made when it is first needed."""
        return {**vars(self), "_constant": None}

    @classmethod
    def fits(cls, layer: TransformerLayer) -> bool:
        """Return whether the kernel computes what a layer does."""
        own, cross = layer.self_attention, layer.cross_attention
        if cross is None or type(layer.feed_forward) is not ReluFeedForward:
            return False
        residuals, linears = _residuals(layer), _linears(layer)
        norms = [residual.norm for residual in residuals]
        kernels = {
            linear.kernel if isinstance(linear, PanelLinear) and linear.has_kernel else ""
            for linear in linears
        }
        return (
            own.parts == 3
            and own.gate is None
            and cross.gate is None
            and all(_has_kernel(attention) for attention in (own.attention, cross.attention))
            and all(residual.gain is None for residual in residuals)
            and {type(norm) for norm in norms} in ({nn.LayerNorm}, {RMSNorm})
            and all(isinstance(norm.weight, Tensor) for norm in norms)
            and len({norm.eps for norm in norms}) == 1
            and kernels in ({name} for name in KERNELS)
            and native.has_kernel(KERNELS[kernels.pop()][0])
        )

    def takes(self, x: Tensor, steps: Sequence[LayerStep]) -> bool:
        """See :meth:`QuickStep.takes`."""
        num_rows, dtype = x.size(1), computing_dtype(x)
        return (
            (native.is_wanted() or num_rows <= FEW_ROWS)
            and x.dtype == torch.float32
            and x.is_cpu
            and not (torch.is_grad_enabled() or self.layer.training)
            and not (torch.compiler.is_compiling() or torch.jit.is_tracing())
            and self.largest.wants_kernel(num_rows, dtype)
            and all(linear.is_current for linear in self.linears)
            and all(_is_plain(attention) for attention in self.attentions)
            and all(self._takes(step) for step in steps)
        )

    def __call__(self, x: Tensor, steps: Sequence[LayerStep]) -> Tensor:
        """See :meth:`TransformerLayer.step`."""
        linears, norms, (_, num_rows, width) = self.linears, self.norms, x.shape
        inner = linears[-1].weight.size(1)
        groups, inner_groups = linears[0].num_groups(width), linears[-1].num_groups(inner)
        states = x.clone(memory_format=torch.contiguous_format)
        room = _room(num_rows, width, inner, max(groups, inner_groups), self.dtype)
        tensors: list[Tensor | None] = [states, room, self._addresses()]
        normalize_before = self.layer.feed_forward_residual.normalize_before
        sizes = [num_rows, width, inner, groups, inner_groups]
        sizes += [normalize_before, isinstance(norms[0], nn.LayerNorm), len(steps)]
        for step in steps:
            self._add(step, width, tensors, sizes)
        assert norms[0].eps is not None, "ours have one"
        native.call(self.kernel, tensors, sizes, norms[0].eps)
        return states

    def _addresses(self) -> Tensor:
        """Return where the weights and norms are, int64 [30]; 0 for none."""
        if self._constant is None:
            constant = [part for linear in self.linears for part in linear.panels]
            for norm in self.norms:
                constant += (norm.weight, getattr(norm, "bias", None))
            addresses = torch.tensor([0 if x is None else x.data_ptr() for x in constant])
            # All at once, as others may use it in other threads; the tensors are to stay there.
            self._constant = addresses, constant
        return self._constant[0]

    def _takes(self, step: LayerStep) -> bool:
        """Whether attention is all to the own tree, and to the whole source."""
        own, memory = step.visibility, step.memory_visibility
        keys, values = step.cache.source
        return (
            own.sentences is None
            and memory.sentences is None
            and max(own.num_queries, memory.num_queries) <= MOST_QUERIES
            and keys.stride(3) == values.stride(3) == 1
        )

    def _add(
        self, step: LayerStep, width: int, tensors: list[Tensor | None], sizes: list[int]
    ) -> None:
        """Add what the kernel reads of a step, and where it writes its keys and values."""
        own, memory, relative = step.visibility, step.memory_visibility, step.relative
        attention, cross = self.attentions
        rows, queries = step.num_tokens, own.num_queries
        # Where the cache is empty, all beams are computed.
        shape_of_keys = (rows // queries, attention.num_heads, attention.head_dim)
        step.cache.keep_as(self.kept)
        keys, values = step.cache.room(own, shape_of_keys, self.kept)
        rotation = None if relative is None else relative.rotation
        turns = (None, None) if rotation is None else (rotation.cosines, rotation.sines)
        bias = None if relative is None or relative.bias is None else relative.bias.values()
        bias = None if bias is None else bias.float().contiguous()
        scales, memory_scales = _scales(attention, own), _scales(cross, memory)
        picked = None if step.computed is None else step.computed.taken
        visible, memory_visible = (
            None if m is None else with_rows(m) for m in (own.mask, memory.mask)
        )
        tensors += (picked, keys, values, visible, bias, scales, *turns)
        tensors += (*step.cache.source, memory_visible, memory_scales)
        strides = (queries * 3 * width, attention.head_dim, 3 * width)
        seen = (keys, values, visible, bias, scales)
        sizes += (rows, *shape(rows, queries, strides, *seen, *_form(attention)))
        queries = memory.num_queries
        strides = (queries * width, cross.head_dim, width)
        seen = (*step.cache.source, memory_visible, None, memory_scales)
        sizes += shape(rows, queries, strides, *seen, *_form(cross))


def use_native_steps(model: nn.Module) -> None:
    """Let the decoder layers of a model take a step in one call, where the kernel can.

    Args:
        model: changed in place; its affine maps have panels already.
    """
    for layer in model.modules():
        if isinstance(layer, TransformerLayer) and native.library() and NativeStep.fits(layer):
            layer.quick_step = NativeStep(layer)


def _residuals(layer: TransformerLayer) -> list[Residual]:
    residuals = [layer.self_attention_residual, layer.cross_attention_residual]
    return [*residuals, layer.feed_forward_residual]


def _linears(layer: TransformerLayer) -> list[nn.Module]:
    """Return the affine maps of a layer, in the order in which they come."""
    own, cross, network = layer.self_attention, layer.cross_attention, layer.feed_forward
    assert cross is not None, "the kernel is for decoders"
    parts = [own.qkv, own.out_proj, cross.q, cross.out_proj, network.inner, network.outer]
    return cast(list[nn.Module], parts)


def _has_kernel(attention: Attention) -> bool:
    """Whether the kernel computes all of an attention that goes before and behind it, too."""
    if isinstance(attention, PointwiseAttention):
        has_map = attention.map.name in MAPS and attention.gain() is None
    else:
        has_map = isinstance(attention, SoftmaxAttention)
    return (
        has_map
        and is_known(attention)
        and attention.query_gain is None
        and type(attention).finish is Attention.finish
        and attention.head_dim % MULTIPLE == 0
    )


def _is_plain(attention: Attention) -> bool:
    """Whether nobody looks at the attention, or wants another way to compute it."""
    looked_at = attention._forward_pre_hooks or attention._forward_hooks
    return not looked_at and attention.backend in ("auto", "native")


def _form(attention: Attention) -> tuple[int, bool]:
    """Return the number of the map of the scores, and whether they lose their mean."""
    if isinstance(attention, PointwiseAttention):
        return MAPS[attention.map.name], attention.centered
    return MAPS["softmax"], False


def _scales(attention: Attention, visibility: Visibility) -> Tensor | None:
    """Return the factors of the rows of weights, [B or 1, 1, Nq or 1, 1]; None for softmax."""
    if isinstance(attention, PointwiseAttention):
        return attention.row_scale(visibility.positive_counts)[..., None].float()
    return None


def _room(num_rows: int, width: int, inner: int, groups: int, dtype: torch.dtype) -> Tensor:
    """Return memory for what a step makes of its states."""
    numbers = num_rows * (width + max(3 * width, inner)) * dtype.itemsize
    # Levels, as words where products are of 16 bits, a scale and a zero.
    size = numbers + num_rows * (2 * groups * GROUP_BYTES + 8)
    return torch.empty(size, dtype=torch.uint8)

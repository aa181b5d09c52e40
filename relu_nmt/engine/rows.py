"""Steps of several searches in the rows of one matrix, without their dead beams.

Projections, norms and feed-forward networks map the rows of all searches at once. Attention is
computed search by search: its kernel takes only the computed rows, other code queries of all beams.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import AttentionRecord, record_attention
from relu_nmt.engine.attention_kernel import (
    attend_rows,
    put_rows,
    serves_rows,
    take_entries,
    takes,
)
from relu_nmt.modules.multihead import CrossAttention, LayerCache, SelfAttention
from relu_nmt.modules.positions import RelativePositions
from relu_nmt.modules.transformer_layer import TransformerLayer


@dataclass(frozen=True)
class ComputedBeams:
    """The beams that a step computes; all others are dead.

    Args:
        rows: [N] int64, indices of the computed beams among all B K, rising.
        given: [B K] int64, for each beam the index 0 to N - 1 of a computed beam to use in its
            place; for a computed beam its own.

    Example:
        >>> beams = ComputedBeams.of(torch.arange(0, 32, 2), 32)
        >>> beams.rows[:4].tolist(), beams.given[:4].tolist()
        ([0, 2, 4, 6], [0, 0, 1, 1])
    """

    rows: Tensor
    given: Tensor

    @classmethod
    def of(cls, rows: Tensor, num_beams: int, multiple: int = 1) -> "ComputedBeams | None":
        """Return the beams of these rows, with dead ones up to a multiple; None: all beams."""
        live = torch.zeros(num_beams, dtype=torch.bool, device=rows.device).index_fill_(
            0, rows, True
        )
        dead = (~live).nonzero().squeeze(1)
        more = -len(rows) % multiple
        # Compute all beams if dead ones are too few, or all are dead.
        if len(dead) <= more or len(rows) == 0:
            return None
        if more:
            live = live.index_fill(0, dead[:more], True)
            rows = live.nonzero().squeeze(1)
        # Give each dead beam the computed one before it.
        return cls(rows, (live.cumsum(0) - 1).clamp_min(0))

    def take(self, x: Tensor) -> Tensor:
        """Return [1, N, D] of x [1, B K, D]."""
        return x.index_select(1, self.rows)

    def give(self, x: Tensor) -> Tensor:
        """Return [1, B K, D] of x [1, N, D]."""
        return x.index_select(1, self.given)


@dataclass(frozen=True)
class LayerStep:
    """One search in one layer of a decoder: its rows and the tokens visible to them.

    Args:
        num_rows: N, number of computed beams.
        computed: the computed beams; None: all R k = B K.
        visibility: the cache entries visible to the beams of each tree, their own included.
        relative: the position scheme's rotation and bias.
        memory_visibility: the memory visible to the beams of each sentence.
        cache: keys and values.
    """

    num_rows: int
    computed: ComputedBeams | None
    visibility: Visibility
    relative: RelativePositions | None
    memory_visibility: Visibility
    cache: LayerCache

    def beams(self, x: Tensor, num_queries: int) -> Tensor:
        """Expand x [1, N, D] to all beams, [B K / Nq, Nq, D]."""
        if self.computed is not None:
            x = self.computed.give(x)
        return x.reshape(-1, num_queries, x.size(2))

    def own_rows(self, values: Tensor) -> Tensor:
        """Select the computed beams [1, N, D] from all beams [..., D]."""
        row = values.reshape(1, -1, values.size(-1))
        return row if self.computed is None else self.computed.take(row)


def step_layer(
    layer: TransformerLayer, x: Tensor, steps: Sequence[LayerStep], want_weights: bool = False
) -> tuple[Tensor, list[AttentionRecord]]:
    """Map the newest tokens' states through a layer.

    Args:
        layer: the layer.
        x: [1, N, D], the rows of all searches, one search after the other.
        steps: the searches; their caches grow.
        want_weights: also return a record of the cross-attention's weights for each search.
    """
    own, cross = layer.self_attention, layer.cross_attention
    assert cross is not None, "decoders attend to an encoder"
    sizes, records = [step.num_rows for step in steps], []
    # Self-attention: project all rows, attend search by search.
    residual = layer.self_attention_residual
    y = residual.before(x)
    parts = own.qkv(y).split(sizes, dim=1)
    made = [_self_values(own, *each) for each in zip(parts, steps, strict=True)]
    x = residual.add(x, own.finish(_joined(made), y))
    # Cross-attention, likewise.
    residual = layer.cross_attention_residual
    y = residual.before(x)
    made = []
    for q, step in zip(cross.q(y).split(sizes, dim=1), steps, strict=True):
        with record_attention(cross.attention, Need(weights=want_weights)) as found:
            made.append(_cross_values(cross, q, step))
        records += found[:1]  # gated aligned attention has a second record, of the whole document
    x = residual.add(x, cross.finish(_joined(made), y))
    residual = layer.feed_forward_residual
    return residual.add(x, layer.feed_forward(residual.before(x))), records


def _self_values(own: SelfAttention, parts: Tensor, step: LayerStep) -> Tensor:
    """Return the joined heads [1, N, D] of projected rows [1, N, 3 D]."""
    visibility, cache, relative = step.visibility, step.cache, step.relative
    # Attend from all beams, then select, where the kernel does not serve.
    if not _attends_rows(own, parts, step):
        every = step.beams(parts, visibility.num_queries)  # [R, k, 3 D]
        return step.own_rows(own.values(every, visibility, relative, cache))
    assert step.computed is not None and isinstance(cache, FastCache), "checked by _attends_rows"
    rows = step.computed.rows
    q, k, v = own.heads(parts)  # [1, H, N, d]
    bias = None
    if relative is not None:
        # Rotate queries and keys to the positions of their own beams.
        if relative.rotation is not None:
            rotation = relative.rotation.of_rows(rows)
            q, k = rotation.rotate(q), rotation.rotate(k)
        bias = relative.bias
    # Store the newest entries, and attend to all entries in use.
    keys, values = cache.put_rows(k, v, visibility, rows)
    return attend_rows(own.attention, q, keys, values, visibility, bias, rows)


def _cross_values(cross: CrossAttention, q: Tensor, step: LayerStep) -> Tensor:
    """Return the joined heads [1, N, D] of projected rows [1, N, D]."""
    visibility, cache = step.memory_visibility, step.cache
    if not _attends_rows(cross, q, step):
        every = step.beams(q, visibility.num_queries)  # [B, K, D]
        return step.own_rows(cross.values(every, visibility, cache))
    assert step.computed is not None, "checked by _attends_rows"
    heads = cross.attention.map_queries(cross.split(q))  # [1, H, N, d]
    rows = step.computed.rows
    return attend_rows(cross.attention, heads, *cache.memory(), visibility, None, rows)


def _attends_rows(module: SelfAttention | CrossAttention, x: Tensor, step: LayerStep) -> bool:
    """Return whether the kernel attends from the computed rows alone."""
    return (
        step.computed is not None
        and type(module) in (SelfAttention, CrossAttention)
        and isinstance(step.cache, FastCache)
        and step.cache.target is not None
        and serves_rows(module.attention, x)
    )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


class FastCache(LayerCache):
    """A cache whose entries kernels copy, and which may store 16-bit keys and values.

    Args:
        keys: of the source, [B, H, S, d], in the compute dtype.
        values: likewise.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__(keys, values)
        self.dtype = keys.dtype

    def keep_as(self, dtype: torch.dtype) -> None:
        """Store keys and values in this dtype, which may differ from the compute dtype."""
        self.source = _as(self.source, dtype)
        if self.target is not None:
            self.target = _as(self.target, dtype)

    def memory(self) -> tuple[Tensor, Tensor]:
        """See :meth:`LayerCache.memory`."""
        return _as(self.source, self.dtype)

    def append(self, keys: Tensor, values: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """See :meth:`LayerCache.append`."""
        found = _as(super().append(keys, values, used), keys.dtype)
        if keys.is_cpu and keys.dtype.itemsize == 2:
            # Products in 16 bits copy slices; copies of a transposed slice are slow.
            found = found[0].contiguous(), found[1].contiguous()
        return found

    def reserve(
        self, visibility: Visibility, shape: tuple[int, int, int], dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return all keys and values, [R, H, M, d] each with M >= Nk; the caller writes the newest.

        Args:
            visibility: of the newest tokens to all entries in use.
            shape: R, H and d, for the first step.
            dtype: likewise.
        """
        # Allocate the entries of the first step only; growing adds capacity later.
        if self.target is None:
            trees, heads, width = shape
            full = (trees, heads, visibility.num_queries, width)
            self.target = torch.empty(full, dtype=dtype), torch.empty(full, dtype=dtype)
        return self.target

    def put_rows(
        self, keys: Tensor, values: Tensor, visibility: Visibility, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values of some beams' newest tokens; return those of all tokens.

        Args:
            keys: [1, H, N, d].
            values: likewise.
            visibility: of the newest tokens of all beams to all entries in use.
            rows: [N] int64, indices of the beams among all R k.
        """
        assert self.target is not None, "all beams are computed in the first step"
        # Find the entries of the newest tokens, the last ones in use.
        used = visibility.num_keys
        new = slice(used - visibility.num_queries, used)
        # Write only the computed beams: no live beam sees the entries of dead ones.
        for kept, own in zip(self.target, (keys, values), strict=True):
            put_rows(own, rows, kept[:, :, new])
        # Return views of all entries in use, [R, H, Nk, d].
        kept_keys, kept_values = self.target
        return _as((kept_keys[:, :, :used], kept_values[:, :, :used]), keys.dtype)

    def take_entries(self, x: Tensor, trees: Tensor, entries: Tensor, room: int) -> Tensor:
        """See :meth:`LayerCache.take_entries`."""
        if takes(x):
            return take_entries(x, trees, entries, room)
        return super().take_entries(x, trees, entries, room)


def _as(pair: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    keys, values = pair
    if keys.dtype == dtype:
        return pair
    if dtype == torch.float16:  # clamp numbers beyond its range
        most = torch.finfo(dtype).max
        keys, values = keys.clamp(-most, most), values.clamp(-most, most)
    return keys.to(dtype), values.to(dtype)

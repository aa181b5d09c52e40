"""The projections around an attention mechanism: split into heads, attend, join.

Where the visibility has ``sentences``, attention stays inside them; with a gate it is joined with
attention to the whole document by the same projections.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.bias import ScoreBias
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.sentences import SentenceRows
from relu_nmt.modules.document_gate import DocumentGate
from relu_nmt.modules.layer_cache import LayerCache, LayerStep
from relu_nmt.modules.positions import RelativePositions


class MultiheadAttention(nn.Module):
    """What self- and cross-attention share: the mechanism and the output projection.

    Args:
        embed_dim: D, a multiple of the number of heads.
        attention: the mechanism; it knows the number of heads H and their width d = D / H.
        gated: where attention stays inside sentences, join it with that to the whole document.
    """

    def __init__(self, embed_dim: int, attention: Attention, gated: bool = False) -> None:
        super().__init__()
        self.gate = DocumentGate(embed_dim) if gated else None
        self.embed_dim = embed_dim
        self.attention = attention
        self.num_heads = attention.num_heads
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def draw_projections(self, *parts: int) -> list[nn.Linear]:
        """Draw the output projection, and before it those that are returned.

        They are drawn as in fairseq: as if the three projections were one, which halves their
        variance.

        Args:
            parts: how many of queries, keys and values each module makes.
        """
        dim, device, made = self.embed_dim, self.out_proj.weight.device, []
        for count in parts:
            # What a linear map draws itself is drawn anew here, and must not move the generator.
            # (skip_init would import SymPy, 35 MB and a third of a second.)
            state = torch.get_rng_state()
            linear = nn.Linear(dim, count * dim, device=device)
            torch.set_rng_state(state)
            for weight in linear.weight.chunk(count):
                nn.init.xavier_uniform_(weight, gain=2**-0.5)
            made.append(linear)
        nn.init.xavier_uniform_(self.out_proj.weight)
        for linear in (*made, self.out_proj):
            nn.init.zeros_(linear.bias)
        return made

    def split(self, x: Tensor) -> Tensor:
        """Return the heads [B, H, N, d] of x [B, N, D]."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visibility: Visibility,
        bias: ScoreBias | None = None,
        picked: Tensor | None = None,
    ) -> Tensor:
        """Return the heads' values side by side, [B, Nq, D]; see :meth:`Attention.forward`."""
        # Only who picks has to know of it.
        more = {} if picked is None else {"picked": picked}
        found = self.attention(q, k, v, visibility, bias=bias, **more)
        return found.values.transpose(1, 2).flatten(2)

    def finish(self, values: Tensor, x: Tensor, whole: Tensor | None = None) -> Tensor:
        """Return the output of values [B, Nq, D] for the queries' x [B, Nq, D].

        Args:
            values: what :meth:`attend` returned.
            x: what the queries were made of.
            whole: the values of the attention to the whole document, where there are both.
        """
        joined = self.attention.finish(values, x)
        if whole is not None:
            assert self.gate is not None, "without a gate there is but one attention"
            joined = self.gate(joined, self.attention.finish(whole, x))
        return self.out_proj(joined)

    def finish_steps(self, made: Sequence[Sequence[Tensor]], x: Tensor) -> Tensor:
        """Return the output [1, N, D] of all steps for the queries' x [1, N, D].

        Args:
            made: the values [1, N', D] of each step's computed beams, of the own sentence or all,
                and of the whole document where there are both.
            x: what the queries were made of.
        """
        values, *whole = (
            parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
            for parts in zip(*made, strict=True)
        )
        return self.finish(values, x, *whole)

    def picked(self, x: Tensor, step: LayerStep, visibility: Visibility) -> Tensor | None:
        """Return the places of a step's computed beams if attention takes these alone; else None.

        Args:
            x: what the projection has made of them [1, N', ...].
            step: which they are.
            visibility: what they see.
        """
        if step.computed is None or visibility.sentences is not None:
            return None
        return step.computed.taken if self.attention.picks(x) else None

    def numbered(self, x: Tensor, projection: nn.Module, rows: SentenceRows, width: int) -> Tensor:
        """Add to queries and keys what the projection makes of the numbers of their sentences.

        Args:
            x: [B, N, ...], what the projection has made of the states.
            projection: an affine map of D channels.
            rows: the sentences.
            width: the first channels of x to change; values come behind them.
        """
        assert self.gate is not None, "only what is gated sees the whole document"
        vectors = self.gate.numbers(rows.numbers)  # [R, D]
        change = projection(vectors) - projection(torch.zeros_like(vectors[:1]))
        change = F.pad(change[:, :width], (0, x.size(-1) - width))
        return x + F.embedding(rows.row_of, change).view_as(x)


class SelfAttention(MultiheadAttention):
    """Attention of states to each other; one matrix makes queries, keys and values.

    Args:
        embed_dim: D, a multiple of the number of heads.
        attention: the mechanism.
        gated: see :class:`MultiheadAttention`.

    Example:
        >>> from relu_nmt.attention.base import build_attention
        >>> from relu_nmt.attention.spec import AttentionSpec
        >>> attention = build_attention(AttentionSpec("softmax"), "encoder", 0, 2, 4, dropout=0.0)
        >>> tuple(SelfAttention(8, attention)(torch.zeros(1, 3, 8), Visibility(3, 3)).shape)
        (1, 3, 8)
    """

    def __init__(self, embed_dim: int, attention: Attention, gated: bool = False) -> None:
        super().__init__(embed_dim, attention, gated)
        self.parts = 2 if attention.shares_queries_and_keys else 3
        [self.qkv] = self.draw_projections(self.parts)

    def forward(
        self, x: Tensor, visibility: Visibility, relative: RelativePositions | None = None
    ) -> Tensor:
        """Map [B, N, D] to [B, N, D].

        Args:
            x: the states.
            visibility: which states each state may see.
            relative: what the scheme of positions does to queries, keys and scores.
        """
        values, whole = self._values(self.qkv(x), visibility, relative)
        return self.finish(values, x, whole)

    def step(self, x: Tensor, steps: Sequence[LayerStep]) -> Tensor:
        """Map the newest tokens of all steps [1, N, D] to [1, N, D].

        The caches get their keys and values, and give those of earlier tokens too.
        """
        parts = self.qkv(x).split([step.num_tokens for step in steps], dim=1)
        made = []
        for own, step in zip(parts, steps, strict=True):
            visibility, cache = step.visibility, step.cache
            picked = self.picked(own, step, visibility)
            if picked is None:
                own = step.beams(own, visibility.num_queries)  # [R, k, 3 D]
                found = self._values(own, visibility, step.relative, cache)
                made.append([step.newest(part) for part in found if part is not None])
                continue
            relative = None if step.relative is None else step.relative.of(picked)
            used = visibility.num_keys
            made.append([self._attend(own, visibility, relative, cache, used, picked)])
        return self.finish_steps(made, x)

    def _values(
        self,
        parts: Tensor,
        visibility: Visibility,
        relative: RelativePositions | None,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the values [R, k, D] of queries, keys and values [R, k, 3 D].

        They are of what is visible; or of the own sentences and, gated, of the whole document.
        """
        local, used = visibility.sentences, visibility.num_keys
        if local is None:
            return self._attend(parts, visibility, relative, cache, used), None
        inside: Sequence[RelativePositions | None] = [None] * len(local.parts)
        inside = inside if relative is None else relative.local
        taken = zip(local.take_queries(parts), local.parts, inside, strict=True)
        made = [self._attend(x, part.visibility, r, cache, used) for x, part, r in taken]
        values = local.put(made).view(*parts.shape[:2], -1)
        if self.gate is None:
            return values, None
        parts = self.numbered(parts, self.qkv, local.queries, (self.parts - 1) * self.embed_dim)
        cache = None if cache is None else cache.whole
        return values, self._attend(parts, visibility, relative, cache, used)

    def _attend(
        self,
        parts: Tensor,
        visibility: Visibility,
        relative: RelativePositions | None,
        cache: LayerCache | None,
        used: int,
        picked: Tensor | None = None,
    ) -> Tensor:
        """Return the values [R, k, D] of queries, keys and values [R, k, 3 D].

        Of the ``used`` entries of a cache, the last ones are the visible keys. Where beams are
        ``picked``, these are [1, N', D] and [1, N', 3 D].
        """
        each = parts.chunk(self.parts, dim=-1)
        q, k, v = self.split(each[0]), self.split(each[-2]), self.split(each[-1])
        q, k = self.attention.map_queries(q), self.attention.map_keys(k)
        bias = None
        if relative is not None:
            q, k = relative.turn(q, k)
            bias = relative.bias
        if cache is not None:
            k, v = cache.put(k, v, used, visibility, picked)
            if k.is_cpu and k.dtype.itemsize == 2 and not self.attention.picks(k):
                # Products in 16 bits copy what is no whole tensor; slowly, if it is transposed.
                k, v = k.contiguous(), v.contiguous()
        return self.attend(q, k, v, visibility, bias, picked)


class CrossAttention(MultiheadAttention):
    """Attention of states to a memory, such as the encoder's states.

    Args:
        embed_dim: D, a multiple of the number of heads.
        attention: the mechanism.
        gated: see :class:`MultiheadAttention`.

    Example:
        >>> from relu_nmt.attention.base import build_attention
        >>> from relu_nmt.attention.spec import AttentionSpec
        >>> attention = build_attention(AttentionSpec("softmax"), "cross", 0, 2, 4, dropout=0.0)
        >>> attend, memory = CrossAttention(8, attention), torch.ones(1, 3, 8)
        >>> tuple(attend(torch.zeros(1, 2, 8), Visibility(2, 3), memory).shape)
        (1, 2, 8)
    """

    def __init__(self, embed_dim: int, attention: Attention, gated: bool = False) -> None:
        super().__init__(embed_dim, attention, gated)
        self.q, self.kv = self.draw_projections(1, 2)

    def remember(self, memory: Tensor, rows: SentenceRows | None = None) -> LayerCache:
        """Return a cache with the keys and values of a memory.

        Args:
            memory: [B, S, D].
            rows: its sentences, if attention stays inside them.
        """
        kv = self.kv(memory)
        if rows is None:
            return LayerCache(self._heads(kv))
        whole = None
        if self.gate is not None:
            numbered = self.numbered(kv, self.kv, rows, self.embed_dim)
            whole = LayerCache(self._heads(numbered))
        return LayerCache(self._heads(rows.take(kv)), True, whole)

    def _heads(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, each [B, H, S, d], of both [B, S, 2 D]."""
        k, v = kv.chunk(2, dim=-1)
        return self.attention.map_keys(self.split(k)), self.split(v)

    def forward(self, x: Tensor, visibility: Visibility, memory: Tensor) -> Tensor:
        """Map [B, N, D] to [B, N, D].

        Args:
            x: the states.
            visibility: which of the memory each state may see.
            memory: [B, S, D].
        """
        kv, local, whole = self.kv(memory), visibility.sentences, None
        if local is None:
            heads = [self._heads(kv)]
        else:
            heads = [self._heads(rows) for rows in local.take_keys(kv)]
            if self.gate is not None:
                whole = self._heads(self.numbered(kv, self.kv, local.keys, self.embed_dim))
        values, of_document = self._values(self.q(x), visibility, heads, whole)
        return self.finish(values, x, of_document)

    def step(self, x: Tensor, steps: Sequence[LayerStep]) -> Tensor:
        """Map the newest tokens of all steps [1, N, D] to [1, N, D]; caches give the memories."""
        queries = self.q(x).split([step.num_tokens for step in steps], dim=1)
        made = []
        for q, step in zip(queries, steps, strict=True):
            visibility, cache = step.memory_visibility, step.cache
            local = visibility.sentences
            heads = cache.memory(q.dtype) if local is None else cache.paired(local)
            whole = None if cache.whole is None else cache.whole.source
            picked = self.picked(q, step, visibility)
            if picked is None:
                q = step.beams(q, visibility.num_queries)  # [B, K, D]
                found = self._values(q, visibility, [heads], whole)
                made.append([step.newest(part) for part in found if part is not None])
            else:
                made.append([self._attend(q, heads, visibility, picked)])
        return self.finish_steps(made, x)

    def _values(
        self,
        q: Tensor,
        visibility: Visibility,
        heads: Sequence[tuple[Tensor, Tensor]],
        whole_heads: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the values [B, N, D] of queries [B, N, D].

        They are of what is visible; or of the own sentences and, gated, of the whole document.

        Args:
            q: what the projection has made of the states.
            visibility: which of the memory each may see.
            heads: keys and values of the memory, or of each part of its sentences.
            whole_heads: those of the whole memory, where there are both.
        """
        local = visibility.sentences
        if local is None:
            return self._attend(q, heads[0], visibility), None
        taken = zip(local.take_queries(q), heads, local.parts, strict=True)
        values = local.put([self._attend(x, kv, part.visibility) for x, kv, part in taken])
        if whole_heads is None:
            return values, None
        q = self.numbered(q, self.q, local.queries, self.embed_dim)
        return values, self._attend(q, whole_heads, visibility)

    def _attend(
        self,
        q: Tensor,
        heads: tuple[Tensor, Tensor],
        visibility: Visibility,
        picked: Tensor | None = None,
    ) -> Tensor:
        """Return the values [B, N, D] of queries [B, N, D] with these heads of keys and values."""
        q = self.attention.map_queries(self.split(q))
        return self.attend(q, *heads, visibility, picked=picked)

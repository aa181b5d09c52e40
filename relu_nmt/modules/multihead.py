"""Multi-head attention: project the states, split them into heads, attend, join the heads.

:class:`SelfAttention` and :class:`CrossAttention` differ in their projections. The mechanism that
both call, such as ReLU attention, is an :class:`~relu_nmt.attention.base.Attention`.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.score_bias import ScoreBias
from relu_nmt.modules.positions import NO_POSITIONS, RelativePositions


class KeyValueCache(Protocol):
    """Keys and values of a layer that decodes step by step."""

    def memory(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the source, [B, H, S, d] each."""

    def append_keys(self, keys: Tensor, values: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """Store the newest keys and values. Return keys and values of the ``used`` tokens."""


class MultiheadAttention(nn.Module):
    """The steps that self- and cross-attention share: split, attend and join, output projection.

    The mechanism has H heads of width d, and ``embed_dim`` is D = H d.
    """

    def __init__(self, embed_dim: int, attention: Attention) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.attention = attention
        self.num_heads = attention.num_heads
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def new_projection(self, num_parts: int) -> nn.Linear:
        """Return a new input projection to this number of parts: queries, keys and values.

        Like fairseq, draw each part as if one matrix held all of them, which halves the variance.
        """
        with torch.random.fork_rng(devices=[]):  # nn.Linear draws weights that are replaced
            device = self.out_proj.weight.device
            projection = nn.Linear(self.embed_dim, num_parts * self.embed_dim, device=device)
        for weight in projection.weight.chunk(num_parts):
            nn.init.xavier_uniform_(weight, gain=2**-0.5)
        nn.init.zeros_(projection.bias)
        return projection

    def draw_output(self) -> None:
        """Draw the output projection. Call it last: a seed fixes the order of the draws."""
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def split(self, x: Tensor) -> Tensor:
        """Return the heads [B, H, N, d] of x [B, N, D]."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, bias: ScoreBias | None = None
    ) -> Tensor:
        """Return the joined outputs of all heads [B, Nq, D]. See :meth:`Attention.forward`."""
        return self.attention(q, k, v, visibility, bias=bias).values.transpose(1, 2).flatten(2)

    def project_output(self, joined: Tensor, x: Tensor) -> Tensor:
        """Return the output [B, Nq, D] for joined heads and states x of the queries."""
        return self.out_proj(self.attention.finish(joined, x))


class SelfAttentionBase(MultiheadAttention):
    """The base of self-attentions: one matrix projects states to queries, keys and values."""

    def __init__(self, embed_dim: int, attention: Attention) -> None:
        super().__init__(embed_dim, attention)
        # Number of parts of the projected states. Queries that are also keys are one part.
        self.parts = 2 if attention.shares_queries_and_keys else 3
        self.qkv = self.new_projection(self.parts)
        self.draw_output()

    def heads(
        self, projected: Tensor, relative: RelativePositions = NO_POSITIONS
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [B, H, N, d] of projected states [B, N, 3 D].

        A position scheme rotates queries and keys.
        """
        *queries_and_keys, v = map(self.split, projected.chunk(self.parts, dim=-1))
        q = self.attention.map_queries(queries_and_keys[0])
        k = self.attention.map_keys(queries_and_keys[-1])
        q, k = relative.rotate(q, k)
        return q, k, v

    def joined_heads(
        self,
        projected: Tensor,
        visibility: Visibility,
        relative: RelativePositions = NO_POSITIONS,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the joined heads [B, N, D] of projected states [B, N, 3 D]."""
        q, k, v = self.heads(projected, relative)
        if cache is not None:
            k, v = cache.append_keys(k, v, visibility.num_keys)
        return self.attend(q, k, v, visibility, relative.bias)


class SelfAttention(SelfAttentionBase):
    """Attention among states."""

    def forward(
        self,
        x: Tensor,
        visibility: Visibility,
        relative: RelativePositions = NO_POSITIONS,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Map states [B, N, D] to states, with a position scheme and a cache of tokens."""
        return self.project_output(self.joined_heads(self.qkv(x), visibility, relative, cache), x)


class CrossAttentionBase(MultiheadAttention):
    """The base of attentions to a memory: one matrix for queries, one for keys and values."""

    def __init__(self, embed_dim: int, attention: Attention) -> None:
        super().__init__(embed_dim, attention)
        self.q = self.new_projection(1)
        self.kv = self.new_projection(2)
        self.draw_output()

    def memory_heads(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, H, S, d] of a projected memory [B, S, 2 D]."""
        k, v = projected.chunk(2, dim=-1)
        return self.attention.map_keys(self.split(k)), self.split(v)

    def attend_to(self, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility) -> Tensor:
        """Return the joined heads [B, N, D] of queries [B, N, D] for keys and values [B, H, S, d].

        Beams of a sentence share its memory: q may also be [B G, N / G, D].
        """
        grouped = q if q.size(0) == k.size(0) else q.reshape(k.size(0), -1, q.size(-1))
        queries = self.attention.map_queries(self.split(grouped))  # [B, H, N, d]
        return self.attend(queries, k, v, visibility).view_as(q)


class CrossAttention(CrossAttentionBase):
    """Attention of states to a memory, such as the encoder's states."""

    def forward(self, x: Tensor, visibility: Visibility, memory: Tensor | KeyValueCache) -> Tensor:
        """Map states x [B, N, D] to [B, N, D]. The memory is [B, S, D], or a cache."""
        if isinstance(memory, Tensor):
            k, v = self.memory_heads(self.kv(memory))
        else:
            k, v = memory.memory()
        return self.project_output(self.attend_to(self.q(x), k, v, visibility), x)

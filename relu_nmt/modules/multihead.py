"""The projections around an attention mechanism: split into heads, attend, join."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, Attention, AttentionOutput, Need
from relu_nmt.attention.masks import Visibility


class MultiheadAttention(nn.Module):
    """Multi-head attention around any registered mechanism.

    One weight holds the query, key and value projections, so that self-attention is one matrix
    product and cross-attention two.

    Args:
        embed_dim: D, a multiple of the number of heads.
        attention: the mechanism; it knows the number of heads H and their width d = D / H.
    """

    def __init__(self, embed_dim: int, attention: Attention) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.attention = attention
        self.shared = attention.shares_queries_and_keys
        projections = 2 if self.shared else 3
        self.in_proj_weight = nn.Parameter(torch.empty(projections * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(projections * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        for projection in self.in_proj_weight.chunk(projections):
            # As in fairseq: as if the three projections were one, which halves their variance.
            nn.init.xavier_uniform_(projection, gain=2**-0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def self_projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each [B, H, N, d], of x [B, N, D]."""
        projected = F.linear(x, self.in_proj_weight, self.in_proj_bias)  # [B, N, 3 D or 2 D]
        parts = projected.chunk(2 if self.shared else 3, dim=-1)
        q, k, v = self._split(parts[0]), self._split(parts[-2]), self._split(parts[-1])
        return self.attention.map_queries(q), self.attention.map_keys(k), v

    def queries(self, x: Tensor) -> Tensor:
        """Return queries [B, H, Nq, d] of x [B, Nq, D]."""
        split = self.embed_dim
        q = F.linear(x, self.in_proj_weight[:split], self.in_proj_bias[:split])
        return self.attention.map_queries(self._split(q))

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, each [B, H, Nk, d], of memory [B, Nk, D]."""
        start = -2 * self.embed_dim
        projected = F.linear(memory, self.in_proj_weight[start:], self.in_proj_bias[start:])
        k, v = projected.chunk(2, dim=-1)
        return self.attention.map_keys(self._split(k)), self._split(v)

    def attend(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visibility: Visibility,
        need: Need = NOTHING,
    ) -> AttentionOutput:
        """Attend and join the heads; ``values`` of the result is [B, Nq, D].

        Args:
            x: [B, Nq, D], what the queries were made of.
            q: [B, H, Nq, d].
            k: [B, H, Nk, d].
            v: [B, H, Nk, d].
            visibility: which keys each query may see.
            need: what to return besides the values.
        """
        output = self.attention(q, k, v, visibility, need=need)
        joined = output.values.transpose(1, 2).flatten(2)  # [B, Nq, D]
        output.values = self.out_proj(self.attention.finish(joined, x))
        return output

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.attention.num_heads, -1)).transpose(1, 2)

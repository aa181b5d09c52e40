"""The projections around an attention mechanism: split into heads, attend, join."""

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.modules.positions import RelativePositions


class MultiheadAttention(nn.Module):
    """What self- and cross-attention share: the mechanism and the output projection.

    Args:
        embed_dim: D, a multiple of the number of heads.
        attention: the mechanism; it knows the number of heads H and their width d = D / H.
    """

    def __init__(self, embed_dim: int, attention: Attention) -> None:
        super().__init__()
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

    def join(self, values: Tensor, x: Tensor) -> Tensor:
        """Return [B, Nq, D] of the heads' values [B, H, Nq, d] for the queries' x [B, Nq, D]."""
        joined = values.transpose(1, 2).flatten(2)
        return self.out_proj(self.attention.finish(joined, x))


class SelfAttention(MultiheadAttention):
    """Attention of states to each other; one matrix makes queries, keys and values.

    Args:
        embed_dim: D, a multiple of the number of heads.
        attention: the mechanism.

    Example:
        >>> from relu_nmt.attention.base import build_attention
        >>> from relu_nmt.attention.spec import AttentionSpec
        >>> attention = build_attention(AttentionSpec("softmax"), "encoder", 0, 2, 4, dropout=0.0)
        >>> tuple(SelfAttention(8, attention)(torch.zeros(1, 3, 8), Visibility(3, 3)).shape)
        (1, 3, 8)
    """

    def __init__(self, embed_dim: int, attention: Attention) -> None:
        super().__init__(embed_dim, attention)
        self.parts = 2 if attention.shares_queries_and_keys else 3
        [self.qkv] = self.draw_projections(self.parts)

    def forward(
        self,
        x: Tensor,
        visibility: Visibility,
        relative: RelativePositions | None = None,
        cache: "LayerCache | None" = None,
    ) -> Tensor:
        """Map [B, N, D] to [B, N, D].

        Args:
            x: the states; step by step the newest ones of N beams, which are the queries of one
                tree of ``visibility.num_queries`` beams or of several.
            visibility: which states, those of the cache included, each state may see.
            relative: what the scheme of positions does to queries, keys and scores.
            cache: gets the keys and values, and gives those of earlier positions too.
        """
        states = x.reshape(-1, visibility.num_queries, x.size(2))  # [R, k, D], R = B in a full pass
        parts = self.qkv(states).chunk(self.parts, dim=-1)  # [R, k, D] each
        q, k, v = self.split(parts[0]), self.split(parts[-2]), self.split(parts[-1])
        attention = self.attention
        q, k = attention.map_queries(q), attention.map_keys(k)
        bias = None
        if relative is not None:
            q, k = relative.scheme.rotate(q, k, relative.positions)
            bias = relative.bias
        if cache is not None:
            k, v = cache.put(k, v, visibility.num_keys)
        values = attention(q, k, v, visibility, bias=bias).values
        return self.join(values, states).view_as(x)


class CrossAttention(MultiheadAttention):
    """Attention of states to a memory, such as the encoder's states.

    Args:
        embed_dim: D, a multiple of the number of heads.
        attention: the mechanism.

    Example:
        >>> from relu_nmt.attention.base import build_attention
        >>> from relu_nmt.attention.spec import AttentionSpec
        >>> attention = build_attention(AttentionSpec("softmax"), "cross", 0, 2, 4, dropout=0.0)
        >>> attend, memory = CrossAttention(8, attention), torch.ones(1, 3, 8)
        >>> tuple(attend(torch.zeros(1, 2, 8), Visibility(2, 3), memory).shape)
        (1, 2, 8)
    """

    def __init__(self, embed_dim: int, attention: Attention) -> None:
        super().__init__(embed_dim, attention)
        self.q, self.kv = self.draw_projections(1, 2)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, each [B, H, S, d], of memory [B, S, D]."""
        k, v = self.kv(memory).chunk(2, dim=-1)
        return self.attention.map_keys(self.split(k)), self.split(v)

    def forward(
        self,
        x: Tensor,
        visibility: Visibility,
        memory: Tensor | None,
        cache: "LayerCache | None" = None,
    ) -> Tensor:
        """Map [B, N, D] to [B, N, D].

        Args:
            x: the states.
            visibility: which of the memory each state may see.
            memory: [B, S, D]; not read with a cache.
            cache: gives the memory's keys and values.
        """
        if cache is None:
            assert memory is not None, "a layer with cross-attention was given no memory"
            k, v = self.keys_values(memory)
        else:
            k, v = cache.source
        attention = self.attention
        q = attention.map_queries(self.split(self.q(x)))
        return self.join(attention(q, k, v, visibility).values, x)


class LayerCache:
    """Keys and values of one decoder layer in step-by-step decoding.

    ``R`` trees of hypotheses have k beams and M entries for the tokens of each; see
    :mod:`relu_nmt.models.decoder_state`.

    Args:
        source: keys and values of the source, [B, H, S, d] each, once a sentence.

    Attributes:
        target: keys and values of the tokens so far, [R, H, M, d] each; None before the first.
    """

    def __init__(self, source: tuple[Tensor, Tensor]) -> None:
        self.source = source
        self.target: tuple[Tensor, Tensor] | None = None

    def put(self, keys: Tensor, values: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """Store what the newest tokens add; return all that is in use.

        Args:
            keys: [R, H, k, d].
            values: [R, H, k, d].
            used: entries in use, the new ones being the last k.

        Returns:
            keys and values, [R, H, used, d] each.
        """
        if self.target is None:
            self.target = keys, values
        else:
            new = slice(used - keys.size(2), used)
            self.target[0][:, :, new], self.target[1][:, :, new] = keys, values
        return self.target[0][:, :, :used], self.target[1][:, :, :used]

    def take(self, trees: Tensor, entries: Tensor) -> None:
        """Make the caches anew from these entries [R', M'] of these trees [R']."""
        if self.target is not None:
            keys, values = self.target
            self.target = _take(keys, trees, entries), _take(values, trees, entries)

    def select_source(self, sentences: Tensor) -> None:
        """Keep the source sentences with these indices."""
        keys, values = self.source
        self.source = keys.index_select(0, sentences), values.index_select(0, sentences)


def _take(x: Tensor, trees: Tensor, entries: Tensor) -> Tensor:
    """Return [R', H, M', d] of x [R, H, M, d]: entries [R', M'] of trees [R']."""
    _, num_heads, num_entries, width = x.shape
    heads = trees[:, None] * num_heads + torch.arange(num_heads, device=x.device)
    index = heads[:, :, None] * num_entries + entries[:, None]  # [R', H, M']
    # Whole vectors are copied, which ``gather`` would do number by number.
    return x.reshape(-1, width).index_select(0, index.flatten()).view(*index.shape, width)

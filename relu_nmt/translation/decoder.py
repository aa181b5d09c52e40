"""The decoder, in one pass or step by step, and the state of its steps: trees of hypotheses.

The hypotheses of a sentence form a tree: they share their first tokens and differ in the last few.
The caches of a state store every token of the tree once, as one *entry*, even if many beams
continue it. All beams are queries of one attention to these entries. The *ancestry* marks the
entries of each beam's own hypothesis. Reordering beams therefore only changes the ancestry. Entries
that no hypothesis needs are dropped from time to time.

Each of ``B`` sentences has ``K`` beams, in ``G`` groups of k = K / G beams that never mix. A tree
belongs to one group, so there are ``R`` = B G trees. ``M`` is the number of entries of a tree.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.masks import TreeVisibility, Visibility
from relu_nmt.attention.records import AttentionRecord
from relu_nmt.attention.sentences import in_documents
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.io.process import require_memory
from relu_nmt.modules.multihead import CrossAttention, MemoryProjection
from relu_nmt.translation.base import SearchState
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder import EncoderOutput, TransformerStack, make_mechanism

LEAST_STEPS = 8
MOST_STEPS = 32
"""Fewest and most steps for which caches get capacity at once.

Adding capacity copies the caches and drops dead entries. Each dead entry slows the steps."""
SMALLER_SEARCH = "a smaller --max-tokens, --batch-size or --beam needs less"


class LayerCache:
    """Keys and values of one decoder layer: of the source, and of the target so far.

    ``R`` trees of hypotheses have k beams each, and M entries for the tokens of their beams. Keys
    and values of the ``target`` are [R, H, M, d] each. None before the first step.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        # Copy the heads, which are views of the projections, once and not in every step.
        self.source = keys.contiguous(), values.contiguous()
        self.target: tuple[Tensor, Tensor] | None = None

    def memory(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the source, [B, H, S, d] each."""
        return self.source

    def append(self, keys: Tensor, values: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """Store the newest keys and values [R, H, k, d]. Return all, [R, H, M', d] each.

        ``used`` is M', the number of entries in use. The newest tokens use the last k.
        """
        if self.target is None:
            self.target = keys, values
        else:
            # Overwrite the last entries in use, which were reserved for them.
            new = slice(used - keys.size(2), used)
            self.target[0][:, :, new], self.target[1][:, :, new] = keys, values
        kept_keys, kept_values = self.target
        return kept_keys[:, :, :used], kept_values[:, :, :used]

    def take(self, index: Tensor) -> None:
        """Keep target entries by their indices [R', H, M'] int64 among the R H M old vectors."""
        if self.target is not None:
            # ``gather`` would copy each number separately.
            old_keys, old_values = self.target
            keys = old_keys.reshape(-1, old_keys.size(3)).index_select(0, index.flatten())
            values = old_values.reshape(-1, old_values.size(3)).index_select(0, index.flatten())
            self.target = keys.view(*index.shape, -1), values.view(*index.shape, -1)

    def keep(self, sentences: Tensor) -> None:
        """Keep the sources with these indices [B']."""
        keys, values = self.source
        self.source = keys.index_select(0, sentences), values.index_select(0, sentences)


class DecoderState(SearchState):
    """The state of ``B`` sentences, each with one beam at first. Groups of beams never mix.

    The key mask [B, S] marks real source tokens. Each hypothesis has ``length`` tokens, and its
    beam sees the source tokens of ``cross_visibility``.
    """

    def __init__(self, caches: Sequence[LayerCache], key_mask: Tensor, num_groups: int = 1) -> None:
        self.caches = caches
        self.num_groups = num_groups
        self.length = 0
        self._key_mask = key_mask
        self._beam_size = 1
        self._used = 0
        self._ancestry = key_mask.new_zeros(key_mask.size(0), 1, 1)  # [R, k, M] bool
        self.cross_visibility = self._make_cross_visibility()

    def grow(self, tokens: Tensor) -> Visibility:
        """Give every beam its next entry. Return the visibility of the newest tokens [B, K]."""
        # Make room in the caches for one entry per beam.
        if tokens.size(1) != self._beam_size:
            self._spread(tokens.size(1))
        num_trees, size, num_entries = self._ancestry.shape
        device = self._ancestry.device
        if self._used + size > num_entries:
            self._take(torch.arange(num_trees, device=device))
        # Each new entry belongs to one beam only.
        new = slice(self._used, self._used + size)
        self._ancestry[:, :, new] = torch.eye(size, dtype=torch.bool, device=device)
        self._used += size
        self.length += 1
        # Return a plain visibility for a single beam, which sees all its entries.
        if size == 1:
            return Visibility(1, self._used, causal=True, device=device)
        return TreeVisibility(self._ancestry[:, :, : self._used], self.length)

    def reorder(self, parents: Tensor) -> None:
        num_trees, size, num_entries = self._ancestry.shape
        if size == 1:
            return
        # Find the parents' rows among all beams, and copy their ancestry.
        first = torch.arange(parents.size(0), device=parents.device)[:, None] * self._beam_size
        ancestry = self._ancestry.view(-1, num_entries).index_select(0, (first + parents).flatten())
        self._ancestry = ancestry.view(num_trees, size, num_entries)

    def keep(self, sentences: Tensor) -> None:
        # Keep the trees of these sentences, of all groups.
        trees_of_each = self._ancestry.size(0) // self._key_mask.size(0)
        groups = torch.arange(trees_of_each, device=sentences.device)
        self._take((sentences[:, None] * trees_of_each + groups).flatten())
        for cache in self.caches:
            cache.keep(sentences)
        self._key_mask = self._key_mask.index_select(0, sentences)
        self.cross_visibility = self._make_cross_visibility()

    def _spread(self, beam_size: int) -> None:
        """Turn the single beam of each sentence into this many equal beams."""
        sentences = torch.arange(self._key_mask.size(0), device=self._key_mask.device)
        self._ancestry = self._ancestry.expand(-1, beam_size // self.num_groups, -1)
        self._take(sentences.repeat_interleave(self.num_groups))
        self._beam_size = beam_size
        self.cross_visibility = self._make_cross_visibility()

    def _take(self, trees: Tensor) -> Tensor:
        """Keep these trees [R'] and drop dead entries. Return the kept entries, [R', M']."""
        # Move the entries of live hypotheses to the front, in their order.
        ancestry = self._ancestry[:, :, : self._used].index_select(0, trees)
        alive = ancestry.any(1)  # [R', used]
        self._used = int(alive.sum(1).max())
        order = alive.byte().argsort(dim=1, descending=True, stable=True)
        # The first step creates the caches, so before it one entry is enough.
        steps = min(max(LEAST_STEPS, self.length), MOST_STEPS) if self.length else 1
        room = ancestry.size(1) * steps
        entries = order[:, : self._used]
        self._check_memory(len(trees) * (self._used + room))
        # Gather the ancestry of the kept entries, [R', k, M'].
        ancestry = ancestry.gather(2, entries[:, None].expand(-1, ancestry.size(1), -1))
        # Index whole vectors among all heads of all trees. Unused entries repeat the first entry,
        # so that they hold no NaN: 0 * NaN is NaN.
        num_heads = self.caches[0].source[0].size(1)
        heads = trees[:, None] * num_heads + torch.arange(num_heads, device=trees.device)
        index = heads[:, :, None] * self._ancestry.size(2) + F.pad(entries, (0, room))[:, None]
        for cache in self.caches:
            cache.take(index)  # [R', H, M' + room]
        self._ancestry = F.pad(ancestry, (0, room))
        return entries

    def _check_memory(self, num_entries: int) -> None:
        """Refuse caches of so many entries if they do not fit in CPU memory (OutOfMemoryError)."""
        keys = self.caches[0].source[0]  # [B, H, S, d]
        if keys.is_cpu:
            of_heads = 2 * len(self.caches) * keys.size(1) * keys.size(3) * keys.element_size()
            # Add the ancestry and the copies that exist while it grows.
            num_bytes = num_entries * (of_heads + 3 * self._ancestry.size(1))
            subject = f"{num_entries:,} tokens of hypotheses"
            require_memory(subject, num_bytes, SMALLER_SEARCH)

    def _make_cross_visibility(self) -> Visibility:
        return Visibility(self._beam_size, self._key_mask.size(1), key_mask=self._key_mask)


class Decoder(TransformerStack):
    """Layers of causal self-attention and cross-attention, for all positions or step by step."""

    side = "decoder"

    def __init__(self, config: TransformerConfig, tokens: nn.Embedding, pad_index: int) -> None:
        super().__init__(config, tokens, pad_index)
        self.start_index = Dictionary().index(config.decoder_start_symbol)

    def make_cross_attention(self, embed_dim: int, layer: int) -> MemoryProjection:
        return CrossAttention(embed_dim, make_mechanism(self.config, "cross", layer))

    @property
    def cross_attentions(self) -> list[MemoryProjection]:
        """The cross-attention of every layer."""
        return [layer.cross_attention for layer in self.layers if layer.cross_attention is not None]

    @property
    def aligning_attention(self) -> Attention:
        """The cross-attention whose weights align tokens, by default in the last layer."""
        layer = self.config.alignment_layer
        return self.cross_attentions[-1 if layer is None else layer].attention

    def alignment_weights(self, record: AttentionRecord) -> Tensor:
        """Return the mean weights [B, Nq, Nk] over the aligning heads, from their record."""
        assert record.weights is not None, "the record needs weights"
        weights = in_documents(record.weights, record.visibility)  # [B, H, Nq, Nk]
        return weights[:, : self.config.alignment_heads].mean(1)

    def forward(self, prev_output_tokens: Tensor, encoder_out: EncoderOutput) -> Tensor:
        """Return the states [B, T, D] of prev_output_tokens [B, T], right-padded."""
        visibility, source_visibility = self.visibilities(prev_output_tokens, encoder_out)
        relative = self.embedding.positions.relative(visibility)
        inputs = visibility, relative, encoder_out.states, source_visibility
        return self.run_layers(self.embed(prev_output_tokens), inputs)

    def visibilities(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOutput
    ) -> tuple[Visibility, Visibility]:
        """Return the target and the source positions visible to each target position."""
        real = prev_output_tokens != self.pad_index
        key_mask = encoder_out.key_mask
        length = real.size(1)
        # Padding stands on the right, where causality already hides it from real queries.
        target = Visibility(length, length, query_mask=real, causal=True, device=real.device)
        source = Visibility(length, key_mask.size(1), key_mask=key_mask, query_mask=real)
        return target, source

    def embed(self, tokens: Tensor, start: int = 0, positions: Tensor | None = None) -> Tensor:
        """Return the embedded tokens [B, N, D], beginning with ``decoder_start_symbol``."""
        if self.start_index != Dictionary.eos_index:
            tokens = tokens.masked_fill(tokens == Dictionary.eos_index, self.start_index)
        return self.embedding(tokens, start, positions)

    def start(self, encoder_out: EncoderOutput, num_groups: int = 1) -> DecoderState:
        """Return the state before the first token, with one beam per sentence."""
        # Project the source to keys and values once, for all steps.
        caches = []
        for attention in self.cross_attentions:
            keys, values = attention.memory_heads(attention.kv(encoder_out.states))
            caches.append(LayerCache(keys, values))
        return DecoderState(caches, encoder_out.key_mask, num_groups)

    def embed_step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, Visibility]:
        """Add tokens [B, K] to a state. Return embeddings [R, k, D] and their visibility."""
        # Add the entries of the newest tokens, before their positions are counted.
        visibility = state.grow(tokens)
        x = self.embed(tokens.reshape(-1, 1), state.length - 1)  # [B K, 1, D]
        # Group the beams by tree, [R, k, D].
        return x.view(-1, visibility.num_queries, x.size(-1)), visibility

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Add the newest tokens [B, K] of all beams to a state. Return their states [B, K, D]."""
        # Beams of one tree are queries of one attention: x is [R, k, D].
        x, visibility = self.embed_step(tokens, state)
        relative = self.embedding.positions.relative(visibility)
        for layer, cache in zip(self.layers, state.caches, strict=True):
            x = layer(x, visibility, relative, None, state.cross_visibility, cache)
        return self.final_norm(x).view(*tokens.shape, -1)

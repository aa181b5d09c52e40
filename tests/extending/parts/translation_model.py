"""A translation model of one's own: a language model of sources and their translations."""

import torch
from torch import Tensor, nn

from relu_nmt.attention.masks import Visibility
from relu_nmt.data.batch_plan import least_limit
from relu_nmt.errors import ConfigError
from relu_nmt.translation import translation_models
from relu_nmt.translation.base import SearchState, TranslationModel
from relu_nmt.translation.encoder import TransformerStack, token_embedding


class CausalStack(TransformerStack):
    """Layers of causal self-attention, with the settings of the decoder."""

    side = "decoder"


class Cache:
    """Keys and values [R, H, N, d] of one layer. R is the number of hypotheses."""

    def __init__(self) -> None:
        self.heads: list[Tensor] = []

    def append_keys(self, keys: Tensor, values: Tensor, used: int) -> list[Tensor]:
        """Store the newest keys and values, and return all."""
        newest = [keys, values]
        if self.heads:
            newest = [torch.cat(pair, dim=2) for pair in zip(self.heads, newest, strict=True)]
        self.heads = newest
        return newest


class JoinedState(SearchState):
    """The keys and values of each hypothesis behind its source, K hypotheses for a sentence."""

    def __init__(self, is_real: Tensor, num_layers: int) -> None:
        self.is_real = is_real  # [R, N] bool, False = padding
        self.beam_size = 1  # until the first step
        self.caches = [Cache() for _ in range(num_layers)]

    def reorder(self, parents: Tensor) -> None:
        """Let beam k of sentence b continue beam ``parents[b, k]``, [B, K] int64."""
        first = torch.arange(len(parents), device=parents.device)[:, None] * self.beam_size
        self._take((first + parents).flatten())

    def keep(self, sentences: Tensor) -> None:
        """Keep only the sentences with these indices [B']."""
        beams = torch.arange(self.beam_size, device=sentences.device)
        self._take((sentences[:, None] * self.beam_size + beams).flatten())

    def spread(self, beam_size: int) -> None:
        """Turn the source of each sentence into equal hypotheses."""
        rows = torch.arange(len(self.is_real), device=self.is_real.device)
        self._take(rows.repeat_interleave(beam_size))
        self.beam_size = beam_size

    def _take(self, rows: Tensor) -> None:
        self.is_real = self.is_real[rows]
        for cache in self.caches:
            cache.heads = [heads[rows] for heads in cache.heads]


@translation_models.register("decoder_only")
class DecoderOnly(TranslationModel):
    """One causal stack over source, end symbol and target. The target alone has a loss.

    The source stands right-aligned before the target, so that no padding lies between them.
    """

    def __init__(
        self, config, source_vocab_size, target_vocab_size, pad_index, separators=None
    ) -> None:
        super().__init__(config, pad_index)
        if source_vocab_size != target_vocab_size:
            raise ConfigError("--translation-model decoder_only needs a --joined-dictionary")
        table = token_embedding(target_vocab_size, config.decoder_embed_dim, pad_index)
        self.stack = CausalStack(config, table, pad_index)
        self.output_projection = nn.Linear(*reversed(table.weight.shape), bias=False)
        self.output_projection.weight = table.weight

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Return the states [B, T, D] of all target positions."""
        tokens = torch.cat([self._right_aligned(src_tokens), prev_output_tokens], dim=1)
        is_real = tokens != self.pad_index
        positions = (is_real.cumsum(1) - 1).clamp_min(0)
        x = self.stack.embedding(tokens, positions=positions)
        length = tokens.size(1)
        visibility = Visibility(length, length, key_mask=is_real, query_mask=is_real, causal=True)
        relative = self.stack.embedding.positions.relative(visibility)
        return self.stack.run_layers(x, (visibility, relative))[:, src_tokens.size(1) :]

    def start(self, src_tokens: Tensor, num_groups: int = 1) -> JoinedState:
        """Read the sources [B, S]."""
        tokens = self._right_aligned(src_tokens)
        is_real = tokens != self.pad_index
        state = JoinedState(is_real, len(self.stack.layers))
        self._advance(tokens, (is_real.cumsum(1) - 1).clamp_min(0), state)
        return state

    def step(self, tokens: Tensor, state: JoinedState) -> Tensor:
        """Add the newest tokens [B, K], and return their states [B, K, D]."""
        if tokens.size(1) != state.beam_size:
            state.spread(tokens.size(1))
        positions = state.is_real.sum(1, keepdim=True)
        state.is_real = torch.cat([state.is_real, torch.ones_like(positions).bool()], dim=1)
        return self._advance(tokens.reshape(-1, 1), positions, state).view(*tokens.shape, -1)

    def most_tokens(self, side: str, of_sentence: bool = False) -> int | None:
        """Return half of the longest sequence for each side."""
        limits = [self.stack.embedding.positions.max_positions]
        limits += [layer.self_attention.attention.most_keys(True) for layer in self.stack.layers]
        longest = least_limit(limits)
        return None if longest is None else longest // 2

    def _advance(self, tokens: Tensor, positions: Tensor, state: JoinedState) -> Tensor:
        """Return the states [R, N, D] of the newest N tokens of all hypotheses."""
        visibility = Visibility(
            tokens.size(1), state.is_real.size(1), key_mask=state.is_real, causal=True
        )
        relative = self.stack.embedding.positions.relative(visibility)
        x = self.stack.embedding(tokens, positions=positions)
        for layer, cache in zip(self.stack.layers, state.caches, strict=True):
            x = layer(x, visibility, relative, cache=cache)
        return self.stack.final_norm(x)

    def _right_aligned(self, tokens: Tensor) -> Tensor:
        num_padded = (tokens == self.pad_index).sum(1, keepdim=True)
        columns = torch.arange(tokens.size(1), device=tokens.device) - num_padded
        return tokens.gather(1, columns % tokens.size(1))

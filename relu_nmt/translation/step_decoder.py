"""Step-by-step decoding: the interface between a search and a model.

A search calls ``start`` and ``step`` of a :class:`StepDecoder`, and ``reorder`` and ``keep`` of the
state that ``start`` returned. :class:`PlainDecoder` computes every beam with the model's own
layers. :mod:`relu_nmt.engine` has a faster decoder with the same results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.translation.decoder_state import DecoderState
from relu_nmt.translation.encoder_decoder import EncoderDecoder

BLOCK = 64
"""Number of columns of the vocabulary per block, whose maxima narrow the search."""


@dataclass
class StepScores:
    """Scores of the next tokens of one search.

    Args:
        log_probs: [B, K, V] float32, or [1, N, V] of the computed beams. The search may change
            them.
        weights: [B, K, S], the attention weights that align tokens, if wanted.
        rows: [N] int64, indices of the computed beams among all B K, rising; None: all.
    """

    log_probs: Tensor
    weights: Tensor | None = None
    rows: Tensor | None = None

    def of_all(self, batch: int, beam_size: int) -> "StepScores":
        """Return scores with log_probs [B, K, V]; dead beams get those of an arbitrary beam."""
        if self.rows is None:
            return self
        shape = batch, beam_size, self.log_probs.size(2)
        # Map each beam to the computed beam at or before it.
        computed = torch.zeros(batch * beam_size, dtype=torch.int64, device=self.rows.device)
        index = computed.index_fill_(0, self.rows, 1).cumsum(0).sub_(1).clamp_min_(0)
        return replace(self, log_probs=self.log_probs[0, index].view(shape), rows=None)

    def best_continuations(self, totals: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best sums of a beam's total and a token's log-probability.

        Args:
            totals: [B, K] log-probabilities of the beams so far; -inf for dead beams.
            count: C, number of continuations; at most K V exist.

        Returns:
            sums [B, C], best first, their beams and their tokens, int64 [B, C].
        """
        # Expand scores that all beams share, [B, K, V].
        log_probs = self.of_all(*totals.shape).log_probs.expand(-1, totals.size(1), -1)
        vocab_size = log_probs.size(2)
        sums, columns = _best_columns(log_probs, totals, min(count, totals.size(1) * vocab_size))
        # Split each of the K V columns into beam and token.
        return sums, columns // vocab_size, columns % vocab_size


class SearchState(Protocol):
    """The memory of one search, made by :meth:`StepDecoder.start`."""

    def reorder(self, parents: Tensor) -> None:
        """Let beam k of sentence b continue beam ``parents[b, k]`` of its group, [B, K] int64."""
        ...

    def keep(self, sentences: Tensor) -> None:
        """Keep only the sentences with these indices [B'], in this order."""
        ...


@dataclass(frozen=True)
class SearchStep:
    """The newest tokens of one search.

    Args:
        tokens: [B, K] int64, the newest token of each beam; [B, 1] in the first step, where all
            beams are equal.
        state: the search's state; :meth:`StepDecoder.step` advances it.
        rows: [N] int64, indices of the live beams among all B K, rising; None: all. A decoder may
            leave out dead beams.
    """

    tokens: Tensor
    state: SearchState
    rows: Tensor | None = None


class StepDecoder(Protocol):
    """A model that decodes step by step."""

    @property
    def model(self) -> EncoderDecoder:
        """The model."""
        ...

    @property
    def prunes(self) -> bool:
        """True if it leaves out dead beams, so that a search must list the live ones."""
        ...

    def start(
        self, src_tokens: Tensor, num_groups: int = 1, shortlist: Tensor | None = None
    ) -> SearchState:
        """Encode the sources and return the state of a new search, one beam per sentence.

        Args:
            src_tokens: [B, S] int64, right-padded, each ending in the end symbol.
            num_groups: groups of beams that never mix.
            shortlist: [V'] int64, ids of the only allowed symbols. Tokens are then indices into
                it, 0 to V' - 1. ``None``: all symbols.
        """
        ...

    def step(
        self, steps: Sequence[SearchStep], temperature: float = 1.0, want_weights: bool = False
    ) -> list[StepScores]:
        """Advance every search by its newest tokens and return scores of the next tokens.

        Args:
            steps: the searches' newest tokens and states.
            temperature: divides the logits.
            want_weights: also return the weights that align tokens.
        """
        ...


@dataclass(frozen=True)
class ListedState:
    """A search's decoder state and its shortlist."""

    decoder: DecoderState
    shortlist: Tensor | None

    def reorder(self, parents: Tensor) -> None:
        """See :meth:`SearchState.reorder`."""
        self.decoder.reorder(parents)

    def keep(self, sentences: Tensor) -> None:
        """See :meth:`SearchState.keep`."""
        self.decoder.keep(sentences)


class PlainDecoder:
    """A decoder that computes every beam of every search with the model's own layers.

    Args:
        model: the model, in evaluation mode.

    Example:
        >>> from relu_nmt.translation.config import TransformerConfig
        >>> config = TransformerConfig(encoder_layers=1, decoder_layers=1)
        >>> decoder = PlainDecoder(EncoderDecoder(config, 10, 12, pad_index=1))
        >>> state = decoder.start(torch.tensor([[4, 5, 2]]))
        >>> [scores] = decoder.step([SearchStep(torch.tensor([[2]]), state)])
        >>> tuple(scores.log_probs.shape)
        (1, 1, 12)
    """

    prunes = False

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model

    def start(
        self, src_tokens: Tensor, num_groups: int = 1, shortlist: Tensor | None = None
    ) -> SearchState:
        """See :meth:`StepDecoder.start`."""
        encoder_out = self.model.encode(src_tokens)
        return ListedState(self.model.decoder.start(encoder_out, num_groups), shortlist)

    def step(
        self, steps: Sequence[SearchStep], temperature: float = 1.0, want_weights: bool = False
    ) -> list[StepScores]:
        """See :meth:`StepDecoder.step`."""
        return [self._step(step, temperature, want_weights) for step in steps]

    def _step(self, step: SearchStep, temperature: float, want_weights: bool) -> StepScores:
        decoder, state = self.model.decoder, step.state
        assert isinstance(state, ListedState), "start returns this class"
        few = state.shortlist
        tokens = step.tokens if few is None else few[step.tokens]
        # Beams of one tree are queries of one attention: x is [R, k, D].
        x, visibility = decoder.embed_step(tokens, state.decoder)
        relative, across = decoder.relative(visibility), state.decoder.cross_visibility
        need = Need(weights=want_weights)
        with record_attention(decoder.aligning_attention, need) as records:
            for layer, cache in zip(decoder.layers, state.decoder.caches, strict=True):
                x = layer(x, visibility, relative, None, across, cache)
        logits = self.model.logits(decoder.final_norm(x).view(*tokens.shape, -1))  # [B, K, V]
        # Keep the listed symbols only, [B, K, V'].
        if few is not None:
            logits = logits[:, :, few]
        log_probs = torch.log_softmax(logits / temperature, dim=-1)
        # The first record counts: gated aligned attention has a second one, of the document.
        return StepScores(
            log_probs, decoder.alignment_weights(records[0]) if want_weights else None
        )


def _best_columns(log_probs: Tensor, totals: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the best sums [B, C], best first, and beam * V + token [B, C].

    A top-k over all K * V sums is slow. The best ``count`` sums lie in the ``count`` blocks of
    columns with the highest maxima, so it is enough to search these blocks.
    """
    beam_size, vocab_size = log_probs.shape[1:]
    num_blocks = -(-vocab_size // BLOCK)
    # Search all sums where blocks would save nothing.
    if num_blocks <= 4 or num_blocks * beam_size <= count:
        return (log_probs + totals[:, :, None]).flatten(1).topk(count, dim=1)
    # Take the maximum of each block, [B, K, blocks], and choose the best blocks, [B, C].
    whole = vocab_size // BLOCK
    maxima = log_probs[:, :, : whole * BLOCK].unflatten(2, (whole, BLOCK)).amax(3)
    if whole < num_blocks:
        rest = log_probs[:, :, whole * BLOCK :].amax(2, keepdim=True)
        maxima = torch.cat([maxima, rest], dim=2)
    blocks = (maxima + totals[:, :, None]).flatten(1).topk(count, dim=1, sorted=False).indices
    # Search the columns of these blocks; the last block may end early.
    beams = (blocks // num_blocks)[:, :, None]  # [B, C, 1]
    tokens = (blocks % num_blocks * BLOCK)[:, :, None] + torch.arange(
        BLOCK, device=log_probs.device
    )  # [B, C, BLOCK]
    # Exclude columns behind the vocabulary, for which the clamp repeats the last one.
    inside = tokens < vocab_size
    columns = (beams * vocab_size + tokens.clamp(max=vocab_size - 1)).flatten(1)
    sums = log_probs.flatten(1).gather(1, columns) + totals.gather(
        1, beams.expand_as(tokens).flatten(1)
    )
    best, index = sums.masked_fill_(~inside.flatten(1), -torch.inf).topk(count, dim=1)
    return best, columns.gather(1, index)

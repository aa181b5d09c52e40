"""The search: all beams of all sentences of a batch advance together, one token a step."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.constraints import TokenConstraints
from relu_nmt.translation.search.ensemble import Ensemble
from relu_nmt.translation.search.hypotheses import (
    FinishedHypotheses,
    Hypothesis,
    LengthPenalty,
    SearchHistory,
)
from relu_nmt.translation.search.selectors import Candidates, Selector
from relu_nmt.translation.step_decoder import SearchState, SearchStep, StepScores

MOST_DONE = 0.4
"""Drop finished sentences when they are more than this fraction of the batch: that copies the
others."""


@dataclass(frozen=True)
class _Live:
    """The hypotheses that go on.

    Args:
        tokens: newest token [B, K].
        parents: beam that each goes on from [B, K]; None: the beams stay as they are.
        totals: log-probability so far [B, K]; -inf is no hypothesis.
    """

    tokens: Tensor
    parents: Tensor | None
    totals: Tensor


@dataclass
class _Batch:
    """The sentences that are computed, and what is known of them.

    Args:
        sentences: number of the sentence of each row, [B].
        open: which of them are not done, [B] bool.
        not_words: special symbols of the sources, [B, S] bool.
        state: of the models.
        constraints: which tokens are allowed, and how many.
        finished: hypotheses that have ended.
    """

    sentences: np.ndarray
    open: np.ndarray
    not_words: Tensor
    state: SearchState
    constraints: TokenConstraints
    finished: FinishedHypotheses

    def these(self, mask: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """Return the sentences of a mask [B] and their rows on the device."""
        rows = torch.from_numpy(np.flatnonzero(mask)).to(self.not_words.device)
        return self.sentences[mask], rows

    def lengths(self, num_tokens: int | np.ndarray) -> np.ndarray:
        """Return how many of so many tokens a score counts, [B]: at least the end symbol."""
        return np.maximum(num_tokens - self.constraints.context_sizes, 1)

    def keep(self, mask: np.ndarray) -> Tensor:
        """Drop all sentences outside the mask [B]; return the rows that stay."""
        self.sentences, rows = self.these(mask)
        self.open = self.open[mask]
        self.not_words = self.not_words.index_select(0, rows)
        self.state.keep(rows)
        self.constraints.keep(rows, mask)
        self.finished.keep(rows)
        return rows


class BeamSearch:
    """Searches the best translations of one batch, a step at a time.

    A sentence's hypotheses are taken as soon as it is done, so its result is the same in any
    company; it leaves the batch a little later, together with others.

    Args:
        ensemble: the models.
        config: settings of the search.
        symbols: the target dictionary.
        selector: how continuations are chosen.
        src_tokens: [B, S] int64, right-padded, each ending in the end symbol.
        constraints: which tokens are allowed, and how many. Hypotheses are ranked by what
            follows the context, as if that were all; the rest of a prefix counts.
        shortlist: the only symbols that may be written, int64 [V'], the special ones first;
            hypotheses and constraints then have their numbers in it. ``None`` for all.
        source_separator: the symbol that ends each sentence of a source; -1 for none.

    Attributes:
        is_done: whether nothing is left to search.
        num_live: hypotheses of all sentences that go on; at first as if all beams differed.

    Reference: Huang, Zhao and Ma 2017, "When to finish? Optimal beam search for neural text
    generation", for the bound behind the stop rules ``exact`` and, looser, ``ahead``; ``full`` is
    fairseq's rule.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        config: GenerationConfig,
        symbols: Dictionary,
        selector: Selector,
        src_tokens: Tensor,
        constraints: TokenConstraints,
        shortlist: Tensor | None = None,
        source_separator: int = -1,
    ) -> None:
        self._config = config
        self._symbols = symbols
        self._selector = selector
        self._penalty = LengthPenalty.of(config)
        self._group_size = config.beam // selector.num_groups
        limits, eos, device = constraints.limits, symbols.eos_index, src_tokens.device
        self._last_step = int(limits.max(initial=0))
        not_words = (src_tokens == symbols.pad_index) | (src_tokens == eos)
        self._batch = _Batch(
            sentences=np.arange(len(limits)),
            open=np.ones(len(limits), dtype=bool),
            not_words=not_words | (src_tokens == source_separator),
            state=ensemble.start(src_tokens, selector.num_groups, shortlist),
            constraints=constraints,
            finished=FinishedHypotheses(len(limits), selector.num_groups, config.beam, device),
        )
        self._history = SearchHistory(len(limits), config, eos)
        self._live = self._first_beams(len(limits), device)
        self._step = 0
        self._prunes = ensemble.prunes
        self._rows: Tensor | None = None
        self.num_live = len(limits) * config.beam
        self._has_ended = False
        self.is_done = len(limits) == 0

    @property
    def next_step(self) -> SearchStep:
        """The newest tokens, for the models to read."""
        tokens = self._live.tokens if self._step else self._live.tokens[:, :1]
        return SearchStep(tokens, self._batch.state, self._rows)

    def advance(self, scores: StepScores) -> None:
        """Choose the continuations of the beams.

        Args:
            scores: of the tokens after those of :attr:`next_step`.
        """
        config, batch, step, weights = self._config, self._batch, self._step, scores.weights
        if not batch.constraints.are_alike(step):
            scores = scores.of_all(*self._live.totals.shape)
        batch.constraints.apply(scores.log_probs, step)
        candidates = self._selector.select(scores, self._live.totals, step)
        if config.beam_threshold is not None:
            candidates = candidates.within(config.beam_threshold)
        ends = candidates.tokens == self._symbols.eos_index
        any_ends = bool(ends.any())
        live = self._continue(candidates, ends, any_ends)
        if (idle := batch.constraints.idle_token) is not None:
            tokens = live.tokens.masked_fill(live.totals == -torch.inf, idle)
            live = replace(live, tokens=tokens)
        parents = self._same_beams(live.tokens) if live.parents is None else live.parents
        aligned = None
        if weights is not None:
            aligned = _strongest(weights, batch.not_words).expand(parents.shape)
        self._history.append(batch.sentences, parents, live.tokens, live.totals, aligned)
        if any_ends:
            self._finish(batch, candidates, ends, step)
            self._has_ended = True
        # Also where nothing ends now: an open hypothesis may have fallen behind, and whether
        # that is seen must not depend on what ends in other sentences.
        if self._has_ended:
            done = self._done(batch, live.totals, step).cpu().numpy() & batch.open
            if done.any():
                self._history.take(*batch.these(done), batch.finished)
                batch.open &= ~done
                if batch.open.any() and batch.open.mean() < 1 - MOST_DONE:
                    live = self._drop(batch, live)
        self._step = step + 1
        self.is_done = not batch.open.any() or step == self._last_step
        if self.is_done:
            self.num_live = 0
            return
        self._rows = self._count_live(live.totals)
        if step > 0 and live.parents is not None:
            batch.state.reorder(live.parents)
        batch.constraints.advance(live.parents, live.tokens)
        self._live = live

    def results(self) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each sentence, with their prefixes, when it is done."""
        return self._history.results()

    def _count_live(self, totals: Tensor) -> Tensor | None:
        """Count the hypotheses of open sentences; return their indices if the models want them.

        Args:
            totals: of all beams [B, K]; -inf is no hypothesis.

        Returns:
            int64 [N]; None for all beams.
        """
        is_open = self._batch.open
        if self._config.beam_threshold is None and (is_open.all() or not self._prunes):
            self.num_live = int(is_open.sum()) * totals.size(1)
            return None
        is_live = (totals != -torch.inf) & torch.from_numpy(is_open).to(totals.device)[:, None]
        rows = is_live.flatten().nonzero().squeeze(1)
        self.num_live = len(rows)
        return rows if self._prunes else None

    def _drop(self, batch: _Batch, live: _Live) -> _Live:
        """Let the sentences that are done leave the batch."""
        rows = batch.keep(batch.open)
        self._selector.keep(rows)
        parents = None if live.parents is None else live.parents.index_select(0, rows)
        return _Live(live.tokens.index_select(0, rows), parents, live.totals.index_select(0, rows))

    def _first_beams(self, batch: int, device: torch.device) -> _Live:
        """Return the beams before the first token; of each group only one counts, being equal."""
        beam_size = self._config.beam
        tokens = torch.full(
            (batch, beam_size), self._symbols.eos_index, dtype=torch.int64, device=device
        )
        totals = torch.full((batch, beam_size), -torch.inf, device=device)
        totals[:, :: self._group_size] = 0.0
        return _Live(tokens, None, totals)

    def _continue(self, candidates: Candidates, ends: Tensor, any_ends: bool) -> _Live:
        """Choose in every group the k best candidates that have not ended."""
        size = self._group_size
        tokens, parents, totals = candidates.tokens, candidates.parents, candidates.totals
        if any_ends:
            # Candidates come best first; the ended ones move behind all others.
            count = ends.size(2)
            rank = torch.arange(count, device=ends.device) + count * ends
            order = rank.topk(size, dim=2, largest=False).indices
            tokens = tokens.gather(2, order)
            parents = None if parents is None else parents.gather(2, order)
            totals = totals.masked_fill(ends, -torch.inf).gather(2, order)
        if parents is not None:
            parents = parents[:, :, :size].flatten(1)
        return _Live(tokens[:, :, :size].flatten(1), parents, totals[:, :, :size].flatten(1))

    def _finish(self, batch: _Batch, candidates: Candidates, ends: Tensor, step: int) -> None:
        """Store the hypotheses that end now; only candidates within the beam count."""
        size = self._group_size
        totals = candidates.totals.masked_fill(~ends, -torch.inf)[:, :, :size]
        if candidates.parents is None:
            parents = self._same_beams(totals.flatten(1)).view_as(totals)
        else:
            parents = candidates.parents[:, :, :size]
        batch.finished.add(step, totals, parents, self._divisors(batch, step + 1))

    def _divisors(self, batch: _Batch, num_tokens: int) -> Tensor:
        """Return the length penalties of hypotheses of so many tokens, float32 [B]."""
        divisors = torch.from_numpy(self._penalty(batch.lengths(num_tokens)))
        return divisors.to(batch.not_words.device, torch.float32)

    def _done(self, batch: _Batch, totals: Tensor, step: int) -> Tensor:
        """Return [B] bool: True = no hypothesis that is still open is worth waiting for.

        Every group of beams is judged by itself: diverse beam search and sampling end with as
        many hypotheses of each group as it has beams.

        Args:
            batch: the live sentences.
            totals: of the open hypotheses [B, K]; all -inf at a sentence's length limit.
            step: tokens of an ended hypothesis without the end symbol; open ones have one more.
        """
        num_groups, rule = self._selector.num_groups, self._config.stop_rule
        wanted = self._config.nbest if num_groups == 1 else self._group_size
        best_open = totals.unflatten(1, (num_groups, -1)).amax(2)  # [B, G]
        to_beat = batch.finished.scores[:, :, wanted - 1]  # [B, G]
        done = best_open == -torch.inf
        if self._config.unkpen >= 0:  # a bonus for <unk> could raise a score without bound
            # A total only falls, so no open hypothesis ever scores more than it would now with
            # the kindest length that it can still have.
            shortest, longest = batch.lengths(step + 2), batch.lengths(batch.constraints.limits + 1)
            divisors = torch.from_numpy(self._penalty.kindest(shortest, longest)).to(best_open)
            done |= best_open / divisors[:, None] <= to_beat
        full = batch.finished.count >= self._group_size
        # With a single beam, whatever goes on was not the likeliest: greedy search has ended.
        if rule == "full" or self._group_size == 1:
            done |= full
        elif rule == "ahead":
            done |= full & (best_open / self._divisors(batch, step + 2)[:, None] <= to_beat)
        return done.all(1)

    @staticmethod
    def _same_beams(like: Tensor) -> Tensor:
        return torch.arange(like.size(1), device=like.device).expand(like.shape)


def _strongest(weights: Tensor, not_words: Tensor) -> Tensor:
    """Return the source position with the largest of weights [B, K, S], special symbols left out.

    A source of no words gives position 0.
    """
    return weights.masked_fill(not_words[:, None], -torch.inf).argmax(2)

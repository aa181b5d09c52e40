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
    LiveHypotheses,
    SearchHistory,
    of_beams,
)
from relu_nmt.translation.search.scoring import Outputs, Scorer
from relu_nmt.translation.search.selectors import Candidates, Selector
from relu_nmt.translation.step_decoder import SearchState, SearchStep, StepScores

MOST_DONE = 0.4
"""Drop finished sentences when they are more than this fraction of the batch; that copies the
others."""


@dataclass
class _Batch:
    """The sentences that are computed, and their state.

    Args:
        sentences: number of the sentence of each row, [B].
        open: False for sentences that are done, [B] bool.
        is_word: source positions that are words, [B, S] bool.
        state: of the models.
        constraints: the allowed tokens and lengths.
        finished: hypotheses that have ended.
    """

    sentences: np.ndarray
    open: np.ndarray
    is_word: Tensor
    state: SearchState
    constraints: TokenConstraints
    finished: FinishedHypotheses

    def these(self, mask: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """Return the sentences of a mask [B] and their rows on the device."""
        rows = torch.from_numpy(np.flatnonzero(mask)).to(self.is_word.device)
        return self.sentences[mask], rows

    def lengths(self, num_tokens: int | np.ndarray) -> np.ndarray:
        """Return how many of ``num_tokens`` a score counts, [B]: all after the context."""
        return np.maximum(num_tokens - self.constraints.context_sizes, 1)

    def keep(self, mask: np.ndarray) -> Tensor:
        """Drop all sentences outside the mask [B]; return the rows that stay."""
        self.sentences, rows = self.these(mask)
        self.open = self.open[mask]
        self.is_word = self.is_word.index_select(0, rows)
        self.state.keep(rows)
        self.constraints.keep(rows, mask)
        self.finished.keep(rows)
        return rows


class BeamSearch:
    """Searches the best translations of one batch, a step at a time.

    The hypotheses of a sentence are stored as soon as it is done, so its result does not depend on
    the other sentences. It leaves the batch later, together with others.

    Args:
        symbols: the target dictionary.
        selector: chooses continuations.
        src_tokens: [B, S] int64, right-padded, each ending in the end symbol.
        is_word: source positions that are words, [B, S] bool.
        constraints: the allowed tokens and lengths. Tokens of the context do not count for the
            score; the rest of a prefix does.
        shortlist: the only symbols that may be written, int64 [V'], special symbols first; ids in
            hypotheses and constraints are then indices into it. ``None`` for all.

    Attributes:
        is_done: nothing is left to search.
        num_live: open hypotheses of all sentences; at first all beams count.

    Reference: Huang, Zhao and Ma 2017, "When to finish? Optimal beam search for neural text
    generation", for the bound behind the stop rules ``exact`` and, looser, ``ahead``; ``full`` is
    fairseq's rule.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        config: GenerationConfig,
        scorer: Scorer,
        symbols: Dictionary,
        selector: Selector,
        src_tokens: Tensor,
        is_word: Tensor,
        constraints: TokenConstraints,
        shortlist: Tensor | None = None,
    ) -> None:
        self._config = config
        self._symbols = symbols
        self._selector = selector
        self._scorer = scorer
        self._group_size = config.beam // selector.num_groups
        limits, device = constraints.limits, src_tokens.device
        self._last_step = int(limits.max(initial=0))
        # Encode the sources, and begin with one hypothesis in each group of beams.
        self._batch = _Batch(
            sentences=np.arange(len(limits)),
            open=np.ones(len(limits), dtype=bool),
            is_word=is_word,
            state=ensemble.start(src_tokens, selector.num_groups, shortlist),
            constraints=constraints,
            finished=FinishedHypotheses(len(limits), selector.num_groups, config.beam, device),
        )
        self._history = SearchHistory(len(limits), config, symbols.eos_index)
        self._live = LiveHypotheses.first(
            len(limits), config.beam, self._group_size, symbols.eos_index, device
        )
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
        # Forbid tokens, then choose the best continuations, ended ones among them.
        if not batch.constraints.are_alike(step):
            scores = scores.of_all(*self._live.totals.shape)
        batch.constraints.apply(scores.log_probs, step)
        candidates = self._selector.select(scores, self._live.totals, step)
        if config.beam_threshold is not None:
            candidates = candidates.within(config.beam_threshold)
        ends = candidates.tokens == self._symbols.eos_index
        any_ends = bool(ends.any())
        attention = None
        if self._scorer.needs_attention and weights is not None:
            attention = self._live.attention_with(weights)
        live = self._continue(candidates, ends, any_ends, attention)
        # Give dead beams a harmless token, which keeps their sentences short.
        if (idle := batch.constraints.idle_token) is not None:
            tokens = live.tokens.masked_fill(live.totals == -torch.inf, idle)
            live = replace(live, tokens=tokens)
        # Record the step.
        aligned = None
        if config.wants_alignment and weights is not None:
            aligned = _strongest(weights, batch.is_word).expand(live.tokens.shape)
        self._history.append(batch.sentences, live, aligned)
        if any_ends:
            self._finish(batch, candidates, ends, step, attention)
            self._has_ended = True
        # Store sentences that are done. An open hypothesis may have fallen behind although nothing
        # ends now; to find it must not depend on the ends in other sentences.
        if self._has_ended:
            done = self._done(batch, live, step).cpu().numpy() & batch.open
            if done.any():
                self._history.take(*batch.these(done), batch.finished)
                batch.open &= ~done
                if batch.open.any() and batch.open.mean() < 1 - MOST_DONE:
                    rows = batch.keep(batch.open)
                    self._selector.keep(rows)
                    live = live.keep(rows)
        # Prepare the next step.
        self._step = step + 1
        self.is_done = not batch.open.any() or step == self._last_step
        if self.is_done:
            self.num_live = 0
            return
        self._rows = self._count_live(live.totals)
        # Let the states follow the chosen beams; the first step has a single one.
        if step > 0 and live.parents is not None:
            batch.state.reorder(live.parents)
        batch.constraints.advance(live.parents, live.tokens)
        self._live = live

    def results(self) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each sentence, with their prefixes, when it is done."""
        return self._history.results()

    def _count_live(self, totals: Tensor) -> Tensor | None:
        """Count the hypotheses of open sentences; return their indices if the models prune beams.

        Returns:
            int64 [N] among all B K beams; None for all.
        """
        is_open = self._batch.open
        if self._config.beam_threshold is None and (is_open.all() or not self._prunes):
            self.num_live = int(is_open.sum()) * totals.size(1)
            return None
        # Find the beams with a hypothesis in open sentences, [B, K].
        is_live = (totals != -torch.inf) & torch.from_numpy(is_open).to(totals.device)[:, None]
        rows = is_live.flatten().nonzero().squeeze(1)
        self.num_live = len(rows)
        return rows if self._prunes else None

    def _continue(
        self, candidates: Candidates, ends: Tensor, any_ends: bool, attention: Tensor | None
    ) -> LiveHypotheses:
        """Choose in every group the k best candidates that have not ended."""
        size = self._group_size
        tokens, parents, totals = candidates.tokens, candidates.parents, candidates.totals
        if any_ends:
            # Candidates come best first; move the ended ones behind all others.
            count = ends.size(2)
            rank = torch.arange(count, device=ends.device) + count * ends
            order = rank.topk(size, dim=2, largest=False).indices
            tokens = tokens.gather(2, order)
            parents = None if parents is None else parents.gather(2, order)
            totals = totals.masked_fill(ends, -torch.inf).gather(2, order)
        # Cut each group to k beams, and join the groups, [B, K].
        if parents is not None:
            parents = parents[:, :, :size].flatten(1)
        return LiveHypotheses(
            tokens[:, :, :size].flatten(1),
            parents,
            totals[:, :, :size].flatten(1),
            of_beams(attention, parents),
        )

    def _finish(
        self,
        batch: _Batch,
        candidates: Candidates,
        ends: Tensor,
        step: int,
        attention: Tensor | None,
    ) -> None:
        """Store the hypotheses that end now; only candidates within the beam count."""
        # Ended candidates among the first k of each group, [B, G, k].
        size = self._group_size
        totals = candidates.totals.masked_fill(~ends, -torch.inf)[:, :, :size]
        # Name the parents of groups of one beam, which are the beams themselves.
        if candidates.parents is None:
            parents = torch.arange(self._config.beam, device=totals.device).view(-1, size)
            parents = parents.expand_as(totals)
        else:
            parents = candidates.parents[:, :, :size]
        attention = of_beams(attention, parents.flatten(1))
        scores = self._scores(batch, totals.flatten(1), step + 1, attention)
        batch.finished.add(step, totals, parents, scores.view_as(totals))

    def _scores(
        self, batch: _Batch, totals: Tensor, num_tokens: int, attention: Tensor | None
    ) -> Tensor:
        """Return the scores of hypotheses with ``num_tokens`` tokens, [B, M] like totals."""
        lengths = batch.lengths(num_tokens)
        scores = self._scorer.score(Outputs(totals, lengths, attention, batch.is_word))
        return scores.masked_fill(totals == -torch.inf, -torch.inf)

    def _done(self, batch: _Batch, live: LiveHypotheses, step: int) -> Tensor:
        """Return [B] bool: True for sentences whose open hypotheses are not worth waiting for.

        Every group of beams is judged by itself: diverse beam search and sampling end with as
        many hypotheses of each group as it has beams.

        Args:
            batch: the live sentences.
            live: the open hypotheses; all totals are -inf at a sentence's length limit.
            step: tokens of an ended hypothesis without the end symbol; open ones have one more.
        """
        num_groups, rule = self._selector.num_groups, self._config.stop_rule
        wanted = self._config.nbest if num_groups == 1 else self._group_size
        # A group is done when no hypothesis is open, or none can beat the worst one wanted.
        best_open = live.totals.unflatten(1, (num_groups, -1)).amax(2)  # [B, G]
        to_beat = batch.finished.scores[:, :, wanted - 1]  # [B, G]
        done = best_open == -torch.inf
        if self._config.unkpen >= 0:  # a bonus for <unk> could raise a score without bound
            shortest, longest = batch.lengths(step + 2), batch.lengths(batch.constraints.limits + 1)
            done |= self._scorer.bound(best_open, shortest, longest) <= to_beat
        full = batch.finished.count >= self._group_size
        # With a single beam, an open hypothesis was not the likeliest: greedy search has ended.
        if rule == "full" or self._group_size == 1:
            done |= full
        elif rule == "ahead":
            scores = self._scores(batch, live.totals, step + 2, live.attention)
            done |= full & (scores.unflatten(1, (num_groups, -1)).amax(2) <= to_beat)
        return done.all(1)


def _strongest(weights: Tensor, is_word: Tensor) -> Tensor:
    """Return the word with the largest of weights [B, K, S], int64 [B, K]; 0 without words."""
    return weights.masked_fill(~is_word[:, None], -torch.inf).argmax(2)

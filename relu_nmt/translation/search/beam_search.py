"""The search of one batch: all beams advance by one token per step, and none is copied."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relu_nmt.errors import ConfigError
from relu_nmt.translation.base import Ensemble, NextTokenScores, SearchStep
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.constraints import TokenConstraints
from relu_nmt.translation.search.forced_terms import share_among_terms
from relu_nmt.translation.search.scoring import Outputs, Scorer
from relu_nmt.translation.search.selection import (
    Beams,
    Candidates,
    best_of_groups,
    draw,
    draw_uniforms,
)
from relu_nmt.translation.search.step_rules import OutputBudget
from relu_nmt.translation.search.translations import Hypothesis

MOST_DONE = 0.4
"""Drop finished sentences when they are more than this fraction of the batch. A drop copies the
other sentences."""

LEAST_SCORE = -1e30
"""Scores below this come from numbers that overflow. Decoders round these differently."""
NOT_FINITE = "the model's scores are not finite (training diverged)"


def strongest_words(weights: Tensor, is_word: Tensor) -> Tensor:
    """Return the source word [B, K] with the largest weight, of weights [B, K, S]. -1: none."""
    is_word = is_word[:, None]
    strongest = weights.masked_fill(~is_word, -torch.inf).argmax(2)
    has_weight = ((weights != 0) & is_word).any(2)
    return strongest.masked_fill(~has_weight, -1)


class BeamSearch:
    """Searches the best translations of one batch, a step at a time.

    The hypotheses of a sentence are stored as soon as it is done, so its result does not depend on
    the other sentences. Several done sentences leave the batch together. Sources [B, S] are
    right-padded. ``is_word`` [B, S] marks the positions of words. ``ids`` [B], the numbers of the
    sentences, seed the draws of sampling. If only ``listed`` symbols [V'] may be written, which
    begin with the special symbols, tokens of the search are indices into this list.

    Reference: Huang, Zhao and Ma 2017, "When to finish? Optimal beam search for neural text
    generation", for the bound of the stop rule ``exact``. The rule ``ahead`` is looser, and
    ``full`` is fairseq's rule.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        config: GenerationConfig,
        scorer: Scorer,
        src_tokens: Tensor,
        is_word: Tensor,
        ids: np.ndarray,
        constraints: TokenConstraints,
        listed: Tensor | None = None,
    ) -> None:
        self._config = config
        self._scorer = scorer
        self.src_tokens = src_tokens
        self._is_word = is_word
        self.ids = ids
        self._constraints = constraints
        self._listed = None if listed is None else listed.cpu().numpy()
        device = src_tokens.device
        # Draw all random numbers at once, with one more step for the end symbol, [B, T, K].
        self._last_step = int(constraints.budget.limits.max())
        self._uniforms = None
        self._num_groups = max(1, config.diverse_beam_groups)
        if config.sampling:
            self._num_groups = config.beam
            drawn = draw_uniforms(config.seed, ids, config.beam, self._last_step + 1)
            self._uniforms = torch.from_numpy(drawn).to(device)
        self._group_size = config.beam // self._num_groups
        # Encode the sources, and begin with one live beam in each group.
        self._states = ensemble.start(src_tokens, self._num_groups, listed)
        totals = torch.full((len(ids), config.beam), -torch.inf, device=device)
        totals[:, :: self._group_size] = 0.0
        tokens = torch.full_like(totals, constraints.budget.eos_index, dtype=torch.int64)
        self._beams = Beams(tokens, torch.zeros_like(tokens), totals)
        self._is_live = None if self._group_size == 1 else totals == 0  # [B, K]
        self._history = SearchHistory(config, constraints.budget, self._num_groups, device)
        # The sentences of the rows, all unfinished.
        self._sentences = np.arange(len(ids))
        self._unfinished = np.ones(len(ids), dtype=bool)
        self._step = 0
        self._has_ended = self.is_done = False
        self.num_live = len(ids) * config.beam

    @property
    def next_steps(self) -> list[SearchStep]:
        """The newest tokens, for each model to read."""
        return [SearchStep(self._beams.tokens, state, self._is_live) for state in self._states]

    def advance(self, scores: NextTokenScores) -> None:
        """Choose the continuations of the beams by the scores of the next tokens."""
        self._refuse_undefined(scores)
        # Forbid tokens, then choose the best continuations, including those that end.
        candidates = self._candidates(scores)
        ends = candidates.tokens == self._constraints.budget.eos_index
        any_ends = bool(ends.any())
        attention = self._attention_with(scores.weights)
        beams = self._continue(candidates, ends, any_ends, attention)
        self._history.append(self._sentences, beams, scores.weights, self._is_word)
        if any_ends:
            self._finish(candidates, ends, attention)
            self._has_ended = True
        # Check this even if nothing ends now, since live hypotheses can fall behind, and a result
        # must not depend on the ends in other sentences.
        if self._has_ended:
            beams = self._store_done(beams)
        self.is_done = not self._unfinished.any() or self._step == self._last_step
        self._step += 1
        if self.is_done:
            self.num_live = 0
        else:
            self._follow(beams)

    def results(self) -> list[list[Hypothesis]]:
        """Return each sentence's n best hypotheses without context (ConfigError: it has none)."""
        results = self._history.results(self._listed)
        # Report sentences without hypothesis: all their tokens were forbidden or not finite.
        for sentence, hypotheses in zip(self.ids, results, strict=True):
            if not hypotheses or hypotheses[0].score < LEAST_SCORE:
                reason = NOT_FINITE
                if self._config.min_len > 1 or self._config.no_repeat_ngram_size:
                    reason = (
                        "--min-len and --no-repeat-ngram-size forbid every token; lower them, and "
                        "if that does not help, the training of the model has diverged"
                    )
                raise ConfigError(f"sentence {sentence}: no possible output; {reason}")
        return results

    def _refuse_undefined(self, scores: NextTokenScores) -> None:
        """Raise a ConfigError if a live hypothesis has a NaN among the scores of its next tokens.

        A logit of NaN or +infinity makes the whole row of log-probabilities NaN. Different decoders
        would choose different tokens from such a row.
        """
        # Read only one number, the sum of the first column, since every step waits for it.
        if not scores.log_probs[:, :, 0].sum().isnan():
            return
        is_undefined = scores.of_all_beams().log_probs[:, :, 0].isnan()  # [B, K]
        is_undefined &= self._beams.totals != -torch.inf
        is_wrong = is_undefined.any(1).cpu().numpy() & self._unfinished
        if is_wrong.any():
            sentence = self.ids[self._sentences[is_wrong][0]]
            raise ConfigError(f"sentence {sentence}: no possible output; {NOT_FINITE}")

    def _candidates(self, scores: NextTokenScores) -> Candidates:
        """Return the best continuations of each group of beams, including those that end."""
        config = self._config
        totals = self._beams.totals
        step = self._step
        if not self._constraints.are_alike(step):
            scores = scores.of_all_beams()
        self._constraints.apply(scores.log_probs, step)
        if self._uniforms is not None:
            uniforms = self._uniforms[:, step]
            return draw(scores, totals, uniforms, config.sampling_topk, config.sampling_topp)
        if self._num_groups > 1:
            candidates = best_of_groups(
                scores, totals, self._num_groups, config.diverse_beam_strength
            )
        else:
            sums, parents, tokens = scores.best_continuations(totals, 2 * config.beam)  # [B, 2K]
            candidates = Candidates(tokens[:, None], parents[:, None], sums[:, None])
        if self._constraints.terms is not None:
            share_among_terms(candidates, scores, totals, self._constraints.terms)
        # Drop candidates behind the best one of their group: Freitag and Al-Onaizan 2017, "Beam
        # search strategies for neural machine translation", Eq. 1, with exp(-threshold).
        if config.beam_threshold is not None:
            behind = candidates.totals < candidates.totals[:, :, :1] - config.beam_threshold
            totals = candidates.totals.masked_fill(behind, -torch.inf)
            candidates = candidates._replace(totals=totals)
        return candidates

    def _attention_with(self, weights: Tensor | None) -> Tensor | None:
        """Return the attention of all tokens and of the next one [B, K, S], if scores need it."""
        if not self._scorer.needs_attention or weights is None:
            return None
        attention = weights.float()
        return attention if self._beams.attention is None else self._beams.attention + attention

    def _continue(
        self, candidates: Candidates, ends: Tensor, any_ends: bool, attention: Tensor | None
    ) -> Beams:
        """Choose in every group the k best candidates that have not ended."""
        size = self._group_size
        tokens, parents, totals = candidates
        if any_ends:
            # Candidates come best first. Move the ended ones behind all others.
            count = ends.size(2)
            rank = torch.arange(count, device=ends.device) + count * ends
            order = rank.topk(size, dim=2, largest=False).indices
            tokens = tokens.gather(2, order)
            parents = parents.gather(2, order)
            totals = totals.masked_fill(ends, -torch.inf).gather(2, order)
        # Cut each group to k beams, and join the groups, [B, K].
        parents = parents[:, :, :size].flatten(1)
        tokens = tokens[:, :, :size].flatten(1)
        totals = totals[:, :, :size].flatten(1)
        # Give dead beams a harmless token, which keeps their sentences short.
        if self._constraints.idle_token is not None:
            tokens = tokens.masked_fill(totals == -torch.inf, self._constraints.idle_token)
        return Beams(tokens, parents, totals, of_beams(attention, parents))

    def _finish(self, candidates: Candidates, ends: Tensor, attention: Tensor | None) -> None:
        """Store the hypotheses that end now and are among the best k candidates of their group."""
        # Ended candidates among the first k of each group, [B, G, k].
        size = self._group_size
        step = self._step
        totals = candidates.totals.masked_fill(~ends, -torch.inf)[:, :, :size]
        parents = candidates.parents[:, :, :size]
        attention = of_beams(attention, parents.flatten(1))
        scores = self._scores(totals.flatten(1), step + 1, attention)
        self._history.finish(step, totals, parents, scores.view_as(totals))

    def _lengths(self, num_tokens: int | np.ndarray) -> np.ndarray:
        """Return how many of ``num_tokens`` a score counts, [B]: all after the context."""
        return np.maximum(num_tokens - self._constraints.budget.context_sizes, 1)

    def _scores(self, totals: Tensor, num_tokens: int, attention: Tensor | None) -> Tensor:
        """Return the scores of hypotheses with ``num_tokens`` tokens, [B, M] like totals."""
        outputs = Outputs(totals, self._lengths(num_tokens), attention, self._is_word)
        return self._scorer.score(outputs).masked_fill(totals == -torch.inf, -torch.inf)

    def _store_done(self, beams: Beams) -> Beams:
        """Store the sentences that are done. Return the beams that stay."""
        done = self._done(beams).cpu().numpy() & self._unfinished
        if not done.any():
            return beams
        rows = torch.from_numpy(np.flatnonzero(done)).to(beams.tokens.device)
        self._history.store(self._sentences[done], rows)
        self._unfinished &= ~done
        return self._without_done(beams)

    def _follow(self, beams: Beams) -> None:
        """Let states and constraints follow the chosen beams."""
        self._is_live = self._count_live(beams.totals)
        # The only beam of a group continues itself.
        if self._group_size > 1:
            for state in self._states:
                state.reorder(beams.parents)
        self._constraints.advance(beams.parents, beams.tokens)
        self._beams = beams

    def _done(self, beams: Beams) -> Tensor:
        """Return which sentences are done in all groups of beams, bool [B]."""
        num_groups = self._num_groups
        rule = self._config.stop_rule
        next_length = self._step + 2  # of a live hypothesis that ends in the next step
        num_wanted = self._config.nbest if num_groups == 1 else self._group_size
        # A group is done when no hypothesis is live, or none can beat the worst one wanted.
        best_live = beams.totals.unflatten(1, (num_groups, -1)).amax(2)  # [B, G]
        to_beat = self._history.scores[:, :, num_wanted - 1]  # [B, G]
        done = best_live == -torch.inf
        # A bonus could raise a score without bound.
        if self._config.unkpen >= 0 and self._config.step_score is None:
            longest = self._lengths(self._constraints.budget.limits + 1)
            done |= self._scorer.bound(best_live, self._lengths(next_length), longest) <= to_beat
        full = self._history.count >= self._group_size
        # A group of one beam is greedy search, which ends at the first end symbol.
        if rule == "full" or self._group_size == 1:
            done |= full
        elif rule == "ahead":
            scores = self._scores(beams.totals, next_length, beams.attention)
            done |= full & (scores.unflatten(1, (num_groups, -1)).amax(2) <= to_beat)
        return done.all(1)

    def _without_done(self, beams: Beams) -> Beams:
        """Drop the sentences that are done if they are many. Return the beams that stay."""
        mask = self._unfinished
        if not mask.any() or mask.mean() >= 1 - MOST_DONE:
            return beams
        rows = torch.from_numpy(np.flatnonzero(mask)).to(beams.tokens.device)
        self._sentences = self._sentences[mask]
        self._unfinished = mask[mask]
        self._is_word = self._is_word.index_select(0, rows)
        if self._uniforms is not None:
            self._uniforms = self._uniforms.index_select(0, rows)
        for state in self._states:
            state.keep(rows)
        self._constraints.keep(rows, mask)
        self._history.keep(rows)
        return beams.keep(rows)

    def _count_live(self, totals: Tensor) -> Tensor | None:
        """Count the live hypotheses. Return the mask of their beams [B, K], None for all beams."""
        if self._config.beam_threshold is None and self._unfinished.all():
            self.num_live = totals.numel()
            return None
        # Find the beams with a hypothesis in unfinished sentences.
        is_unfinished = torch.from_numpy(self._unfinished).to(totals.device)[:, None]  # [B, 1]
        is_live = (totals != -torch.inf) & is_unfinished
        self.num_live = int(is_live.sum())
        return is_live


def of_beams(attention: Tensor | None, parents: Tensor) -> Tensor | None:
    """Return the attention [B, M, S] of beams ``parents`` [B, M]."""
    if attention is None:
        return None
    return attention.gather(1, parents[:, :, None].expand(-1, -1, attention.size(2)))


class _Step(NamedTuple):
    """The beams that one step chose, without attention."""

    row_of: np.ndarray  # the row of each sentence of the batch, [N]. -1 if it is done
    beams: Beams
    alignment: Tensor | None  # source position of the strongest attention, -1 for none


class SearchHistory:
    """The finished hypotheses of one batch, and back-pointers, so that no step copies hypotheses.

    For each live sentence it holds the best k finished hypotheses of every group of beams, with
    their ``scores`` [B, G, k]. ``count`` [B, G] is the number of all finished hypotheses.
    :meth:`store` keeps the hypotheses of done sentences.
    """

    def __init__(
        self, config: GenerationConfig, budget: OutputBudget, num_groups: int, device: torch.device
    ) -> None:
        self._config = config
        # These are of all sentences of the batch, unlike later arrays of ``budget``.
        self._limits = budget.limits
        self._context_sizes = budget.context_sizes
        self._eos_index = budget.eos_index
        self._steps: list[_Step] = []
        # Done sentences [M], then their scores, totals and origins [M, n].
        self._stored: list[list[np.ndarray]] = []
        # The best finished hypotheses, [B, G, k].
        shape = (len(budget.limits), num_groups, config.beam // num_groups)
        self.scores = torch.full(shape, -torch.inf, device=device)
        self.count = torch.zeros(shape[:2], dtype=torch.int64, device=device)
        self._totals = torch.zeros(shape, device=device)  # log-probabilities
        self._origins = torch.zeros(shape, dtype=torch.int64, device=device)  # step * K + beam

    def append(
        self, sentences: np.ndarray, beams: Beams, weights: Tensor | None, is_word: Tensor
    ) -> None:
        """Record the beams of one step for the rows of these sentences [B].

        ``weights`` [B, K, S] are the attention of each **parent** beam. ``is_word`` [B, S] marks
        the words.
        """
        alignment = None
        if self._config.wants_alignment and weights is not None:
            alignment = strongest_words(weights, is_word)
        row_of = np.full(len(self._limits), -1, dtype=np.int64)
        row_of[sentences] = np.arange(len(sentences))
        self._steps.append(_Step(row_of, beams._replace(attention=None), alignment))

    def finish(self, step: int, totals: Tensor, parents: Tensor, scores: Tensor) -> None:
        """Merge in the hypotheses [B, G, M] that end at ``step``. A total of -inf means none."""
        # Merge with the best so far, [B, G, k + M], and keep k.
        real = totals > -torch.inf
        self.count += real.sum(2)
        scores = torch.cat([self.scores, scores.masked_fill(~real, -torch.inf)], dim=2)
        self.scores, best = scores.topk(self.scores.size(2), dim=2)
        # Gather totals and origins in the order of the best scores, [B, G, k].
        self._totals = torch.cat([self._totals, totals], dim=2).gather(2, best)
        origins = step * self._config.beam + parents
        self._origins = torch.cat([self._origins, origins], dim=2).gather(2, best)

    def store(self, sentences: np.ndarray, rows: Tensor) -> None:
        """Store the best finished hypotheses of the sentences [M] in these rows [M]."""
        # Sort the finished hypotheses of all groups together, [M, G * k].
        scores, best = self.scores[rows].flatten(1).sort(dim=1, descending=True, stable=True)
        nbest = self._config.nbest
        best = best[:, :nbest]
        totals = self._totals[rows].flatten(1).gather(1, best)
        origins = self._origins[rows].flatten(1).gather(1, best)
        entry = [sentences]
        for column in (scores[:, :nbest], totals, origins):
            entry.append(column.cpu().numpy())
        self._stored.append(entry)

    def keep(self, rows: Tensor) -> None:
        """Keep the finished hypotheses of the sentences in these rows [B'] only."""
        for name in ("scores", "count", "_totals", "_origins"):
            setattr(self, name, getattr(self, name).index_select(0, rows))

    def results(self, symbols: np.ndarray | None = None) -> list[list[Hypothesis]]:
        """Return each sentence's hypotheses, best first. ``symbols`` [V'] are the ids of tokens."""
        hypotheses: list[list[Hypothesis]] = [[] for _ in self._limits]
        if not self._stored:
            return hypotheses
        # Join the hypotheses of all sentences, and leave out empty entries.
        sentences, *columns = map(np.concatenate, zip(*self._stored, strict=True))
        real = columns[0].ravel() > -np.inf
        sentences = np.repeat(sentences, columns[0].shape[1])[real]
        scores, totals, origins = (column.ravel()[real] for column in columns)
        # Read tokens and partial sums. The score of a token is a difference of sums.
        steps, beams = np.divmod(origins, self._config.beam)
        tokens, partial, alignment = self._trace(sentences, steps, beams)
        for i, (sentence, end) in enumerate(zip(sentences, steps, strict=True)):
            ids = np.append(tokens[i, :end], self._eos_index)
            if symbols is not None:
                ids = symbols[ids]
            all_totals = np.append(partial[i, :end], totals[i])
            # Remove the context, after which the end symbol is new in any case.
            new = slice(min(self._context_sizes[sentence], end), end + 1)
            hypothesis = Hypothesis(
                ids[new],
                score=float(scores[i]),
                positional_scores=np.diff(all_totals, prepend=np.float32(0))[new],
                alignment=None if alignment is None else alignment[i, new],
                reached_limit=bool(len(ids) > self._limits[sentence]),
            )
            hypotheses[sentence].append(hypothesis)
        return hypotheses

    def _trace(
        self, sentences: np.ndarray, steps: np.ndarray, beams: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Follow M hypotheses back from the beams [M] in which they ended, at these steps [M].

        Return tokens and log-probabilities [M, T] up to the end symbol, and, if recorded, source
        positions [M, T + 1]. Values beyond the end of a hypothesis are meaningless.
        """
        longest = int(steps.max(initial=0))
        tokens = np.zeros((len(steps), longest), dtype=np.int64)
        totals = np.zeros((len(steps), longest), dtype=np.float32)
        alignment = None
        if self._steps[0].alignment is not None:
            alignment = np.zeros((len(steps), longest + 1), dtype=np.int64)
        # Copy the beams, which the way back changes step by step.
        beams = beams.copy()
        for t in range(longest, -1, -1):
            # Read the token of each hypothesis that is longer than t, and go to its parent.
            step = self._steps[t]
            inside = steps > t
            if inside.any():
                rows = step.row_of[sentences[inside]]
                chosen = beams[inside]
                tokens[inside, t] = step.beams.tokens.cpu().numpy()[rows, chosen]
                totals[inside, t] = step.beams.totals.cpu().numpy()[rows, chosen]
                beams[inside] = step.beams.parents.cpu().numpy()[rows, chosen]
            # The parent beam attended while it chose the token, or the end symbol.
            if alignment is not None and step.alignment is not None:
                reached = steps >= t
                rows = step.row_of[sentences[reached]]
                alignment[reached, t] = step.alignment.cpu().numpy()[rows, beams[reached]]
        return tokens, totals, alignment

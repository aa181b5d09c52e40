"""The search of one batch: all beams of all sentences advance together, one token a step."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import ConfigError
from relu_nmt.io.process import require_memory
from relu_nmt.translation.base import Ensemble, SearchStep, StepScores
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.constraints import TokenConstraints
from relu_nmt.translation.search.forced_terms import share_among_terms
from relu_nmt.translation.search.hypotheses import (
    Continuations,
    Hypothesis,
    SearchHistory,
    of_beams,
)
from relu_nmt.translation.search.scoring import Outputs, Scorer

MOST_DONE = 0.4
"""Drop finished sentences when they are more than this fraction of the batch. A drop copies the
others."""

LEAST_SCORE = -1e30
"""Scores below this come from numbers that overflow. Decoders round these differently."""
NOT_FINITE = "the model's scores are not finite (training diverged)"


def strongest_words(weights: Tensor, is_word: Tensor) -> Tensor:
    """Return the word of the source with the largest weight, int64 [B, K]. -1: all have weight 0.

    ``weights`` are [B, K, S], ``is_word`` [B, S] the positions of words.
    """
    is_word = is_word[:, None]
    strongest = weights.masked_fill(~is_word, -torch.inf).argmax(2)
    has_weight = ((weights != 0) & is_word).any(2)
    return strongest.masked_fill(~has_weight, -1)


class BeamSearch:
    """Searches the best translations of one batch, a step at a time.

    The hypotheses of a sentence are stored as soon as it is done, so its result does not depend on
    the other sentences. Several done sentences leave the batch together. Sources [B, S] are
    right-padded. ``is_word`` [B, S] are the positions of words. ``ids`` [B], the numbers of the
    sentences, seed the draws of sampling. If only ``listed`` symbols [V'] may be written, special
    ones first, tokens of the search are indices into them.

    Attributes:
        src_tokens: the sources.
        is_done: nothing is left to search.
        num_live: open hypotheses of all sentences. At first all beams count.

    Reference: Huang, Zhao and Ma 2017, "When to finish? Optimal beam search for neural text
    generation", for the bound behind the stop rules ``exact`` and, looser, ``ahead``. ``full`` is
    fairseq's rule.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        config: GenerationConfig,
        scorer: Scorer,
        symbols: Dictionary,
        src_tokens: Tensor,
        is_word: Tensor,
        ids: np.ndarray,
        constraints: TokenConstraints,
        listed: Tensor | None = None,
    ) -> None:
        self._config = config
        self._scorer = scorer
        self._symbols = symbols
        self.src_tokens = src_tokens
        self._is_word = is_word
        self._ids = ids
        self._constraints = constraints
        self._listed = None if listed is None else listed.cpu().numpy()
        limits = constraints.limits
        device = src_tokens.device
        # Draw all random numbers at once, with one more step for the end symbol, [B, T, K].
        self._last_step = int(limits.max())
        self._uniforms = None
        self._num_groups = max(1, config.diverse_beam_groups)
        if config.sampling:
            self._num_groups = config.beam
            drawn = draw_uniforms(config.seed, ids, config.beam, self._last_step + 1)
            self._uniforms = torch.from_numpy(drawn).to(device)
        self._group_size = config.beam // self._num_groups
        # Encode the sources, and begin with one hypothesis in each group of beams.
        self._states = ensemble.start(src_tokens, self._num_groups, listed)
        totals = torch.full((len(ids), config.beam), -torch.inf, device=device)
        totals[:, :: self._group_size] = 0.0
        tokens = torch.full_like(totals, symbols.eos_index, dtype=torch.int64)
        self._live = Continuations(tokens, None, totals)
        self._finished = SearchHistory(
            config, limits, constraints.context_sizes, self._num_groups, symbols.eos_index, device
        )
        # The sentences of the rows, all open.
        self._sentences = np.arange(len(ids))
        self._open = np.ones(len(ids), dtype=bool)
        self._step = 0
        self._is_live: Tensor | None = None
        self._has_ended = self.is_done = False
        self.num_live = len(ids) * config.beam

    @property
    def next_steps(self) -> list[SearchStep]:
        """The newest tokens, for each model to read."""
        tokens = self._live.tokens if self._step else self._live.tokens[:, :1]
        return [SearchStep(tokens, state, self._is_live) for state in self._states]

    def advance(self, scores: StepScores) -> None:
        """Choose the continuations of the beams by scores of the tokens after the newest ones."""
        config = self._config
        step = self._step
        weights = scores.weights
        self._refuse_undefined(scores)
        # Forbid tokens, then choose the best continuations, ended ones among them.
        candidates = self._candidates(scores)
        ends = candidates.tokens == self._symbols.eos_index
        any_ends = bool(ends.any())
        # Sum the attention of all tokens, [B, K, S] from [B, K, S] or [B, 1, S].
        attention = None
        if self._scorer.needs_attention and weights is not None:
            attention = weights.float().expand(-1, config.beam, -1)
            if self._live.attention is not None:
                attention = self._live.attention + attention
        live = self._continue(candidates, ends, any_ends, attention)
        # Record the step, with the source word that got most attention, [B, K].
        aligned = None
        if config.wants_alignment and weights is not None:
            aligned = strongest_words(weights, self._is_word).expand(live.tokens.shape)
        self._finished.append(self._sentences, live, aligned)
        if any_ends:
            self._finish(candidates, ends, attention)
            self._has_ended = True
        # Store sentences that are done. An open hypothesis may have fallen behind although nothing
        # ends now. The result must not depend on the ends in other sentences.
        if self._has_ended:
            done = self._done(live).cpu().numpy() & self._open
            if done.any():
                live = self._take(done, live)
        self._step = step + 1
        self.is_done = not self._open.any() or step == self._last_step
        if self.is_done:
            self.num_live = 0
            return
        self._is_live = self._count_live(live.totals)
        # Let the states follow the chosen beams. The first step has a single one.
        if step > 0 and live.parents is not None:
            for state in self._states:
                state.reorder(live.parents)
        self._constraints.advance(live.parents, live.tokens)
        self._live = live

    def results(self) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each sentence, without context (ConfigError: none)."""
        results = self._finished.results(self._listed)
        # Report sentences without hypothesis: all their tokens were forbidden or not finite.
        for sentence, hypotheses in zip(self._ids, results, strict=True):
            if not hypotheses or hypotheses[0].score < LEAST_SCORE:
                reason = NOT_FINITE
                if self._config.min_len > 1 or self._config.no_repeat_ngram_size:
                    reason = (
                        "--min-len and --no-repeat-ngram-size forbid every token; lower them, and "
                        "if that does not help, the training of the model has diverged"
                    )
                raise ConfigError(f"sentence {sentence}: no possible output; {reason}")
        return results

    def _refuse_undefined(self, scores: StepScores) -> None:
        """Raise a ConfigError if an open hypothesis has a NaN among the scores of its next tokens.

        A logit of NaN or infinity makes the whole row of log-probabilities NaN. Decoders choose
        differently among such rows, so none of them is to choose.
        """
        # Ask the first column alone, and for one number, since every step asks.
        if not scores.log_probs[:, :, 0].sum().isnan():
            return
        totals = self._live.totals
        undefined = scores.log_probs_of(totals)[:, :, 0].isnan() & (totals != -torch.inf)  # [B, K]
        is_wrong = undefined.any(1).cpu().numpy() & self._open
        if is_wrong.any():
            sentence = self._ids[self._sentences[is_wrong][0]]
            raise ConfigError(f"sentence {sentence}: no possible output; {NOT_FINITE}")

    def _candidates(self, scores: StepScores) -> Continuations:
        """Return the best continuations of each group of beams, ended ones among them."""
        config = self._config
        totals = self._live.totals
        step = self._step
        if not self._constraints.are_alike(step):
            scores = scores.of_all(*totals.shape)
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
            candidates = Continuations(tokens[:, None], parents[:, None], sums[:, None])
        if self._constraints.terms is not None:
            share_among_terms(candidates, scores, totals, self._constraints.terms)
        # Drop candidates behind the best one of their group: Freitag and Al-Onaizan 2017, "Beam
        # search strategies for neural machine translation", Eq. 1, with exp(-threshold).
        if config.beam_threshold is not None:
            behind = candidates.totals < candidates.totals[:, :, :1] - config.beam_threshold
            candidates = replace(
                candidates, totals=candidates.totals.masked_fill(behind, -torch.inf)
            )
        return candidates

    def _continue(
        self, candidates: Continuations, ends: Tensor, any_ends: bool, attention: Tensor | None
    ) -> Continuations:
        """Choose in every group the k best candidates that have not ended."""
        size = self._group_size
        tokens = candidates.tokens
        parents = candidates.parents
        totals = candidates.totals
        if any_ends:
            # Candidates come best first. Move the ended ones behind all others.
            count = ends.size(2)
            rank = torch.arange(count, device=ends.device) + count * ends
            order = rank.topk(size, dim=2, largest=False).indices
            tokens = tokens.gather(2, order)
            totals = totals.masked_fill(ends, -torch.inf).gather(2, order)
            if parents is not None:
                parents = parents.gather(2, order)
        # Cut each group to k beams, and join the groups, [B, K].
        if parents is not None:
            parents = parents[:, :, :size].flatten(1)
        tokens = tokens[:, :, :size].flatten(1)
        totals = totals[:, :, :size].flatten(1)
        # Give dead beams a harmless token, which keeps their sentences short.
        if self._constraints.idle_token is not None:
            tokens = tokens.masked_fill(totals == -torch.inf, self._constraints.idle_token)
        return Continuations(tokens, parents, totals, of_beams(attention, parents))

    def _finish(self, candidates: Continuations, ends: Tensor, attention: Tensor | None) -> None:
        """Store the hypotheses that end now. Only candidates within the beam count."""
        # Ended candidates among the first k of each group, [B, G, k].
        size = self._group_size
        step = self._step
        totals = candidates.totals.masked_fill(~ends, -torch.inf)[:, :, :size]
        # Name the parents of groups of one beam, which are the beams themselves.
        if candidates.parents is None:
            parents = torch.arange(self._config.beam, device=totals.device).view(-1, size)
            parents = parents.expand_as(totals)
        else:
            parents = candidates.parents[:, :, :size]
        attention = of_beams(attention, parents.flatten(1))
        scores = self._scores(totals.flatten(1), step + 1, attention)
        self._finished.finish(step, totals, parents, scores.view_as(totals))

    def _lengths(self, num_tokens: int | np.ndarray) -> np.ndarray:
        """Return how many of ``num_tokens`` a score counts, [B]: all after the context."""
        return np.maximum(num_tokens - self._constraints.context_sizes, 1)

    def _scores(self, totals: Tensor, num_tokens: int, attention: Tensor | None) -> Tensor:
        """Return the scores of hypotheses with ``num_tokens`` tokens, [B, M] like totals."""
        outputs = Outputs(totals, self._lengths(num_tokens), attention, self._is_word)
        return self._scorer.score(outputs).masked_fill(totals == -torch.inf, -torch.inf)

    def _done(self, live: Continuations) -> Tensor:
        """Return [B] bool: True for sentences whose open hypotheses are not worth waiting for.

        Every group of beams is judged by itself: diverse beam search and sampling end with as many
        hypotheses of each group as it has beams.
        """
        num_groups = self._num_groups
        rule = self._config.stop_rule
        history = self._finished
        next_length = self._step + 2  # of an open hypothesis that ends in the next step
        num_wanted = self._config.nbest if num_groups == 1 else self._group_size
        # A group is done when no hypothesis is open, or none can beat the worst one wanted.
        best_open = live.totals.unflatten(1, (num_groups, -1)).amax(2)  # [B, G]
        to_beat = history.scores[:, :, num_wanted - 1]  # [B, G]
        done = best_open == -torch.inf
        # A bonus could raise a score without bound.
        if self._config.unkpen >= 0 and self._config.step_score is None:
            longest = self._lengths(self._constraints.limits + 1)
            done |= self._scorer.bound(best_open, self._lengths(next_length), longest) <= to_beat
        full = history.count >= self._group_size
        # With a single beam, an open hypothesis was not the likeliest: greedy search has ended.
        if rule == "full" or self._group_size == 1:
            done |= full
        elif rule == "ahead":
            scores = self._scores(live.totals, next_length, live.attention)
            done |= full & (scores.unflatten(1, (num_groups, -1)).amax(2) <= to_beat)
        return done.all(1)

    def _take(self, done: np.ndarray, live: Continuations) -> Continuations:
        """Store the sentences that are done [B]. Return the beams that stay in the batch."""
        device = live.tokens.device
        rows = torch.from_numpy(np.flatnonzero(done)).to(device)
        self._finished.take(self._sentences[done], rows)
        self._open &= ~done
        if not self._open.any() or self._open.mean() >= 1 - MOST_DONE:
            return live
        # Drop all sentences that are done, in this step or earlier.
        mask = self._open
        rows = torch.from_numpy(np.flatnonzero(mask)).to(device)
        self._sentences = self._sentences[mask]
        self._open = mask[mask]
        self._is_word = self._is_word.index_select(0, rows)
        if self._uniforms is not None:
            self._uniforms = self._uniforms.index_select(0, rows)
        for state in self._states:
            state.keep(rows)
        self._constraints.keep(rows, mask)
        self._finished.keep(rows)
        return live.keep(rows)

    def _count_live(self, totals: Tensor) -> Tensor | None:
        """Count the open hypotheses. Return the mask of their beams [B, K], None for all beams."""
        if self._config.beam_threshold is None and self._open.all():
            self.num_live = totals.numel()
            return None
        # Find the beams with a hypothesis in open sentences.
        is_open = torch.from_numpy(self._open).to(totals.device)[:, None]  # [B, 1]
        is_live = (totals != -torch.inf) & is_open
        self.num_live = int(is_live.sum())
        return is_live


def best_of_groups(
    scores: StepScores, totals: Tensor, num_groups: int, strength: float
) -> Continuations:
    """Extend each of ``num_groups`` groups of k beams by its 2k best continuations.

    At most k candidates are the end symbol, so at least k can go on. Groups are extended one after
    the other. Each pays ``strength`` for each time that an earlier group chose a token. The penalty
    only steers the choice, and the reported scores are the model's own. The totals of the beams are
    [B, K].

    Reference: Vijayakumar et al. 2018, equation 4 with Hamming diversity. Beams of one group are
    neighbors here. Fairseq interleaves the groups and adds the penalty to the score.
    """
    scores = scores.of_all(*totals.shape)
    log_probs = scores.log_probs_of(totals)
    batch, beam_size, vocab_size = log_probs.shape
    size = beam_size // num_groups
    times = log_probs.new_zeros(batch, vocab_size)  # that earlier groups chose a token
    all_tokens = []
    all_parents = []
    all_totals = []
    for first in range(0, beam_size, size):
        group_probs = log_probs[:, first : first + size]  # [B, k, V]
        group_totals = totals[:, first : first + size]  # [B, k]
        # Choose by scores with the penalty, but report the model's own.
        steered = group_probs
        if first:
            steered = group_probs - strength * times[:, None]
        steered_scores = replace(scores, log_probs=steered)
        _, parents, tokens = steered_scores.best_continuations(group_totals, 2 * size)
        # The best continuations are [B, 2k].
        gains = group_probs.flatten(1).gather(1, parents * vocab_size + tokens)
        all_tokens.append(tokens)
        all_parents.append(parents + first)
        all_totals.append(group_totals.gather(1, parents) + gains)
        times.scatter_add_(1, tokens[:, :size], torch.ones_like(gains[:, :size]))
    # Stack the groups, [B, G, 2k].
    tokens = torch.stack(all_tokens, 1)
    return Continuations(tokens, torch.stack(all_parents, 1), torch.stack(all_totals, 1))


def draw(
    scores: StepScores, totals: Tensor, uniforms: Tensor, topk: int = -1, topp: float = -1.0
) -> Continuations:
    """Draw one token for each beam, by random numbers in [0, 1), [B, K]. The beams never mix.

    Draw from the ``topk`` likeliest tokens, and of these from the fewest whose probabilities,
    renormalized, sum to ``topp`` or more. -1: draw from all. The reported log-probabilities are
    the model's. The cut distribution does not change them.

    Reference: Holtzman et al. 2020, section 3.1 (``topp``), and Fan et al. 2018, section 5.1
    (``topk``).
    """
    log_probs = scores.log_probs_of(totals)
    values = log_probs
    symbols = None
    # Sort the likeliest tokens, and leave out tokens once the likelier ones together reach p.
    count = log_probs.size(2)
    if topk > 0:
        count = min(topk, count)
    if topk > 0 or topp > 0:
        values, symbols = log_probs.topk(count, dim=2)
    # Work with probabilities as multiples of the largest, [B, K, n] float64: with a low
    # temperature or a forced token, all plain probabilities would underflow.
    largest = values.amax(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).min)
    probs = (values.double() - largest).exp()
    if topp > 0:
        below = probs.cumsum(2) - probs  # sum over all likelier tokens
        probs = probs.masked_fill(below >= topp * probs.sum(2, keepdim=True), 0.0)
    # Stay strictly below the sum, so that no draw falls behind the last possible token.
    cumulated = probs.cumsum(2)
    threshold = cumulated[:, :, -1:] * (uniforms[:, :, None] * (1 - 1e-12))
    index = torch.searchsorted(cumulated, threshold, right=True)
    index = index.clamp(max=probs.size(2) - 1)  # [B, K, 1]
    if symbols is not None:
        index = symbols.gather(2, index)
    return Continuations(index, None, totals[:, :, None] + log_probs.gather(2, index))


def draw_uniforms(
    seed: int, sentence_ids: np.ndarray, beam_size: int, num_steps: int
) -> np.ndarray:
    """Return numbers in [0, 1), float64 [B, T, K], from the seed and each sentence's number."""
    shape = (num_steps, beam_size)
    subject = "the draws of --sampling"
    num_bytes = 8 * len(sentence_ids) * num_steps * beam_size
    require_memory(subject, num_bytes, "a smaller --max-len-b, --batch-size or --beam needs less")
    # Seed a generator for each sentence, so that batches do not change the draws.
    return np.stack([np.random.default_rng([seed, int(i)]).random(shape) for i in sentence_ids])

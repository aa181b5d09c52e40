"""Choice of the next tokens: beam search, diverse beam search, forced terms, sampling."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relu_nmt.translation.search.forced_terms import Progress, TermTracker
from relu_nmt.translation.step_decoder import StepScores


@dataclass(frozen=True)
class Candidates:
    """Continuations of each group of beams, best first.

    Plain beam search is one group of K beams; diverse beam search has several smaller ones, and
    sampling K groups of one beam.

    Args:
        totals: log-probability of the hypothesis with the continuation, [B, G, C].
        tokens: the continuation, [B, G, C] int64.
        parents: the beam 0 .. K-1 that it continues, [B, G, C] int64; None if group k is beam k
            alone.
    """

    totals: Tensor
    tokens: Tensor
    parents: Tensor | None

    def within(self, threshold: float) -> "Candidates":
        """Return the candidates within this many nats of the best one of their group.

        Reference: Freitag and Al-Onaizan 2017, "Beam search strategies for neural machine
        translation", section 3, Eq. 1: the relative threshold is exp(-threshold).
        """
        behind = self.totals < self.totals[:, :, :1] - threshold
        return replace(self, totals=self.totals.masked_fill(behind, -torch.inf))


class BeamSelector:
    """Beam search: each group of k beams is extended by its 2k best continuations.

    At most k candidates are the end symbol, so at least k can go on. Groups are extended one after
    the other; each pays for tokens that earlier groups chose. The penalty only steers the choice,
    and the reported scores are the model's own.

    Args:
        num_groups: G, a divisor of the beam size; 1 is plain beam search.
        strength: lambda, subtracted from the log-probability of a token for each time that an
            earlier group chose it at this step.

    Reference: Vijayakumar et al. 2018, equation 4 with Hamming diversity. Beams of one group are
    neighbours here; fairseq interleaves the groups and adds the penalty to the score.
    """

    def __init__(self, num_groups: int = 1, strength: float = 0.0) -> None:
        self.num_groups = num_groups
        self._strength = strength

    def select(self, scores: StepScores, totals: Tensor, step: int) -> Candidates:
        """Return the candidates after the scores of a step, of beams with totals [B, K]."""
        if self.num_groups == 1:
            sums, parents, tokens = scores.best_continuations(totals, 2 * totals.size(1))
            return Candidates(sums[:, None], tokens[:, None], parents[:, None])
        # Extend one group after the other.
        log_probs = scores.of_all(*totals.shape).log_probs.expand(-1, totals.size(1), -1)
        batch, beam_size, vocab_size = log_probs.shape
        size = beam_size // self.num_groups
        groups: list[tuple[Tensor, Tensor, Tensor]] = []
        for first in range(0, beam_size, size):
            own_probs = log_probs[:, first : first + size]  # [B, k, V]
            own_totals = totals[:, first : first + size]  # [B, k]
            # Subtract the penalty for tokens of earlier groups.
            steered = own_probs
            if groups:
                chosen = torch.cat([tokens[:, :size] for _, tokens, _ in groups], dim=1)
                times = log_probs.new_zeros(batch, vocab_size)
                times.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=times.dtype))
                steered = own_probs - self._strength * times[:, None]
            # Choose by the steered scores, but report the model's own.
            steered_scores = replace(scores, log_probs=steered, rows=None)
            _, parents, tokens = steered_scores.best_continuations(own_totals, 2 * size)  # [B, 2k]
            gains = own_probs.flatten(1).gather(1, parents * vocab_size + tokens)
            groups.append((own_totals.gather(1, parents) + gains, tokens, parents + first))
        # Stack the groups, [B, G, 2k].
        columns_of_groups = zip(*groups, strict=True)
        return Candidates(*(torch.stack(column, dim=1) for column in columns_of_groups))

    def keep(self, rows: Tensor) -> None:
        """Keep nothing: beam search has no state."""


class TermSelector(BeamSelector):
    """Beam search that divides the beam among hypotheses by their number of term tokens.

    Candidates are the 2K best continuations. For every hypothesis its best continuation and all
    that continue a term are added. They are ranked among candidates with equally many term tokens.
    The best of each rank are taken in turn, beginning with candidates that miss fewest tokens.

    Args:
        tracker: progress of the hypotheses.
    """

    def __init__(self, tracker: TermTracker) -> None:
        super().__init__()
        self._tracker = tracker

    def select(self, scores: StepScores, totals: Tensor, step: int) -> Candidates:
        """Return the candidates after the scores of a step, of beams with totals [B, K]."""
        log_probs = scores.of_all(*totals.shape).log_probs.expand(-1, totals.size(1), -1)
        found = super().select(scores, totals, step)
        assert found.parents is not None
        for row, beams in enumerate(self._tracker.rows):
            if not beams:
                continue
            # Join plain candidates [2K] and those that continue terms: (parent, token) -> total.
            columns = found.totals[row, 0], found.tokens[row, 0], found.parents[row, 0]
            sums = {
                (parent, token): total
                for total, token, parent in zip(*(c.tolist() for c in columns), strict=True)
            }
            sums |= _further(beams, log_probs[row], totals[row])
            # Write the divided beam back; unused entries are no hypotheses.
            ranked = _shared_out(beams, sums)[: len(columns[0])]
            for column, values in zip(columns, zip(*ranked, strict=True), strict=False):
                column[: len(values)] = torch.tensor(values, dtype=column.dtype)
            columns[0][len(ranked) :] = -torch.inf
        return found


class SamplingSelector:
    """Draws one token for each beam; the beams never mix.

    Args:
        uniforms: random numbers in [0, 1), [B, T, K] float64, that decide the draws.
        topk: draw from the k likeliest tokens; -1 from all.
        topp: draw from the fewest tokens whose probabilities, renormalised after ``topk``, sum to
            p or more; -1 from all.

    Reference: Holtzman et al. 2020, section 3.1 (``topp``); Fan et al. 2018, section 5.1
    (``topk``). The reported log-probabilities are the model's, not those of the cut distribution.
    """

    def __init__(self, uniforms: Tensor, topk: int = -1, topp: float = -1.0) -> None:
        self.num_groups = uniforms.size(2)
        self._uniforms = uniforms
        self._topk = topk
        self._topp = topp

    def select(self, scores: StepScores, totals: Tensor, step: int) -> Candidates:
        """Return one candidate for each beam, after the scores of a step and totals [B, K]."""
        log_probs = scores.of_all(*totals.shape).log_probs.expand(-1, totals.size(1), -1)
        # Draw from the likeliest tokens only, or from all.
        if self._topk > 0 or self._topp > 0:
            tokens = self._draw_from_likeliest(log_probs, step)
        else:
            tokens = self._draw(_relative(log_probs), step)
        totals = totals + log_probs.gather(2, tokens)[:, :, 0]
        return Candidates(totals[:, :, None], tokens, None)

    def _draw_from_likeliest(self, log_probs: Tensor, step: int) -> Tensor:
        vocab_size = log_probs.size(2)
        count = min(self._topk, vocab_size) if self._topk > 0 else vocab_size
        values, tokens = log_probs.topk(count, dim=2)
        probs = _relative(values)
        # Leave out tokens once the likelier ones together reach p.
        if self._topp > 0:
            below = probs.cumsum(2) - probs  # sum over all likelier tokens
            probs = probs.masked_fill(below >= self._topp * probs.sum(2, keepdim=True), 0.0)
        return tokens.gather(2, self._draw(probs, step))

    def _draw(self, probs: Tensor, step: int) -> Tensor:
        """Return indices [B, K, 1], drawn in proportion to probs [B, K, n] float64."""
        cumulated = probs.cumsum(2)
        # Stay strictly below the sum, so that no draw falls behind the last possible token.
        threshold = cumulated[:, :, -1:] * (self._uniforms[:, step, :, None] * (1 - 1e-12))
        index = torch.searchsorted(cumulated, threshold, right=True)
        return index.clamp(max=probs.size(2) - 1)

    def keep(self, rows: Tensor) -> None:
        """Keep only the sentences in these rows [B']."""
        self._uniforms = self._uniforms.index_select(0, rows)


Selector = BeamSelector | SamplingSelector


def draw_uniforms(
    seed: int, sentence_ids: np.ndarray, beam_size: int, num_steps: int
) -> np.ndarray:
    """Return numbers in [0, 1) that depend only on the seed and the number of each sentence.

    Args:
        seed: 0 or more.
        sentence_ids: [B], 0 or more.
        beam_size: K.
        num_steps: T.

    Returns:
        float64 [B, T, K].
    """
    shape = (num_steps, beam_size)
    # Seed a generator for each sentence, so that batches do not change the draws.
    return np.stack([np.random.default_rng([seed, int(i)]).random(shape) for i in sentence_ids])


def _relative(log_probs: Tensor) -> Tensor:
    """Return probabilities [..., n] float64 as multiples of the largest.

    With a low temperature or a forced token, all plain probabilities would underflow.
    """
    largest = log_probs.amax(-1, keepdim=True).clamp_min(torch.finfo(log_probs.dtype).min)
    return (log_probs.double() - largest).exp()


def _further(
    beams: Sequence[Progress], log_probs: Tensor, totals: Tensor
) -> dict[tuple[int, int], float]:
    """Return the sums of each beam's best token and of the next tokens of its terms.

    Args:
        beams: progress of each, [K]; of one beam before the first token.
        log_probs: [K, V].
        totals: [K].
    """
    # Pairs of a beam and its next token.
    best = log_probs.argmax(1).tolist()
    pairs = [
        (beam, token)
        for beam, progress in enumerate(beams)
        for token in dict.fromkeys([best[beam], *progress.after])
    ]
    index = torch.tensor(pairs, device=totals.device)
    sums = totals[index[:, 0]] + log_probs[index[:, 0], index[:, 1]]
    return dict(zip(pairs, sums.tolist(), strict=True))


def _shared_out(
    beams: Sequence[Progress], sums: dict[tuple[int, int], float]
) -> list[tuple[float, int, int]]:
    """Return total, token and parent of the possible candidates, in the order of their rank."""
    # Rank candidates among those that miss equally many tokens of the terms.
    by_missing: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for (parent, token), total in sums.items():
        if total > -torch.inf:
            missing = beams[parent].advance(token).missing
            by_missing[missing].append((total, token, parent))
    ranked = []
    for missing, own in by_missing.items():
        # Sort by total, then by beam and token, so that ties are reproducible.
        own.sort(key=lambda candidate: (-candidate[0], candidate[2], candidate[1]))
        ranked += [(rank, missing, candidate) for rank, candidate in enumerate(own)]
    # Take turns: the best of each rank, candidates that miss fewest tokens first.
    return [candidate for *_, candidate in sorted(ranked, key=lambda entry: entry[:2])]

"""Which continuations of the beams are taken: beam search, diverse beam search, sampling."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relu_nmt.translation.step_decoder import StepScores


@dataclass(frozen=True)
class Candidates:
    """Continuations of each group of beams, best first.

    Plain beam search is one group of K beams; diverse beam search has several smaller ones, and
    sampling K groups of one beam.

    Args:
        totals: log-probability of the hypothesis with the continuation, [B, G, C].
        tokens: the continuation, [B, G, C] int64.
        parents: the beam 0 .. K-1 that it continues, [B, G, C] int64; None if beam k is all that
            group k has.
    """

    totals: Tensor
    tokens: Tensor
    parents: Tensor | None

    def within(self, threshold: float) -> "Candidates":
        """Return them without those more than so many nats behind the best one of their group.

        Reference: Freitag and Al-Onaizan 2017, "Beam search strategies for neural machine
        translation", section 3, Eq. 1: the relative threshold is exp(-threshold).
        """
        behind = self.totals < self.totals[:, :, :1] - threshold
        return replace(self, totals=self.totals.masked_fill(behind, -torch.inf))


class BeamSelector:
    """Beam search: each group of k beams is extended by its 2k best continuations.

    At most k of them are the end symbol, so at least k can be continued. Groups are extended one
    after the other; each pays for tokens that earlier ones chose. The penalty only steers the
    choice: the scores reported are the model's own.

    Args:
        num_groups: G, a divisor of the beam size; 1 is plain beam search.
        strength: lambda, taken from a token's log-probability for each time that an earlier group
            chose it at this step.

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
        log_probs = scores.of_all(*totals.shape).log_probs.expand(-1, totals.size(1), -1)
        batch, beam_size, vocab_size = log_probs.shape
        size = beam_size // self.num_groups
        groups: list[tuple[Tensor, Tensor, Tensor]] = []
        for first in range(0, beam_size, size):
            own_probs = log_probs[:, first : first + size]  # [B, k, V]
            own_totals = totals[:, first : first + size]  # [B, k]
            steered = own_probs
            if groups:
                chosen = torch.cat([tokens[:, :size] for _, tokens, _ in groups], dim=1)
                times = log_probs.new_zeros(batch, vocab_size)
                times.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=times.dtype))
                steered = own_probs - self._strength * times[:, None]
            steered_scores = replace(scores, log_probs=steered, rows=None)
            _, parents, tokens = steered_scores.best_continuations(own_totals, 2 * size)  # [B, 2k]
            gains = own_probs.flatten(1).gather(1, parents * vocab_size + tokens)
            groups.append((own_totals.gather(1, parents) + gains, tokens, parents + first))
        columns_of_groups = zip(*groups, strict=True)
        return Candidates(*(torch.stack(column, dim=1) for column in columns_of_groups))

    def keep(self, rows: Tensor) -> None:
        """Nothing to forget."""


class SamplingSelector:
    """Draws one token for each beam; the beams never mix.

    Args:
        uniforms: numbers in [0, 1), [B, T, K] float64, that decide the draws.
        topk: draw from the k likeliest tokens; -1 from all.
        topp: draw from the fewest tokens whose probabilities sum to p or more (of what ``topk``
            leaves, renormalised); -1 from all.

    Reference: Holtzman et al. 2020, section 3.1 (``topp``); Fan et al. 2018, section 5.1
    (``topk``). The log-probabilities reported are the model's, not those of the cut distribution.
    """

    def __init__(self, uniforms: Tensor, topk: int = -1, topp: float = -1.0) -> None:
        self.num_groups = uniforms.size(2)
        self._uniforms = uniforms
        self._topk = topk
        self._topp = topp

    def select(self, scores: StepScores, totals: Tensor, step: int) -> Candidates:
        """Return one candidate for each beam, after the scores of a step and totals [B, K]."""
        log_probs = scores.of_all(*totals.shape).log_probs.expand(-1, totals.size(1), -1)
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
        if self._topp > 0:
            below = probs.cumsum(2) - probs  # the sum of all that are likelier
            probs = probs.masked_fill(below >= self._topp * probs.sum(2, keepdim=True), 0.0)
        return tokens.gather(2, self._draw(probs, step))

    def _draw(self, probs: Tensor, step: int) -> Tensor:
        """Return indices [B, K, 1] drawn from probs [B, K, n] float64, which need not sum to 1."""
        cumulated = probs.cumsum(2)
        # Strictly below the sum, so that no draw falls behind the last possible token.
        threshold = cumulated[:, :, -1:] * (self._uniforms[:, step, :, None] * (1 - 1e-12))
        index = torch.searchsorted(cumulated, threshold, right=True)
        return index.clamp(max=probs.size(2) - 1)

    def keep(self, rows: Tensor) -> None:
        """Forget all sentences but these rows [B']."""
        self._uniforms = self._uniforms.index_select(0, rows)


Selector = BeamSelector | SamplingSelector


def draw_uniforms(
    seed: int, sentence_ids: np.ndarray, beam_size: int, num_steps: int
) -> np.ndarray:
    """Return numbers in [0, 1) that depend on nothing but the seed and each sentence's number.

    Args:
        seed: 0 or more.
        sentence_ids: [B], 0 or more.
        beam_size: K.
        num_steps: T.

    Returns:
        float64 [B, T, K].
    """
    shape = (num_steps, beam_size)
    return np.stack([np.random.default_rng([seed, int(i)]).random(shape) for i in sentence_ids])


def _relative(log_probs: Tensor) -> Tensor:
    """Return probabilities [..., n] float64 as multiples of the largest.

    A low temperature, or a token that is forced, leaves log-probabilities of which all underflow.
    """
    largest = log_probs.amax(-1, keepdim=True).clamp_min(torch.finfo(log_probs.dtype).min)
    return (log_probs.double() - largest).exp()

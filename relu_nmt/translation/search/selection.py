"""Candidates that continue hypotheses, and the choice among them by groups of beams or by draws."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relu_nmt.io.memory import require_memory
from relu_nmt.translation.base import NextTokenScores


class Candidates(NamedTuple):
    """Continuations of hypotheses, from which the beams are chosen, best first in each group."""

    tokens: Tensor  # the newest token, int64 [B, G, C]
    parents: Tensor  # the beam 0 .. K-1 that each continues, int64 [B, G, C]
    totals: Tensor  # log-probability with that token, [B, G, C]. -inf: no hypothesis


class Beams(NamedTuple):
    """The hypotheses that go on, with their newest token."""

    tokens: Tensor  # the newest token, int64 [B, K]
    parents: Tensor  # the beam 0 .. K-1 that each continues, int64 [B, K]
    totals: Tensor  # log-probability, [B, K]. -inf: no hypothesis
    # Sum of the attention of all tokens, [B, K, S], if the scorer needs it.
    attention: Tensor | None = None

    def keep(self, rows: Tensor) -> "Beams":
        """Return the hypotheses of the sentences in these rows [B']."""
        attention = self.attention
        if attention is not None:
            attention = attention.index_select(0, rows)
        tokens, parents, totals = (column.index_select(0, rows) for column in self[:3])
        return Beams(tokens, parents, totals, attention)


def best_of_groups(
    scores: NextTokenScores, totals: Tensor, num_groups: int, strength: float
) -> Candidates:
    """Extend each of ``num_groups`` groups of k beams by its 2k best continuations.

    At most k candidates are the end symbol, so at least k can go on. Groups are extended one after
    the other. A group pays ``strength`` for a token each time that an earlier group chose it. The
    penalty only steers the choice, and the reported scores are the model's. The totals of the beams
    are [B, K].

    Reference: Vijayakumar et al. 2018, equation 4 with Hamming diversity. Beams of one group are
    neighbors here. Fairseq interleaves the groups and adds the penalty to the score.
    """
    scores = scores.of_all_beams()
    log_probs = scores.log_probs
    batch, beam_size, vocab_size = log_probs.shape
    size = beam_size // num_groups
    times = log_probs.new_zeros(batch, vocab_size)  # choices by earlier groups
    all_tokens = []
    all_parents = []
    all_totals = []
    for first in range(0, beam_size, size):
        group_probs = log_probs[:, first : first + size]  # [B, k, V]
        group_totals = totals[:, first : first + size]  # [B, k]
        # Choose by scores with the penalty, but report the model's scores.
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
    return Candidates(tokens, torch.stack(all_parents, 1), torch.stack(all_totals, 1))


def draw(
    scores: NextTokenScores, totals: Tensor, uniforms: Tensor, topk: int = -1, topp: float = -1.0
) -> Candidates:
    """Draw one token for each beam, by random numbers in [0, 1), [B, K]. The beams never mix.

    Draw from the ``topk`` likeliest tokens, and of these from the fewest whose probabilities,
    renormalized, sum to ``topp`` or more. -1: draw from all. The reported log-probabilities are
    the model's. The cut distribution does not change them.

    Reference: Holtzman et al. 2020, section 3.1 (``topp``), and Fan et al. 2018, section 5.1
    (``topk``).
    """
    log_probs = scores.of_all_beams().log_probs
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
    beams = torch.arange(log_probs.size(1), device=index.device)[:, None]
    new_totals = totals[:, :, None] + log_probs.gather(2, index)
    return Candidates(index, beams.expand_as(index), new_totals)


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

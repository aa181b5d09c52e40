"""Which continuations of the beams are taken: beam search, diverse beam search, sampling."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relu_nmt import native

BLOCK = 64
"""Columns of the vocabulary whose maximum is taken first; 32 to 64 were fastest on the CPU."""


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

    def takes_rows(self, log_probs: Tensor) -> bool:
        """Whether such log-probabilities of some hypotheses will do; see :meth:`select`."""
        return self.num_groups == 1 and _has_kernel(log_probs)

    def select(
        self, log_probs: Tensor, totals: Tensor, step: int, picked: Tensor | None = None
    ) -> Candidates:
        """Return the candidates after log_probs [B, K, V] of beams with totals [B, K].

        Where the selector :meth:`takes_rows` these may be [1, N', V] of picked beams, whose places
        among all B K are int64 [N']; of the others there are none.
        """
        if self.num_groups == 1:
            sums, parents, tokens = top_continuations(log_probs, totals, 2 * totals.size(1), picked)
            return Candidates(sums[:, None], tokens[:, None], parents[:, None])
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
            _, parents, tokens = top_continuations(steered, own_totals, 2 * size)  # [B, 2k]
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

    def takes_rows(self, log_probs: Tensor) -> bool:
        """It needs those of all."""
        return False

    def select(
        self, log_probs: Tensor, totals: Tensor, step: int, picked: Tensor | None = None
    ) -> Candidates:
        """Return one candidate for each beam of log_probs [B, K, V] with totals [B, K]."""
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


def top_continuations(
    log_probs: Tensor, totals: Tensor, count: int, picked: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best sums of a beam's total and a token's log-probability.

    Args:
        log_probs: [B, K, V]; with the native kernel perhaps [1, N', V] of picked beams.
        totals: [B, K].
        count: how many, C; all K * V if there are fewer.
        picked: their places among all B K, int64 [N'].

    Returns:
        sums [B, C], best first, their beams and their tokens, int64 [B, C].
    """
    count = min(count, totals.size(1) * log_probs.size(2))
    if _has_kernel(log_probs):
        return _native_top(log_probs, totals, count, picked)
    assert picked is None, "only the kernel knows what to do with some beams"
    sums, columns = _blockwise_top(log_probs, totals, count)
    vocab_size = log_probs.size(2)
    return sums, columns // vocab_size, columns % vocab_size


def _has_kernel(log_probs: Tensor) -> bool:
    return log_probs.is_cpu and log_probs.dtype == torch.float32 and native.is_wanted()


def _native_top(
    log_probs: Tensor, totals: Tensor, count: int, picked: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Do what :func:`top_continuations` says, by the kernel.

    Where there are too few, places with a total of -inf have the first beam and symbol, which is
    never allowed.
    """
    log_probs, totals = log_probs.contiguous(), totals.float().contiguous()
    (batch, beam_size), vocab_size = totals.shape, log_probs.size(2)
    sums = totals.new_empty(batch, count)
    tokens, parents = (torch.empty(sums.shape, dtype=torch.int64) for _ in range(2))
    sizes = (log_probs.size(0) * log_probs.size(1), batch, beam_size, vocab_size, count)
    native.call(
        "best_continuations", (log_probs, picked, totals, sums, tokens, parents), sizes, 1.0
    )
    return sums, parents, tokens


def _blockwise_top(log_probs: Tensor, totals: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the best sums [B, C], best first, and beam * V + token [B, C].

    A top-k over all K * V sums is slow on the CPU. The best ``count`` tokens are in the ``count``
    blocks of columns with the highest maxima, so only these blocks are searched.
    """
    beam_size, vocab_size = log_probs.shape[1:]
    num_blocks = -(-vocab_size // BLOCK)
    if num_blocks <= 4 or num_blocks * beam_size <= count:
        return (log_probs + totals[:, :, None]).flatten(1).topk(count, dim=1)
    whole = vocab_size // BLOCK
    maxima = log_probs[:, :, : whole * BLOCK].unflatten(2, (whole, BLOCK)).amax(3)
    if whole < num_blocks:
        rest = log_probs[:, :, whole * BLOCK :].amax(2, keepdim=True)
        maxima = torch.cat([maxima, rest], dim=2)
    blocks = (maxima + totals[:, :, None]).flatten(1).topk(count, dim=1, sorted=False).indices
    beams = (blocks // num_blocks)[:, :, None]  # [B, C, 1]
    tokens = (blocks % num_blocks * BLOCK)[:, :, None] + torch.arange(
        BLOCK, device=log_probs.device
    )  # [B, C, BLOCK]
    inside = tokens < vocab_size
    columns = (beams * vocab_size + tokens.clamp(max=vocab_size - 1)).flatten(1)
    sums = log_probs.flatten(1).gather(1, columns) + totals.gather(
        1, beams.expand_as(tokens).flatten(1)
    )
    best, index = sums.masked_fill_(~inside.flatten(1), -torch.inf).topk(count, dim=1)
    return best, columns.gather(1, index)


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

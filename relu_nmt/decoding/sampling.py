"""Sampling: K independent draws from the model, or from its likeliest tokens."""

import numpy as np
import torch
from torch import Tensor

from relu_nmt.decoding.candidates import Candidates


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

    def select(self, log_probs: Tensor, totals: Tensor, step: int) -> Candidates:
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


def _relative(log_probs: Tensor) -> Tensor:
    """Return probabilities [..., n] float64 as multiples of the largest.

    A low temperature, or a token that is forced, leaves log-probabilities of which all underflow.
    """
    largest = log_probs.amax(-1, keepdim=True).clamp_min(torch.finfo(log_probs.dtype).min)
    return (log_probs.double() - largest).exp()

"""The best continuations of the beams of each sentence."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

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


class Selector(Protocol):
    """A way of choosing continuations: beam search, diverse beam search, sampling.

    Args:
        num_groups: G; the K beams are divided evenly.
    """

    num_groups: int

    def select(self, log_probs: Tensor, totals: Tensor, step: int) -> Candidates:
        """Return the candidates after log_probs [B, K, V] of beams with totals [B, K]."""

    def keep(self, rows: Tensor) -> None:
        """Forget all sentences but these rows [B']."""


class BeamSelector:
    """Plain beam search: the 2K best continuations of a sentence.

    At most K of them are the end symbol, so at least K can be continued.
    """

    num_groups = 1

    def select(self, log_probs: Tensor, totals: Tensor, step: int) -> Candidates:
        """Return the candidates after log_probs [B, K, V] of beams with totals [B, K]."""
        beam_size, vocab_size = log_probs.shape[1:]
        best, columns = top_continuations(log_probs, totals, 2 * beam_size)
        parents = columns // vocab_size
        return Candidates(best[:, None], (columns % vocab_size)[:, None], parents[:, None])

    def keep(self, rows: Tensor) -> None:
        """Nothing to forget."""


def top_continuations(log_probs: Tensor, totals: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the best sums of a beam's total and a token's log-probability.

    A top-k over all K * V sums is slow on the CPU. The best ``count`` tokens are in the ``count``
    blocks of columns with the highest maxima, so only these blocks are searched.

    Args:
        log_probs: [B, K, V].
        totals: [B, K].
        count: how many, C; all K * V if there are fewer.

    Returns:
        sums [B, C], best first, and beam * V + token [B, C].
    """
    beam_size, vocab_size = log_probs.shape[1:]
    count = min(count, beam_size * vocab_size)
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

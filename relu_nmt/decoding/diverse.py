"""Diverse beam search: groups of beams that avoid each other's tokens."""

import torch
from torch import Tensor

from relu_nmt.decoding.candidates import Candidates, top_continuations


class DiverseSelector:
    """Groups are extended one after the other; each pays for tokens that earlier ones chose.

    The penalty only steers the choice: the scores reported are the model's own.

    Args:
        num_groups: G, a divisor of the beam size.
        strength: lambda, taken from a token's log-probability for each time that an earlier group
            chose it at this step.

    Reference: Vijayakumar et al. 2018, equation 4 with Hamming diversity. Beams of one group are
    neighbours here; fairseq interleaves the groups and adds the penalty to the score.
    """

    def __init__(self, num_groups: int, strength: float) -> None:
        self.num_groups = num_groups
        self._strength = strength

    def select(self, log_probs: Tensor, totals: Tensor, step: int) -> Candidates:
        """Return the candidates after log_probs [B, K, V] of beams with totals [B, K]."""
        batch, beam_size, vocab_size = log_probs.shape
        size = beam_size // self.num_groups
        chosen_before = torch.zeros(batch, vocab_size, device=log_probs.device)
        groups = []
        for first in range(0, beam_size, size):
            own_probs = log_probs[:, first : first + size]  # [B, k, V]
            own_totals = totals[:, first : first + size]  # [B, k]
            steered = own_probs - self._strength * chosen_before[:, None]
            _, columns = top_continuations(steered, own_totals, 2 * size)  # [B, 2k]
            parents, tokens = columns // vocab_size, columns % vocab_size
            gains = own_probs.flatten(1).gather(1, columns)
            groups.append((own_totals.gather(1, parents) + gains, tokens, parents + first))
            picked = tokens[:, :size]
            chosen_before.scatter_add_(1, picked, torch.ones_like(picked, dtype=torch.float))
        columns_of_groups = zip(*groups, strict=True)
        new_totals, new_tokens, new_parents = (torch.stack(c, dim=1) for c in columns_of_groups)
        return Candidates(new_totals, new_tokens, new_parents)

    def keep(self, rows: Tensor) -> None:
        """Nothing to forget."""

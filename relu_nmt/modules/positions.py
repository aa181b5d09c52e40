"""Where a token stands in its sequence, as a vector."""

import math

import torch
from torch import Tensor, nn

from relu_nmt.errors import DataError


class SinusoidalPositions(nn.Module):
    """Fixed sine and cosine waves; the table grows on demand, so no length is refused.

    Args:
        embed_dim: D; the first half holds sines, the second cosines.

    Reference: Vaswani et al. 2017, section 3.5 (halves instead of alternating columns, which
    differs by a fixed permutation of the channels).
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.register_buffer("table", self._waves(256), persistent=False)

    def forward(self, num_positions: int, start: int = 0) -> Tensor:
        """Return the vectors of positions start .. start + num_positions - 1, [N, D]."""
        end = start + num_positions
        if end > self.table.size(0):
            self.table = self._waves(2 * end).to(self.table.device)
        return self.table[start:end]

    def _waves(self, num_positions: int) -> Tensor:
        half = (self.embed_dim + 1) // 2
        rates = torch.exp(torch.arange(half) * (-math.log(10000.0) / max(half - 1, 1)))
        angles = torch.arange(num_positions)[:, None] * rates[None, :]
        return torch.cat([angles.sin(), angles.cos()], dim=1)[:, : self.embed_dim]


class LearnedPositions(nn.Module):
    """One learned vector a position, up to a fixed number of positions.

    Args:
        embed_dim: D.
        max_positions: the longest sequence.
        flag: the command-line flag that sets it, for the error message.
    """

    def __init__(self, embed_dim: int, max_positions: int, flag: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, embed_dim))
        self.flag = flag
        nn.init.normal_(self.weight, std=embed_dim**-0.5)

    def forward(self, num_positions: int, start: int = 0) -> Tensor:
        """Return the vectors of positions start .. start + num_positions - 1, [N, D].

        Raises:
            DataError: the sequence is longer than the table.
        """
        end = start + num_positions
        if end > self.weight.size(0):
            raise DataError(
                f"a sequence of {end} tokens does not fit {self.flag} {self.weight.size(0)} with "
                "learned positions; raise it or train with sinusoidal positions"
            )
        return self.weight[start:end]

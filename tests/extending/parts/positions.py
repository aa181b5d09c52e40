"""A position scheme of one's own: scores fall with the logarithm of the distance."""

import torch
from torch import Tensor, nn

from relu_nmt.modules import position_schemes
from relu_nmt.modules.positions import DistanceBias, PositionConfig


@position_schemes.register("logarithmic")
class LogarithmicPositions(DistanceBias):
    """b = -r log(1 + r |i - j|) with r > 0 learned for each head.

    Reference: Chi et al. 2022, "KERPLE", Eq. 9, with both of its factors equal.
    """

    def __init__(self, config: PositionConfig) -> None:
        super().__init__(config)
        self.log_rate = nn.Parameter(torch.zeros(config.num_heads))

    def of_offsets(self, offsets: Tensor) -> Tensor:
        """Return the bias [H, R] of offsets [R]."""
        rate = self.log_rate.exp()[:, None]
        return -rate * torch.log1p(rate * offsets.abs())

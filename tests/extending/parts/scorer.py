"""A scorer of one's own: the log-probability plus a reward for each token of the output."""

import torch
from torch import Tensor

from relu_nmt.config import option, settings
from relu_nmt.translation.search import scorers
from relu_nmt.translation.search.scoring import Outputs, Scorer


@scorers.register("reward")
class WordReward(Scorer):
    """s + reward * T for T tokens with log-probability s.

    Reference: He et al. 2016, "Improved neural machine translation with SMT features".
    """

    @settings(flags=False)
    class Config:
        """Options of the scorer."""

        reward: float = option(0.5, "nats for each token")

    def score(self, outputs: Outputs) -> Tensor:
        """Return the scores [B, M]."""
        lengths = torch.from_numpy(outputs.lengths).to(outputs.totals)
        return outputs.totals + self.config.reward * lengths[:, None]

"""ReLUFormer attention: rectified scores, scaled by the number of visible keys."""

import torch
from torch import Tensor, nn

from relu_nmt.attention import attentions, row_moments
from relu_nmt.attention.base import AttentionConfig
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise import PointwiseAttention, rectified_power
from relu_nmt.config import option, settings

MEAN_SQUARES = {1: 1 / 2, 2: 3 / 2}
"""E ReLU(z)^2p of a standard normal z, by the power p."""


@attentions.register("reluformer")
class ReLUFormerAttention(PointwiseAttention):
    """s_ij = ReLU(q_i k_j / sqrt(d)) / (gamma sqrt(n_i / 2)), output sum_j s_ij v_j.

    n_i is the number of keys that query i may see: the real keys of the sentence, i + 1 at
    causal position i, the number of cached keys in step-by-step decoding. For independent
    standard normal scores and values the output then has variance 1 / gamma^2 at every length
    (Theorem 4.1). A row may be all zeros. Its output is 0.

    Two options are not in the paper. docs/lab/study.md compares them:

    - ``centered``: the score is q_i (k_j - c_i) / sqrt(d), where c_i is the mean of the keys that
      query i may see. A bias is added afterwards. Raising all scores of a row by a constant then
      changes no weight, as in softmax, and no row that sees two different keys is null.
    - ``power`` 2: the weights are ReLU(z_ij)^2 / (gamma sqrt(3 n_i / 2)), by the same theorem, as
      E ReLU(z)^4 = 3 / 2. They single out one of many keys better than linear ones, though less
      than softmax.

    Reference: Shen et al. 2023, "A Study on ReLU and Softmax in Transformer" (ReLUFormer), Eq. 5-6.

    Example:
        >>> from relu_nmt.attention.masks import Visibility
        >>> config = ReLUFormerAttention.Config()
        >>> attend = ReLUFormerAttention(config, num_heads=1, head_dim=1, dropout=0.0)
        >>> one = torch.ones(1, 1, 2, 1)
        >>> attend(one, one, one, Visibility(2, 2)).values.flatten().tolist()
        [2.0, 2.0]
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention reluformer:gamma=8``."""

        gamma: float = option(1.0, "divisor of the weights (the paper gives no value)", above=0)
        learnable: bool = option(False, "learn one gamma per layer, starting from the given one")
        centered: bool = option(False, "subtract from each score the mean of its row")
        power: int = option(1, "exponent of the rectified scores", choices=(1, 2))

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout, rectified_power(config.power))
        self.shift_channels = int(config.centered)
        self.log_gamma_change = None
        if config.learnable:  # the logarithm keeps gamma positive
            self.log_gamma_change = nn.Parameter(torch.zeros(1))

    def shifted_inputs(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Return queries and keys. If ``centered``, the shifts are the means of the scores."""
        return row_moments.centered(q, k, visibility) if self.config.centered else (q, k)

    def row_scale(self, counts: Tensor) -> Tensor:
        """Return c(n) = 1 / (gamma sqrt(n E ReLU(z)^2p)): outputs get the variance 1 / gamma^2."""
        variance = counts * MEAN_SQUARES[self.config.power]  # of sum_j ReLU(z_ij)^p v_j
        return variance.rsqrt() / self.config.gamma

    def gain(self) -> Tensor | None:
        """Return the given gamma over the learned one, [1]. None if gamma is not learned."""
        return None if self.log_gamma_change is None else (-self.log_gamma_change).exp()

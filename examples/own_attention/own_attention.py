"""An attention of one's own, registered from outside the package: ReLU of cosine similarities."""

import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import AttentionConfig
from relu_nmt.attention.pointwise import PointwiseAttention, pointwise_maps
from relu_nmt.config import option, settings


@settings(flags=False)
class CosineReLUConfig(AttentionConfig):
    """Settings of :class:`CosineReLUAttention`: the options after the colon."""

    gamma: float = option(1.0, "divisor of the weights", above=0)


@attentions.register("cosine_relu")
class CosineReLUAttention(PointwiseAttention):
    """s_ij = ReLU(sqrt(d) cos(q_i, k_j)) / (gamma sqrt(n_i / 2)), output sum_j s_ij v_j.

    Like ReLUFormer's attention, but no score exceeds sqrt(d), even for large queries and keys.
    """

    Config = CosineReLUConfig

    def __init__(
        self, config: CosineReLUConfig, num_heads: int, head_dim: int, dropout: float
    ) -> None:
        super().__init__(config, num_heads, head_dim, dropout, pointwise_maps.get("relu"))

    def map_queries(self, q: Tensor) -> Tensor:
        """Give each query [B, H, Nq, d] the length sqrt(d)."""
        return F.rms_norm(q, (self.head_dim,))

    def map_keys(self, k: Tensor) -> Tensor:
        """Give each key [B, H, Nk, d] the length sqrt(d)."""
        return F.rms_norm(k, (self.head_dim,))

    def row_scale(self, counts: Tensor) -> Tensor:
        """Return the factor of each row from ``counts``, its number of visible keys."""
        return (counts / 2).rsqrt() / self.config.gamma

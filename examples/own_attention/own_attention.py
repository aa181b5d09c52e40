"""An attention of one's own, registered from outside the package: ReLU of cosine similarities."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import AttentionConfig
from relu_nmt.attention.pointwise import PointwiseAttention
from relu_nmt.attention.pointwise_maps import pointwise_maps
from relu_nmt.config import option
from relu_nmt.errors import ConfigError


@dataclass(frozen=True)
class CosineReLUConfig(AttentionConfig):
    """Settings of :class:`CosineReLUAttention`; each is an option after the colon."""

    gamma: float = option(1.0, "divisor of the weights")

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise ConfigError(f"gamma={self.gamma}: expected a positive number")


@attentions.register("cosine_relu")
class CosineReLUAttention(PointwiseAttention):
    """s_ij = ReLU(sqrt(d) cos(q_i, k_j)) / (gamma sqrt(n_i / 2)), output sum_j s_ij v_j.

    As ReLUFormer's attention, but no score exceeds sqrt(d), however large queries and keys grow.
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
        """Return the factor of each row; ``counts`` says how many keys it sees."""
        return (counts / 2).rsqrt() / self.config.gamma

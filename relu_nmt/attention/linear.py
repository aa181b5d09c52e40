"""Linear attention with the feature map ELU + 1."""

import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.kernel_features import FeatureAttention
from relu_nmt.attention.masks import Visibility

EPSILON = 1e-6


@attentions.register("linear")
class LinearAttention(FeatureAttention):
    """out_i = f(q_i) sum_j f(k_j)^T v_j / (f(q_i) sum_j f(k_j) + 1e-6), f(x) = elu(x) + 1.

    Queries are not scaled by d^(-1/2).

    Reference: Katharopoulos et al. 2020, "Transformers are RNNs", Eq. 7 (map), 5 and 9 (causal);
    the 1e-6 comes from the public code.
    """

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """See :meth:`FeatureAttention.features`."""
        return F.elu(q) + 1, F.elu(k) + 1

    def divisor(self, totals: Tensor) -> Tensor:
        """Return the sums plus 1e-6."""
        return totals + EPSILON

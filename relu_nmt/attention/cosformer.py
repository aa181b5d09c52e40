"""cosFormer: rectified linear attention, re-weighted by the cosine of the distance."""

import math

import torch
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import AttentionConfig, Capabilities
from relu_nmt.attention.kernel_features import FeatureAttention
from relu_nmt.attention.masks import Visibility
from relu_nmt.config import option, settings
from relu_nmt.errors import ConfigError

SMALLEST_SUM = 1e-6


@settings(flags=False)
class CosFormerConfig(AttentionConfig):
    """Settings of :class:`CosFormerAttention`."""

    reweight: bool = option(True, "multiply by the cosine of the distance")
    horizon: int = option(
        1024, "M in causal use, where the length is not known: most tokens", least=1
    )


@attentions.register("cosformer")
class CosFormerAttention(FeatureAttention):
    """w_ij = relu(q_i) relu(k_j) cos(pi (i - j) / (2 M)), divided by max(sum_j w_ij, 1e-6).

    As cos(a - b) = cos a cos b + sin a sin b, the weights are products of 2 d features. M is the
    sentence's own length, so that padding does not matter; in causal use, where later tokens must
    not change earlier weights, it is the fixed ``horizon``. Positions count the real tokens; with
    fewer queries than keys the queries are the last ones, as in step-by-step decoding. A query or
    key without positive channels gives output 0.

    Reference: Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention", Eq. 9-12. Deviation:
    the paper's code takes M = max(Nq, Nk) of the padded batch, in causal use too.

    Example:
        >>> attend = CosFormerAttention(CosFormerConfig(), num_heads=1, head_dim=1, dropout=0.0)
        >>> one, v = torch.ones(1, 1, 2, 1), torch.tensor([[[[0.0], [1.0]]]])
        >>> round(attend(one, one, v, Visibility(2, 2)).values[0, 0, 1, 0].item(), 4)
        0.5858
    """

    Config = CosFormerConfig
    capabilities = Capabilities(
        cross=False,
        permutation_invariant=False,
        reason="its weights depend on the distance between query and key in one sequence",
    )

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """See :meth:`FeatureAttention.features`.

        Raises:
            ConfigError: more tokens than ``horizon`` in causal use.
        """
        q, k = q.relu(), k.relu()
        if not self.config.reweight:
            return q, k
        if visibility.causal:
            if visibility.longest > self.config.horizon:
                raise ConfigError(
                    f"cosformer: {visibility.longest} tokens, but its causal form was made for "
                    f"horizon={self.config.horizon}; train with the attention option "
                    f"horizon={visibility.longest} or more"
                )
            longest = torch.full((1, 1), self.config.horizon, device=q.device)
        else:
            longest = visibility.positive_counts[:, 0].to(q)  # [B or 1, 1]
        return (
            _turned(q, visibility.query_positions().to(q) / longest),
            _turned(k, visibility.key_positions().to(q) / longest),
        )

    def most_keys(self, causal: bool) -> int | None:
        """Return ``horizon`` in causal use."""
        return self.config.horizon if causal and self.config.reweight else None

    def divisor(self, totals: Tensor) -> Tensor:
        """Return the sums, at least 1e-6."""
        return totals.clamp_min(SMALLEST_SUM)


def _turned(x: Tensor, places: Tensor) -> Tensor:
    """Return x cos a and x sin a side by side, [B, H, N, 2 d], a = pi / 2 times the places."""
    angles = (places * (math.pi / 2))[:, None, :, None]
    return torch.cat([x * angles.cos(), x * angles.sin()], -1)

"""cosFormer: rectified linear attention, re-weighted by the cosine of the distance."""

import math

import torch
import torch.nn.functional as F
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
    grid: bool = option(
        False,
        "distances of an image's patches, by rows and by columns: a cosine of each",
        needs="reweight",
    )
    horizon: int = option(
        1024,
        "M in causal use, where the length is not known: most tokens",
        least=1,
        needs=["reweight", ("grid", False)],
    )


@attentions.register("cosformer")
class CosFormerAttention(FeatureAttention):
    """w_ij = relu(q_i) relu(k_j) cos(pi (i - j) / (2 M)), divided by max(sum_j w_ij, 1e-6).

    As cos(a - b) = cos a cos b + sin a sin b, the weights are products of 2 d features. M is the
    sentence's own length, so that padding does not matter; in causal use, where later tokens must
    not change earlier weights, it is the fixed ``horizon``. Positions count the real tokens; with
    fewer queries than keys the queries are the last ones, as in step-by-step decoding. A query or
    key without positive channels gives output 0.

    With ``grid``, for the patches of images, the cosine is cos(pi (y_i - y_j) / (2 R))
    cos(pi (x_i - x_j) / (2 C)) on R rows and C columns, so that there are 4 d features. A class
    token stands in the middle of the image, so that it is equally near to opposite patches.

    Reference: Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention", Eq. 9-12. Deviation:
    the paper's code takes M = max(Nq, Nk) of the padded batch, in causal use too. The form for
    images: Koohpayegani and Pirsiavash 2024, "SimA", appendix A.4; it does not say where the class
    token stands.

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
            ConfigError: more tokens than ``horizon`` in causal use, or no patches with ``grid``.
        """
        q, k = q.relu(), k.relu()
        if not self.config.reweight:
            return q, k
        if self.config.grid:
            for places in _grid_places(visibility, q):
                q, k = _turned(q, places), _turned(k, places)
            return q, k
        if visibility.causal:
            if visibility.longest > self.config.horizon:
                raise ConfigError(
                    f"cosformer: {visibility.longest} tokens, but its causal form was made for "
                    f"horizon={self.config.horizon}; train with the attention option "
                    f"horizon={visibility.longest} or more"
                )
            return (
                _turned(q, visibility.query_positions().to(q) / self.config.horizon),
                _turned(k, visibility.key_positions().to(q) / self.config.horizon),
            )
        # No place is beyond the last one, where cosines, and so sums, would be negative.
        places = visibility.places().to(q) / visibility.positive_counts[:, 0].to(q)
        return _turned(q, places), _turned(k, places)

    def most_keys(self, causal: bool) -> int | None:
        """Return ``horizon`` in causal use."""
        has_horizon = causal and self.config.reweight and not self.config.grid
        return self.config.horizon if has_horizon else None

    def divisor(self, totals: Tensor) -> Tensor:
        """Return the sums, at least 1e-6."""
        return totals.clamp_min(SMALLEST_SUM)


def _grid_places(visibility: Visibility, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row of each token over the number of rows, and the same of columns, [1, N] each.

    Args:
        visibility: has the grid of the patches.
        like: gives dtype and device.

    Raises:
        ConfigError: the tokens are no patches.
    """
    if visibility.grid is None:
        raise ConfigError("cosformer: grid=true is for the patches of images; leave it out")
    rows, columns = visibility.grid
    others = visibility.num_keys - rows * columns
    patches = torch.arange(rows * columns, device=like.device)
    places = []
    for numbers, size in ((patches // columns, rows), (patches % columns, columns)):
        middle = (size - 1) / 2
        places.append(F.pad(numbers.to(like.dtype), (others, 0), value=middle)[None] / size)
    return places[0], places[1]


def _turned(x: Tensor, places: Tensor) -> Tensor:
    """Return x cos a and x sin a side by side, [B, H, N, 2 d], a = pi / 2 times the places."""
    angles = (places * (math.pi / 2))[:, None, :, None]
    return torch.cat([x * angles.cos(), x * angles.sin()], -1)

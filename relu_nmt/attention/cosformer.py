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


@attentions.register("cosformer")
class CosFormerAttention(FeatureAttention):
    """w_ij = relu(q_i) relu(k_j) cos(pi (i - j) / (2 M)), divided by max(sum_j w_ij, 1e-6).

    As cos(a - b) = cos a cos b + sin a sin b, the weights are products of 2 d features. M is the
    sentence's own length without padding. In causal use it is the fixed ``horizon``, as later
    tokens must not change earlier weights. Positions count the real tokens; fewer queries than keys
    are the last ones, as in step-by-step decoding. A query or key without positive channels gives
    output 0.

    With ``grid``, for the patches of images, the cosine is cos(pi (y_i - y_j) / (2 R))
    cos(pi (x_i - x_j) / (2 C)) on R rows and C columns, by 4 d features. A class token stands in
    the middle of the image, equally near to opposite patches.

    Reference: Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention", Eq. 9-12. Deviation:
    the paper's code takes M = max(Nq, Nk) of the padded batch, in causal use too. The form for
    images: Koohpayegani and Pirsiavash 2024, "SimA", appendix A.4; the place of the class token is
    ours.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options behind the colon."""

        reweight: bool = option(True, "multiply by the cosine of the distance")
        grid: bool = option(
            False,
            "distances by rows and columns of an image's patches, a cosine of each",
            needs="reweight",
        )
        horizon: int = option(
            1024,
            "M in causal use, where the length is not known: most tokens",
            least=1,
            needs=["reweight", ("grid", False)],
        )

    capabilities = Capabilities(
        cross=False,
        permutation_invariant=False,
        reason="its weights depend on the distance between query and key in one sequence",
    )

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Return the features; a ConfigError beyond ``horizon`` tokens, or without patches."""
        q, k = q.relu(), k.relu()
        if not self.config.reweight:
            return q, k
        if self.config.grid:  # one cosine for the rows, one for the columns
            for places in _grid_places(visibility, q):
                q, k = _rotated(q, places), _rotated(k, places)
            return q, k
        if visibility.causal:  # positions over the fixed horizon
            if visibility.longest > self.config.horizon:
                raise ConfigError(
                    f"cosformer: {visibility.longest} tokens, but its causal form was made for "
                    f"horizon={self.config.horizon}; train with the attention option "
                    f"horizon={visibility.longest} or more"
                )
            return (
                _rotated(q, visibility.query_positions().to(q) / self.config.horizon),
                _rotated(k, visibility.key_positions().to(q) / self.config.horizon),
            )
        # Positions over M stay below 1: beyond it cosines, and so sums, would be negative.
        places = visibility.places().to(q) / visibility.positive_counts[:, 0].to(q)
        return _rotated(q, places), _rotated(k, places)

    def most_keys(self, causal: bool) -> int | None:
        """Return ``horizon`` in causal use."""
        has_horizon = causal and self.config.reweight and not self.config.grid
        return self.config.horizon if has_horizon else None

    def divisor(self, totals: Tensor) -> Tensor:
        """Return the sums, at least 1e-6."""
        return totals.clamp_min(SMALLEST_SUM)


def _grid_places(visibility: Visibility, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return each token's row over the number of rows, and the same of columns, [1, N] each."""
    if visibility.grid is None:
        raise ConfigError("cosformer: grid=true is for the patches of images; leave it out")
    # Number rows and columns of the patches; tokens before them get the middle.
    rows, columns = visibility.grid
    # Count the tokens before the patches, such as a class token.
    others = visibility.num_keys - rows * columns
    patches = torch.arange(rows * columns, device=like.device)
    places = []
    for numbers, size in ((patches // columns, rows), (patches % columns, columns)):
        middle = (size - 1) / 2
        places.append(F.pad(numbers.to(like.dtype), (others, 0), value=middle)[None] / size)
    return places[0], places[1]


def _rotated(x: Tensor, places: Tensor) -> Tensor:
    """Return x cos a and x sin a side by side, [B, H, N, 2 d], a = pi / 2 times the places."""
    angles = (places * (math.pi / 2))[:, None, :, None]
    return torch.cat([x * angles.cos(), x * angles.sin()], -1)

"""Normalisation of states over their width."""

import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.modules import norms

norms.register("layer")(nn.LayerNorm)  # Ba et al. 2016, "Layer normalization", Eq. 4


@norms.register("rms")
class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * gain.

    Reference: Zhang and Sennrich 2019, "Root mean square layer normalization", Eq. 4.

    Example:
        >>> import torch
        >>> RMSNorm(2, 0.0)(torch.tensor([3.0, -3.0])).tolist()
        [1.0, -1.0]
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D]; under autocast to float32, as LayerNorm does."""
        return F.rms_norm(x.to(self.weight.dtype), self.normalized_shape, self.weight, self.eps)

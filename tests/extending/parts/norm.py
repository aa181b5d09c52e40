"""A norm of one's own: one gain for the length of the whole state."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.modules import norms


@norms.register("scale")
class ScaleNorm(nn.Module):
    """g x / max(|x|, eps), with one learned g that starts at sqrt(D).

    Reference: Nguyen and Salazar 2019, "Transformers without tears", Eq. 4.
    """

    def __init__(self, embed_dim: int, eps: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(float(embed_dim)).sqrt())
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        return self.gain * F.normalize(x, dim=-1, eps=self.eps)

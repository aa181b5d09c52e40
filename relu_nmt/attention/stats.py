"""Row statistics of attention weights: sum, entropy and exact zeros."""

import torch
from torch import Tensor

from relu_nmt.attention.base import RowStatistics
from relu_nmt.attention.masks import Visibility

NULL_SUM = 1e-6
"""A row whose weights sum to no more than this is a null row: it has no entropy."""


def row_statistics(
    weights: Tensor, visibility: Visibility, row_scale: Tensor | float = 1.0
) -> RowStatistics:
    """Return the statistics of each row of ``weights`` times ``row_scale``.

    The entropy is computed as log S - (1/S) sum_j w_j log w_j, which does not change when a row
    is scaled; so the scale enters the sum only and the weights need not be multiplied by it.

    Args:
        weights: [B, H, Nq, Nk], not negative, 0 where masked.
        visibility: which keys each query may see.
        row_scale: [B or 1, 1, Nq or 1], factor of each row.

    Reference: ReLUFormer (appendix on the regularisation loss, Eq. 7), entropy in nats.
    """
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    total = weights.sum(-1)
    # The clamp is inside the logarithm: at an exact zero w log w has value 0 and a finite
    # gradient, which the mechanism's own zero derivative then removes. log(0) would give NaN.
    tiny = torch.finfo(weights.dtype).tiny
    weighted_logs = (weights * weights.clamp_min(tiny).log()).sum(-1)
    is_null = total * row_scale <= NULL_SUM
    safe_total = total.masked_fill(is_null, 1.0)
    entropy = (safe_total.log() - weighted_logs / safe_total).masked_fill(is_null, 0.0)
    with torch.no_grad():
        nonzero = (weights > 0).sum(-1, dtype=torch.float32)
        zero_fraction = 1 - nonzero / visibility.counts.clamp_min(1)
    return RowStatistics(total * row_scale, entropy, zero_fraction)

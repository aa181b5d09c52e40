"""The regularisation loss on attention weights: normalisation and entropy margin."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relu_nmt.attention.base import RowStatistics
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.stats import NULL_SUM


@dataclass
class RegularizerTerms:
    """Both terms of one attention module, scalars: means over samples, heads and real rows."""

    normalisation: Tensor
    entropy: Tensor


def regularizer_terms(
    rows: RowStatistics, visibility: Visibility, margin: float
) -> RegularizerTerms:
    """Return the means of |log S| and max(H - margin log n, 0) over the real query rows.

    Null rows (S <= 1e-6) contribute nothing but stay in the denominator: |log 0| is infinite
    and has no gradient.

    Args:
        rows: row statistics [B, H, Nq].
        visibility: the slot's visibility; its padded query rows are left out.
        margin: coefficient of log n.

    Reference: ReLUFormer, Eq. 7, read with the bars that its text explains.
    """
    batch, heads, _ = rows.total.shape
    real = visibility.real_rows(batch)  # [B, 1, Nq]
    num_rows = (real.sum() * heads).clamp_min(1)
    is_null = rows.total <= NULL_SUM
    log_total = torch.where(is_null, 1.0, rows.total).log().abs()
    excess = (rows.entropy - margin * visibility.counts.clamp_min(1).log()).clamp_min(0)
    excess = excess.masked_fill(is_null, 0.0)
    return RegularizerTerms((log_total * real).sum() / num_rows, (excess * real).sum() / num_rows)

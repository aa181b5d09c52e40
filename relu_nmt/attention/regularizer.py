"""The two terms that ReLUFormer adds to the loss, as formulas of the weights of a row.

A row has the weights s_1 ... s_n >= 0 of its n visible keys, their sum S and the shares p = s / S:

    normalization    |log S|                    pulls the sum toward 1
    entropy margin   max(H - m log n, 0)        makes the row sharp: H at most m log n

with the entropy H = -sum_j p_j log p_j = log S - (1/S) sum_j s_j log s_j in nats. Null rows
(S <= 1e-6) count as 0: |log 0| is infinite and has no gradient.

Reference: Shen et al. 2023, "A Study on ReLU and Softmax in Transformer" (ReLUFormer), Eq. 7, read
with the bars that its text explains, and m = 0.7.
"""

import torch
from torch import Tensor

from relu_nmt.attention.base import RowStatistics
from relu_nmt.attention.masks import Visibility

NULL_SUM = 1e-6
"""A row whose absolute weights sum to no more than this is a null row."""


def normalization(total: Tensor) -> Tensor:
    """Return |log S| of the sums S of rows."""
    return torch.where(total <= NULL_SUM, 1.0, total).log().abs()


def entropy(total: Tensor, weighted_logs: Tensor, is_null: Tensor) -> Tensor:
    """Return H = log S - (1/S) sum_j s_j log s_j. Scaling a row does not change it.

    ``total`` is S, ``weighted_logs`` the sum with 0 log 0 = 0. Null rows get 0.
    """
    safe = total.masked_fill(is_null, 1.0)
    return (safe.log() - weighted_logs / safe).masked_fill(is_null, 0.0)


def entropy_excess(entropy: Tensor, counts: Tensor, margin: float) -> Tensor:
    """Return max(H - margin log n, 0) of rows that see n keys (``counts``)."""
    return (entropy - margin * counts.log()).clamp_min(0)


def regularizer_terms(
    rows: RowStatistics, visibility: Visibility, margin: float
) -> tuple[Tensor, Tensor]:
    """Return the means of both terms over samples, heads and real query rows.

    ``rows`` are the row statistics [B, H, Nq] of one attention module, ``margin`` is m.
    """
    assert rows.entropy is not None, "signed weights have no entropy"
    real = visibility.real_rows(len(rows.total))  # [B, 1, Nq]
    num_rows = (real.sum() * rows.total.size(1)).clamp_min(1)
    excess = entropy_excess(rows.entropy, visibility.positive_counts, margin)
    excess = excess.masked_fill(rows.total <= NULL_SUM, 0.0)
    return (normalization(rows.total) * real).sum() / num_rows, (excess * real).sum() / num_rows

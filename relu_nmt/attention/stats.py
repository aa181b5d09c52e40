"""Row statistics of attention weights: sum, entropy, exact zeros and the largest weight."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from relu_nmt.attention.base import Need, RowStatistics
from relu_nmt.attention.masks import Visibility

NULL_SUM = 1e-6
"""A row whose weights sum to no more than this is a null row: it has no entropy."""


@dataclass
class RowSums:
    """What one pass over the weights w of each row gives; sums, so that blocks of keys add up.

    Args:
        total: sum_j w_j, [B, H, Nq] float32, differentiable.
        weighted_logs: sum_j w_j log w_j with 0 log 0 = 0, differentiable; ``None`` where weights
            may be negative.
        nonzero: number of weights other than 0; with telemetry.
        largest: max_j |w_j|; with telemetry.
    """

    total: Tensor
    weighted_logs: Tensor | None = None
    nonzero: Tensor | None = None
    largest: Tensor | None = None

    @staticmethod
    def joined(parts: "Sequence[RowSums]") -> "RowSums":
        """Return the sums of all rows of parts that hold some rows each."""

        def all_rows(name: str) -> Any:
            found = [getattr(part, name) for part in parts]
            return None if found[0] is None else torch.cat(found, 2)

        return RowSums(*(all_rows(each.name) for each in fields(RowSums)))


def row_sums(weights: Tensor, need: Need, non_negative: bool = True) -> RowSums:
    """Return the sums over the last dimension of weights [B, H, Nq, Nk], 0 where masked."""
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if not need.statistics:  # nobody differentiates them, so nothing is to be kept for that
        weights = weights.detach()
    sums = RowSums(weights.sum(-1))
    if non_negative:
        # The clamp is inside the logarithm: at an exact zero w log w has value 0 and a finite
        # gradient, which the mechanism's own zero derivative then removes. log(0) would give NaN.
        tiny = torch.finfo(weights.dtype).tiny
        sums.weighted_logs = (weights * weights.clamp_min(tiny).log()).sum(-1)
    if need.telemetry:
        with torch.no_grad():
            sums.nonzero = (weights != 0).sum(-1, dtype=torch.float32)
            sums.largest = weights.abs().amax(-1)
    return sums


def row_statistics(
    sums: RowSums, visibility: Visibility, row_scale: Tensor | float = 1.0
) -> RowStatistics:
    """Return the statistics of each row of the weights times ``row_scale``.

    The entropy is computed as log S - (1/S) sum_j w_j log w_j, which does not change when a row
    is scaled; so the scale enters the sum only and the weights need not be multiplied by it.

    Args:
        sums: of the weights before scaling.
        visibility: which keys each query may see.
        row_scale: [B or 1, H or 1, Nq or 1], factor of each row.

    Reference: ReLUFormer (appendix on the regularisation loss, Eq. 7), entropy in nats.
    """
    total = sums.total * row_scale
    statistics = RowStatistics(total, None)
    if sums.weighted_logs is not None:
        is_null = total <= NULL_SUM
        safe_total = sums.total.masked_fill(is_null, 1.0)
        entropy = safe_total.log() - sums.weighted_logs / safe_total
        statistics.entropy = entropy.masked_fill(is_null, 0.0)
    if sums.nonzero is not None and sums.largest is not None:
        with torch.no_grad():
            statistics.zero_fraction = 1 - sums.nonzero / visibility.positive_counts
            scale = row_scale.abs() if isinstance(row_scale, Tensor) else abs(row_scale)
            statistics.largest = sums.largest * scale
    return statistics

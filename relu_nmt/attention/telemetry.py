"""Attention statistics as scalars for TensorBoard."""

import torch

from relu_nmt.attention.records import AttentionRecord
from relu_nmt.attention.stats import NULL_SUM


@torch.no_grad()
def attention_telemetry(records: list[AttentionRecord]) -> dict[str, float]:
    """Return mean row sum, entropy (nats) and exact-zero fraction of every layer and head.

    Names are ``attention/SLOT.LAYER.HEAD/STATISTIC``, for example ``attention/cross.0.3/entropy``;
    means over the real query rows of the batch.
    """
    names, values = [], []
    for record in records:
        rows = record.output.rows
        if rows is None:
            continue
        real = record.visibility.real_rows(rows.total.size(0))  # [B, 1, Nq]
        count = real.sum().clamp_min(1)
        statistics = {
            "sum": rows.total,
            "entropy": rows.entropy,
            "zero_fraction": rows.zero_fraction,
            "null_fraction": (rows.total <= NULL_SUM).float(),
            "largest": rows.largest,
        }
        if rows.entropy is None:  # signed weights: a sum of 0 is no null row either
            del statistics["entropy"], statistics["null_fraction"]
        for statistic, per_row in statistics.items():
            values.append((per_row * real).sum((0, 2)) / count)  # [H]
            names += [
                f"attention/{record.slot}.{record.layer}.{head}/{statistic}"
                for head in range(per_row.size(1))
            ]
    # One transfer from the device for all scalars.
    return dict(zip(names, torch.cat(values).tolist(), strict=True)) if values else {}

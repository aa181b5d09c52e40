"""Statistics of attention weights summed over query rows, and their means as scalars."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relu_nmt.attention.base import RowStatistics
from relu_nmt.attention.records import AttentionRecord
from relu_nmt.attention.stats import NULL_SUM


@dataclass
class ModuleSums:
    """The statistics of one attention module, summed over its real query rows.

    Args:
        slot: ``encoder``, ``decoder`` or ``cross``.
        layer: index of the layer, from 0.
        statistics: names of the S statistics: ``sum`` of the weights, ``entropy`` in nats,
            ``zero_fraction``, ``null_fraction`` and ``largest`` weight. Signed weights have no
            entropy and no null rows.
        rows: number of query rows.
        log_counts: sum of log n, n being the number of keys that a row sees.
        heads: [S, H] float64, sums over the rows.
        bucket_rows: [K] number of rows that see 1, 2-3, 4-7, ... keys; K is 0 where the slot is
            not causal.
        buckets: [S, K] float64, sums over those rows of the means over the heads.
    """

    slot: str
    layer: int
    statistics: tuple[str, ...]
    rows: float
    log_counts: float
    heads: np.ndarray
    bucket_rows: np.ndarray
    buckets: np.ndarray

    def add(self, other: "ModuleSums") -> None:
        """Add the sums of other rows of the same module."""
        self.rows += other.rows
        self.log_counts += other.log_counts
        self.heads = self.heads + other.heads
        longest = max(len(self.bucket_rows), len(other.bucket_rows))
        self.bucket_rows = _padded(self.bucket_rows, longest) + _padded(other.bucket_rows, longest)
        self.buckets = _padded(self.buckets, longest) + _padded(other.buckets, longest)


def bucket_name(index: int) -> str:
    """Return which numbers of visible keys a bucket holds: ``1``, ``2-3``, ``4-7``..."""
    first = 2**index
    return "1" if index == 0 else f"{first}-{2 * first - 1}"


@torch.no_grad()
def attention_sums(records: Sequence[AttentionRecord]) -> list[ModuleSums]:
    """Return the sums of every module that has row statistics (telemetry was asked for)."""
    found = [(record, _tables(record.rows)) for record in records if record.rows]
    if not found:
        return []
    # One transfer from the device for all modules.
    packed = torch.cat([_packed(record, tables) for record, tables in found])
    values = packed.cpu().double().numpy()
    sums, start = [], 0
    for record, tables in found:
        num_heads = next(iter(tables.values())).size(1)
        size_s, size_k = len(tables), _num_buckets(record)
        parts = np.split(
            values[start : start + 2 + size_s * num_heads + size_k + size_s * size_k],
            np.cumsum([1, 1, size_s * num_heads, size_k]),
        )
        start += sum(map(len, parts))
        rows, log_counts, heads, bucket_rows, buckets = parts
        sums.append(
            ModuleSums(
                record.slot,
                record.layer,
                tuple(tables),
                float(rows[0]),
                float(log_counts[0]),
                heads.reshape(size_s, num_heads),
                bucket_rows,
                buckets.reshape(size_s, size_k),
            )
        )
    return sums


def attention_telemetry(records: Sequence[AttentionRecord]) -> dict[str, float]:
    """Return the mean statistics over the real query rows of a batch as scalars for the log.

    ``attention/SLOT.LAYER.HEAD/STATISTIC`` for every head, for example
    ``attention/cross.0.3/entropy``; and in the causal slot
    ``attention/SLOT.LAYER.nRANGE/STATISTIC`` for the rows that see so many keys, for example
    ``attention/decoder.0.n4-7/entropy``, mean over the heads too.
    """
    scalars = {}
    for sums in attention_sums(records):
        module = f"attention/{sums.slot}.{sums.layer}"
        for statistic, heads, buckets in zip(
            sums.statistics, sums.heads, sums.buckets, strict=True
        ):
            for head, total in enumerate(heads):
                scalars[f"{module}.{head}/{statistic}"] = float(total / max(1.0, sums.rows))
            for index, (total, rows) in enumerate(zip(buckets, sums.bucket_rows, strict=True)):
                if rows:
                    name = f"{module}.n{bucket_name(index)}/{statistic}"
                    scalars[name] = float(total / rows)
    return scalars


def _tables(rows: RowStatistics) -> dict[str, Tensor]:
    """Return the statistics that there are, each [B, H, Nq]."""
    tables = {"sum": rows.total}
    if rows.entropy is not None:
        tables["entropy"] = rows.entropy
    if rows.zero_fraction is not None:
        tables["zero_fraction"] = rows.zero_fraction
    if rows.entropy is not None:  # with signed weights a sum of 0 is no null row
        tables["null_fraction"] = rows.total <= NULL_SUM
    if rows.largest is not None:
        tables["largest"] = rows.largest
    return tables


def _num_buckets(record: AttentionRecord) -> int:
    """Return K, enough buckets for the row that sees all keys; 0 where rows see the same."""
    visibility = record.visibility
    return visibility.num_keys.bit_length() if visibility.causal else 0


def _packed(record: AttentionRecord, tables: dict[str, Tensor]) -> Tensor:
    """Return the sums of one module as one vector, in the order that they are read in."""
    table = torch.stack([each.float() for each in tables.values()])  # [S, B, H, Nq]
    batch, num_queries = table.size(1), table.size(3)
    real = record.visibility.real_rows(batch)[:, 0]  # [B, Nq]
    counts = record.visibility.positive_counts[:, 0].expand(batch, num_queries)
    # Not by multiplication with 0: padded rows may hold anything.
    table = table.masked_fill(real[None, :, None] == 0, 0.0)
    parts = [real.sum()[None], (counts.log() * real).sum()[None], table.sum((1, 3)).flatten()]
    size_k = _num_buckets(record)
    if size_k:
        # frexp is exact: n = m 2^e with 0.5 <= m < 1, so that 4 to 7 have e = 3.
        index = torch.frexp(counts).exponent - 1
        member = (index[..., None] == torch.arange(size_k, device=index.device)) * real[..., None]
        # Not a matrix product: autocast would make its sums bfloat16.
        parts += [member.sum((0, 1)), (table.mean(2)[..., None] * member).sum((1, 2)).flatten()]
    return torch.cat(parts)


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    """Return the values with zeros behind them in the last dimension."""
    width = [(0, 0)] * (values.ndim - 1) + [(0, length - values.shape[-1])]
    return np.pad(values, width)

"""Records of attention in a forward pass, made by hooks. Sums and means of row statistics.

Layers need not know who watches them. A training step that computes activations a second time
(``--checkpoint-activations``) uses :func:`without_records`.

A *row* holds the weights of one query for its visible keys, before dropout.
:mod:`relu_nmt.attention.kernels.reference` computes the statistics of every row, and
:mod:`relu_nmt.applications.statistics` defines them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, Attention, AttentionOutput, Need, RowStatistics
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.regularizer import NULL_SUM

NUM_BUCKETS = 32
"""Number of ranges of visible keys (1, 2-3, 4-7, ...), enough for any length."""
LOGGED = (
    *("sum", "entropy", "zero_fraction", "null_fraction", "largest"),
    *("query_norm", "key_norm", "output_square"),
)
"""Statistics without a matrix of weights, in the training log and in ``--attention-stats``."""

_paused: ContextVar[bool] = ContextVar("recording_paused", default=False)


@dataclass
class AttentionRecord:
    """Row statistics and weights [B, H, Nq, Nk] of one mechanism in one pass, if needed.

    Slot and layer are attributes of :class:`Attention`. With telemetry ``vectors`` holds the
    result of :func:`vector_sizes`.
    """

    slot: str
    layer: int
    statistics: RowStatistics | None
    weights: Tensor | None
    visibility: Visibility
    vectors: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def record_attention(
    model: nn.Module, need: Need, take: Callable[[AttentionRecord], object] | None = None
) -> Iterator[list[AttentionRecord]]:
    """Record every call of an attention in a model inside the block. Blocks may be nested.

    Args:
        model: the model, or one mechanism, so that other mechanisms keep their fast code.
        need: results to record. An empty need records nothing and costs no time.
        take: receives each record at once. Without it the yielded list collects them, in the order
            of the calls.
    """
    records: list[AttentionRecord] = []

    def keep(
        module: Attention, args: tuple[Any, ...], kwargs: dict[str, Any], output: AttentionOutput
    ) -> None:
        if _paused.get():
            return
        # Find the arguments by name, however the caller passed them.
        by_name = dict(zip(("q", "k", "v", "visibility"), args, strict=False)) | kwargs
        visibility = by_name["visibility"]
        vectors = {}
        if module.recorded.telemetry:
            vectors = vector_sizes(by_name["q"], by_name["k"], output.values, visibility)
        record = AttentionRecord(
            module.slot, module.layer, output.statistics, output.weights, visibility, vectors
        )
        (take or records.append)(record)

    with ExitStack() as stack:
        for module in model.modules() if need != NOTHING else ():
            if isinstance(module, Attention):
                stack.enter_context(module.recording(module.recorded | need))
                stack.enter_context(module.register_forward_hook(keep, with_kwargs=True))
        yield records


@contextmanager
def without_records() -> Iterator[None]:
    """Make passes inside the block leave no records."""
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)


@torch.no_grad()
def vector_sizes(q: Tensor, k: Tensor, values: Tensor, visibility: Visibility) -> dict[str, Tensor]:
    """Return ``query_norm``, ``key_norm`` and ``output_square``, float32 [B, H, Nq] each.

    :mod:`relu_nmt.applications.statistics` defines them. The arguments are inputs and output of a
    mechanism. q is not divided by sqrt(d).

    Reference: ReLUFormer, section 4.1: without its factor the outputs grow with the number of keys.
    """
    visible_lengths = visibility.visible_sums(k.float().norm(dim=-1, keepdim=True))[..., 0]
    return {
        "query_norm": q.float().norm(dim=-1),
        "key_norm": (visible_lengths / visibility.positive_counts).expand(q.shape[:3]),
        "output_square": values.float().square().mean(-1),
    }


@dataclass
class ModuleSums:
    """The statistics of one attention module, summed over its real query rows."""

    # Names of the S statistics, in the order of LOGGED. Signed weights have no entropy and no null
    # rows.
    statistics: tuple[str, ...]
    num_rows: np.ndarray  # [] float64, number of query rows
    log_counts: np.ndarray  # [] sum of log n, with n visible keys of a row
    heads: np.ndarray  # [S, H] sums over the rows
    bucket_rows: np.ndarray  # [NUM_BUCKETS] number of rows of each range. 0 if not causal
    buckets: np.ndarray  # [S, NUM_BUCKETS] sums over those rows of the means over the heads

    def add(self, other: "ModuleSums") -> None:
        """Add the sums of other rows of the same module."""
        for name in ("num_rows", "log_counts", "heads", "bucket_rows", "buckets"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def bucket_name(index: int) -> str:
    """Return the range of visible keys of a bucket: ``1``, ``2-3``, ``4-7``..."""
    if index == 0:
        return "1"
    return f"{2**index}-{2 * 2**index - 1}"


def attention_sums(
    records: Sequence[AttentionRecord], sums: dict[tuple[str, int], ModuleSums] | None = None
) -> dict[tuple[str, int], ModuleSums]:
    """Return the sums of every module with row statistics, by slot and layer, added to ``sums``.

    The need of the records must include telemetry. A module that attends to sentences and to the
    whole document has the rows of both.
    """
    sums = {} if sums is None else sums
    for record in records:
        module = record.slot, record.layer
        if record.statistics is None:
            continue
        if module in sums:
            sums[module].add(_module_sums(record, record.statistics))
        else:
            sums[module] = _module_sums(record, record.statistics)
    return sums


def attention_telemetry(records: Sequence[AttentionRecord]) -> dict[str, float]:
    """Return the mean statistics over the real query rows of a batch as scalars for the log.

    ``attention/SLOT.LAYER.HEAD/STATISTIC`` for every head, for example
    ``attention/cross.0.3/entropy``, and in the causal slot
    ``attention/SLOT.LAYER.nRANGE/STATISTIC``, for example ``attention/decoder.0.n4-7/entropy``: the
    mean over heads, and over the rows that see this number of keys.
    """
    scalars = {}
    for (slot, layer), sums in attention_sums(records).items():
        for row, statistic in enumerate(sums.statistics):
            for head, total in enumerate(sums.heads[row]):
                name = f"attention/{slot}.{layer}.{head}/{statistic}"
                scalars[name] = float(total / max(1.0, sums.num_rows))
            for index, count in enumerate(sums.bucket_rows):
                if count:
                    name = f"attention/{slot}.{layer}.n{bucket_name(index)}/{statistic}"
                    scalars[name] = float(sums.buckets[row, index] / count)
    return scalars


@torch.no_grad()
def _module_sums(record: AttentionRecord, statistics: RowStatistics) -> ModuleSums:
    """Return the sums of the rows of one record."""
    visibility = record.visibility
    tables: dict[str, Any] = {
        "sum": statistics.total,
        "entropy": statistics.entropy,
        "zero_fraction": statistics.zero_fraction,
        # With signed weights a sum of 0 is no null row.
        "null_fraction": None if statistics.entropy is None else statistics.total <= NULL_SUM,
        "largest": statistics.largest,
        **record.vectors,
    }
    names = tuple(name for name in LOGGED if tables.get(name) is not None)
    table = torch.stack([tables[name].float() for name in names])  # [S, B, H, Nq]
    batch = table.size(1)
    num_queries = table.size(3)
    real = visibility.real_rows(batch)[:, 0]  # [B, Nq]
    counts = visibility.positive_counts[:, 0].expand(batch, num_queries)
    # Padded rows may hold NaN, which a product with 0 would keep.
    table = table.masked_fill(real[None, :, None] == 0, 0.0)
    # Put each row into the bucket of its number of keys. frexp is exact: n = m 2^e with
    # 0.5 <= m < 1, so 4 to 7 have e = 3.
    num_buckets = visibility.num_keys.bit_length() if visibility.causal else 0
    index = torch.frexp(counts).exponent - 1
    member = (index[..., None] == torch.arange(num_buckets, device=index.device)) * real[..., None]
    # A matrix product would be bfloat16 under autocast.
    by_bucket = (table.mean(2)[..., None] * member).sum((1, 2))
    # Pad the buckets, so that the sums of all batches add up.
    padding = (0, NUM_BUCKETS - num_buckets)
    buckets = F.pad(member.sum((0, 1)), padding), F.pad(by_bucket, padding)
    sums = real.sum(), (counts.log() * real).sum(), table.sum((1, 3)), *buckets
    return ModuleSums(names, *(total.cpu().double().numpy() for total in sums))

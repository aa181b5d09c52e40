"""Records of attention in a forward pass, made by hooks, and their sums and means for the log.

Layers need not know who watches them. A training step that computes activations a second time
(``--checkpoint-activations``) uses :func:`without_records` and :func:`second_pass`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, Attention, AttentionOutput, Need, RowStatistics
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.statistics import LOGGED, NULL_SUM

_paused: ContextVar[bool] = ContextVar("recording_paused", default=False)


@dataclass
class AttentionRecord:
    """Row statistics and weights [B, H, Nq, Nk] of one mechanism in one pass, if needed.

    Slot and layer are those of :class:`Attention`. With telemetry ``vectors`` holds the result of
    :func:`vector_sizes`.
    """

    slot: str
    layer: int
    rows: RowStatistics | None
    weights: Tensor | None
    visibility: Visibility
    vectors: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def record_attention(
    model: nn.Module, need: Need, take: Callable[[AttentionRecord], object] | None = None
) -> Iterator[list[AttentionRecord]]:
    """Record every call of an attention in a model inside the block; blocks may be nested.

    Args:
        model: the model; or one mechanism, so that the others keep their fast code.
        need: results to record; an empty need records nothing and costs no time.
        take: receives each record at once; without it the yielded list collects them, in the order
            of the calls.
    """
    records: list[AttentionRecord] = []

    # Before each call, add to its need; after it, keep the results.
    def ask(
        module: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**kwargs, "need": kwargs.get("need", NOTHING) | need}

    def keep(
        module: Attention, args: tuple[Any, ...], kwargs: dict[str, Any], output: AttentionOutput
    ) -> None:
        if _paused.get():
            return
        # Find the arguments by name, however the caller passed them.
        given = dict(zip(("q", "k", "v", "visibility"), args, strict=False)) | kwargs
        visibility = given["visibility"]
        vectors = {}
        if kwargs["need"].telemetry:
            vectors = vector_sizes(given["q"], given["k"], output.values, visibility)
        place = module.slot, module.layer
        (take or records.append)(
            AttentionRecord(*place, output.rows, output.weights, visibility, vectors)
        )

    # Hook all mechanisms, and remove the hooks at the end even after an error.
    handles = []
    for module in model.modules() if need != NOTHING else ():
        if isinstance(module, Attention):
            handles.append(module.register_forward_pre_hook(ask, with_kwargs=True))
            handles.append(module.register_forward_hook(keep, with_kwargs=True))
    try:
        yield records
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def without_records() -> Iterator[None]:
    """Make passes inside the block leave no records."""
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)


@singledispatch
def second_pass(module: nn.Module) -> AbstractContextManager[None]:
    """Return a context in which a module repeats its next pass and keeps its state.

    Call it before the first pass. A class with a state that a training pass changes registers a
    context of its own.
    """
    return nullcontext()


@second_pass.register(nn.BatchNorm2d)
@contextmanager
def _(module: nn.BatchNorm2d) -> Iterator[None]:
    """Leave the running statistics as they are."""
    momentum, module.momentum = module.momentum, 0.0
    try:
        yield
    finally:
        module.momentum = momentum


@torch.no_grad()
def vector_sizes(q: Tensor, k: Tensor, values: Tensor, visibility: Visibility) -> dict[str, Tensor]:
    """Return ``query_norm``, ``key_norm`` and ``output_square``, float32 [B, H, Nq] each.

    :mod:`relu_nmt.attention.statistics` defines them. The arguments are inputs and output of a
    mechanism; q is not divided by sqrt(d).

    Reference: ReLUFormer, section 4.1: without its factor the outputs grow with the number of keys.
    """
    # Sum the lengths of the keys that each query sees; those of padded keys are 0.
    keys = visibility.without_padding(k.float().norm(dim=-1, keepdim=True))[..., 0]  # [B, H, Nk]
    if visibility.offset is None:
        seen = keys.sum(-1, keepdim=True)
    else:
        # Take running sums from the first query's own key on.
        seen = keys.cumsum(-1)[..., visibility.offset :]
    return {
        "query_norm": q.float().norm(dim=-1),
        "key_norm": (seen / visibility.positive_counts).expand(q.shape[:3]),
        "output_square": values.float().square().mean(-1),
    }


@dataclass
class ModuleSums:
    """The statistics of one attention module, summed over its real query rows."""

    slot: str  # its slot
    layer: int  # its layer
    # Names of the S statistics, in the order of statistics.LOGGED. Signed weights have no entropy
    # and no null rows.
    statistics: tuple[str, ...]
    rows: float  # number of query rows
    log_counts: float  # sum of log n, with n visible keys of a row
    heads: np.ndarray  # [S, H] float64, sums over the rows
    # [K] number of rows that see 1, 2-3, 4-7, ... keys; K is 0 where the slot is not causal.
    bucket_rows: np.ndarray
    buckets: np.ndarray  # [S, K] float64, sums over those rows of the means over the heads

    def add(self, other: "ModuleSums") -> None:
        """Add the sums of other rows of the same module."""
        self.rows += other.rows
        self.log_counts += other.log_counts
        self.heads = self.heads + other.heads
        # Pad the buckets to the longer ones, since lengths of batches differ.
        longest = max(len(self.bucket_rows), len(other.bucket_rows))
        self.bucket_rows = _padded(self.bucket_rows, longest) + _padded(other.bucket_rows, longest)
        self.buckets = _padded(self.buckets, longest) + _padded(other.buckets, longest)


def bucket_name(index: int) -> str:
    """Return the range of visible keys of a bucket: ``1``, ``2-3``, ``4-7``..."""
    first = 2**index
    return "1" if index == 0 else f"{first}-{2 * first - 1}"


def attention_sums(records: Sequence[AttentionRecord]) -> list[ModuleSums]:
    """Return the sums of every module with row statistics; their need must include telemetry.

    A module that attends to sentences and to the whole document has the rows of both.
    """
    sums: dict[tuple[str, int], ModuleSums] = {}
    for record in records:
        if record.rows is None:
            continue
        of_record = _module_sums(record)
        # Add up records of the same module.
        if (record.slot, record.layer) in sums:
            sums[record.slot, record.layer].add(of_record)
        else:
            sums[record.slot, record.layer] = of_record
    return list(sums.values())


def attention_telemetry(records: Sequence[AttentionRecord]) -> dict[str, float]:
    """Return the mean statistics over the real query rows of a batch as scalars for the log.

    ``attention/SLOT.LAYER.HEAD/STATISTIC`` for every head, for example
    ``attention/cross.0.3/entropy``; and in the causal slot
    ``attention/SLOT.LAYER.nRANGE/STATISTIC``, for example ``attention/decoder.0.n4-7/entropy``: the
    mean over heads, and over the rows that see this number of keys.
    """
    scalars = {}
    for sums in attention_sums(records):
        module = f"attention/{sums.slot}.{sums.layer}"
        for statistic, heads, buckets in zip(
            sums.statistics, sums.heads, sums.buckets, strict=True
        ):
            # Average over the real rows for each head.
            for head, total in enumerate(heads):
                scalars[f"{module}.{head}/{statistic}"] = float(total / max(1.0, sums.rows))
            # Average over the rows of each bucket; empty buckets give no scalar.
            for index, (total, rows) in enumerate(zip(buckets, sums.bucket_rows, strict=True)):
                if rows:
                    name = f"{module}.n{bucket_name(index)}/{statistic}"
                    scalars[name] = float(total / rows)
    return scalars


@torch.no_grad()
def _module_sums(record: AttentionRecord) -> ModuleSums:
    """Return the sums of the rows of one record, which has row statistics."""
    rows, visibility = record.rows, record.visibility
    assert rows is not None
    tables = {
        "sum": rows.total,
        "entropy": rows.entropy,
        "zero_fraction": rows.zero_fraction,
        # With signed weights a sum of 0 is no null row.
        "null_fraction": None if rows.entropy is None else rows.total <= NULL_SUM,
        "largest": rows.largest,
        **record.vectors,
    }
    known = {name: table for name in LOGGED if (table := tables.get(name)) is not None}
    table = torch.stack([each.float() for each in known.values()])  # [S, B, H, Nq]
    batch, num_queries = table.size(1), table.size(3)
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
    # The last five fields; sums without dimensions become numbers.
    sums = real.sum(), (counts.log() * real).sum(), table.sum((1, 3)), member.sum((0, 1)), by_bucket
    arrays: Iterator[Any] = (each.cpu().double().numpy()[()] for each in sums)
    return ModuleSums(record.slot, record.layer, tuple(known), *arrays)


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    """Return the values with zeros behind them in the last dimension."""
    width = [(0, 0)] * (values.ndim - 1) + [(0, length - values.shape[-1])]
    return np.pad(values, width)

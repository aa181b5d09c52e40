"""Records of attention in a forward pass, made by hooks; the statistics of rows, sums and means.

Layers need not know who watches them. A training step that computes activations a second time
(``--checkpoint-activations``) uses :func:`without_records` and :func:`second_pass`.

The training log, TensorBoard, result files, pages of ``relu-nmt-analyze`` and reports of
``relu-nmt-sweep`` use the names in ``STATISTICS``. A *row* holds the weights w_1 ... w_n of one
query for its n visible keys, before dropout; or those of one token for the n keys of a feed-forward
memory. ``SYMBOLS`` explains the formulas. :mod:`relu_nmt.attention.kernels.reference` computes the
statistics of every row of attention; ``layer_statistics`` and ``weight_statistics`` in
:mod:`relu_nmt.applications` the others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, Attention, AttentionOutput, Need, RowStatistics
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.regulariser import NULL_SUM

NUM_BUCKETS = 32
"""Ranges of numbers of visible keys, 1, 2-3, 4-7, ...: beyond any length."""
NUM_FREQUENT = 50
"""Entries of the dictionary that count as frequent words."""
SYMBOLS = (
    "w_1 ... w_n: weights of a row, with n visible keys; S: their sum; p_j: the shares "
    "|w_j| / sum_j |w_j|; null rows have sum_j |w_j| <= 1e-6 and no shares"
)
"""The symbols of the formulas, for pages and result files."""


class Statistic(NamedTuple):
    """A statistic of one row; files hold its mean over real rows, or over rows that have shares.

    The title is for tables and plots. The formula, in the symbols of this module, is empty where
    the definition says it all; the unit is empty for plain numbers.
    """

    title: str
    formula: str
    unit: str
    definition: str

    @property
    def label(self) -> str:
        """The title with the unit, for axes and columns."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def __str__(self) -> str:
        unit = f", in {self.unit}" if self.unit else ""
        return (f"{self.formula}{unit}: " if self.formula else "") + self.definition


STATISTICS = {
    "sum": Statistic("row sum", "S = sum_j w_j", "", "sum of the weights of a row"),
    "abs_log_sum": Statistic("|ln S|", "|ln S|", "", "distance of the sum from 1; no null rows"),
    "zero_fraction": Statistic("zeros", "#(w_j = 0) / n", "", "visible keys of weight exactly 0"),
    "null_fraction": Statistic("null rows", "sum_j |w_j| <= 1e-6", "", "rows without weight"),
    "largest": Statistic("largest weight", "max_j |w_j|", "", "largest absolute weight of a row"),
    "largest_share": Statistic("largest share", "max_j p_j", "", "no null rows"),
    "entropy": Statistic("entropy", "H = -sum_j p_j ln p_j", "nats", "spread; 0 in a null row"),
    "entropy_with_weight": Statistic("entropy", "H", "nats", "entropy without null rows"),
    "entropy_bits": Statistic("entropy", "H / ln 2", "bits", "entropy in base 2; 0 in a null row"),
    "relative_entropy": Statistic("H / ln n", "H / ln n", "", "no null rows, n > 1"),
    "raw_entropy": Statistic("raw entropy", "-sum_j w_j ln w_j", "nats", "weights, not shares"),
    "exp_entropy": Statistic("exp(H)", "exp(mean H)", "keys", "effective number of keys"),
    "mean_exp_entropy": Statistic("exp(H)", "mean exp(H)", "keys", "of each row; no null rows"),
    "nonzero_keys": Statistic("keys", "#(w_j != 0)", "keys", "number of keys with a weight"),
    "mean_log_n": Statistic("ln n", "ln n", "nats", "largest possible entropy of a row"),
    "mean_of_heads_entropy": Statistic("entropy", "H of mean_h w", "nats", "over the heads"),
    "distance": Statistic(
        "distance",
        "sum_j p_j |i - j|",
        "tokens",
        "from query to key; in cross-attention from the diagonal i Nk / Nq; no null rows",
    ),
    "punctuation": Statistic("punctuation", "", "", "share on punctuation; no null rows"),
    "frequent": Statistic(
        "frequent words",
        "",
        "",
        f"share on the {NUM_FREQUENT} most frequent words of the dictionary, most of them function "
        "words, without punctuation; no null rows",
    ),
    "ends": Statistic("</s>, <sep>", "", "", "share on </s> and <sep>; no null rows"),
    "outside": Statistic("other sentences", "", "", "share outside the own sentence; no null rows"),
    "top_sum": Statistic("top p %", "sum of the largest ceil(p n / 100) p_j", "", "no null rows"),
    "share_at_rank": Statistic("p % rank", "", "", "the smallest of the shares in top_sum"),
    "query_norm": Statistic("query length", "|q_i|", "", "before the division by sqrt(d)"),
    "key_norm": Statistic("key length", "mean_j |k_j|", "", "mean length of the visible keys"),
    "output_square": Statistic(
        "output", "|o_i|^2 / d, o_i = sum_j w_ij v_j", "", "mean square of the output"
    ),
    "variance_ratio": Statistic(
        "variance ratio",
        "Var(f(x)) / Var(x)",
        "",
        "over tokens and channels; x enters the residual branch, the branch adds f(x) to it",
    ),
    "anisotropy": Statistic(
        "anisotropy",
        "mean of cos(V_i, V_j), i != j",
        "",
        "mean cosine between two values (rows of V) of a memory; zero rows are skipped",
    ),
    "top_sums": Statistic(
        "top p %", "sum of the largest ceil(p n / 100) w_j / S", "", "no null rows"
    ),
}
"""All statistics by the name that they have in files and in TensorBoard."""

LOGGED = (
    *("sum", "entropy", "zero_fraction", "null_fraction", "largest"),
    *("query_norm", "key_norm", "output_square"),
)
"""Statistics without a matrix of weights, in the training log and in ``--attention-stats``."""
ANALYSED = (
    *("sum", "abs_log_sum", "zero_fraction", "null_fraction", "largest_share"),
    *("entropy", "entropy_with_weight", "entropy_bits", "relative_entropy", "raw_entropy"),
    *("exp_entropy", "mean_exp_entropy", "nonzero_keys", "mean_log_n", "mean_of_heads_entropy"),
    *("distance", "punctuation", "frequent", "ends", "outside"),
)
"""Statistics of ``relu-nmt-analyze``, from the matrix of weights, in the order of its files."""


def definitions(names: Iterable[str]) -> dict[str, str]:
    """Return formula, unit and definition by name, as result files and pages show them."""
    return {name: str(STATISTICS[name]) for name in names}


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
        by_name = dict(zip(("q", "k", "v", "visibility"), args, strict=False)) | kwargs
        visibility = by_name["visibility"]
        vectors = {}
        if kwargs["need"].telemetry:
            vectors = vector_sizes(by_name["q"], by_name["k"], output.values, visibility)
        slot_and_layer = module.slot, module.layer
        (take or records.append)(
            AttentionRecord(*slot_and_layer, output.rows, output.weights, visibility, vectors)
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
    momentum = module.momentum
    module.momentum = 0.0
    try:
        yield
    finally:
        module.momentum = momentum


@torch.no_grad()
def vector_sizes(q: Tensor, k: Tensor, values: Tensor, visibility: Visibility) -> dict[str, Tensor]:
    """Return ``query_norm``, ``key_norm`` and ``output_square``, float32 [B, H, Nq] each.

    ``STATISTICS`` defines them. The arguments are inputs and output of a
    mechanism; q is not divided by sqrt(d).

    Reference: ReLUFormer, section 4.1: without its factor the outputs grow with the number of keys.
    """
    # Sum the lengths of the keys that each query sees; those of padded keys are 0.
    keys = visibility.without_padding(k.float().norm(dim=-1, keepdim=True))[..., 0]  # [B, H, Nk]
    if visibility.offset is None:
        visible_lengths = keys.sum(-1, keepdim=True)
    else:
        # Take running sums from the first query's own key on.
        visible_lengths = keys.cumsum(-1)[..., visibility.offset :]
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
    rows: np.ndarray  # [] float64, number of query rows
    log_counts: np.ndarray  # [] sum of log n, with n visible keys of a row
    heads: np.ndarray  # [S, H] sums over the rows
    bucket_rows: np.ndarray  # [NUM_BUCKETS] number of rows of each range; 0 if not causal
    buckets: np.ndarray  # [S, NUM_BUCKETS] sums over those rows of the means over the heads

    def add(self, other: "ModuleSums") -> None:
        """Add the sums of other rows of the same module."""
        for name in ("rows", "log_counts", "heads", "bucket_rows", "buckets"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def bucket_name(index: int) -> str:
    """Return the range of visible keys of a bucket: ``1``, ``2-3``, ``4-7``..."""
    first = 2**index
    return "1" if index == 0 else f"{first}-{2 * first - 1}"


def attention_sums(
    records: Sequence[AttentionRecord], sums: dict[tuple[str, int], ModuleSums] | None = None
) -> dict[tuple[str, int], ModuleSums]:
    """Return the sums of every module with row statistics, by slot and layer, added to ``sums``.

    The need of the records must include telemetry. A module that attends to sentences and to the
    whole document has the rows of both.
    """
    sums = {} if sums is None else sums
    for record in records:
        if record.rows is None:
            continue
        record_sums = _module_sums(record, record.rows)
        module_sums = sums.setdefault((record.slot, record.layer), record_sums)
        if module_sums is not record_sums:
            module_sums.add(record_sums)
    return sums


def attention_telemetry(records: Sequence[AttentionRecord]) -> dict[str, float]:
    """Return the mean statistics over the real query rows of a batch as scalars for the log.

    ``attention/SLOT.LAYER.HEAD/STATISTIC`` for every head, for example
    ``attention/cross.0.3/entropy``; and in the causal slot
    ``attention/SLOT.LAYER.nRANGE/STATISTIC``, for example ``attention/decoder.0.n4-7/entropy``: the
    mean over heads, and over the rows that see this number of keys.
    """
    scalars = {}
    for (slot, layer), sums in attention_sums(records).items():
        for row, statistic in enumerate(sums.statistics):
            # Average over the real rows for each head.
            for head, total in enumerate(sums.heads[row]):
                name = f"attention/{slot}.{layer}.{head}/{statistic}"
                scalars[name] = float(total / max(1.0, sums.rows))
            # Average over the rows of each bucket; empty buckets give no scalar.
            for index, count in enumerate(sums.bucket_rows):
                if count:
                    name = f"attention/{slot}.{layer}.n{bucket_name(index)}/{statistic}"
                    scalars[name] = float(sums.buckets[row, index] / count)
    return scalars


@torch.no_grad()
def _module_sums(record: AttentionRecord, rows: RowStatistics) -> ModuleSums:
    """Return the sums of the rows of one record."""
    visibility = record.visibility
    tables = {
        "sum": rows.total,
        "entropy": rows.entropy,
        "zero_fraction": rows.zero_fraction,
        # With signed weights a sum of 0 is no null row.
        "null_fraction": None if rows.entropy is None else rows.total <= NULL_SUM,
        "largest": rows.largest,
        **record.vectors,
    }
    series = {name: table for name in LOGGED if (table := tables.get(name)) is not None}
    table = torch.stack([values.float() for values in series.values()])  # [S, B, H, Nq]
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
    # Pad the buckets, so that those of all batches add up.
    padding = (0, NUM_BUCKETS - num_buckets)
    buckets = F.pad(member.sum((0, 1)), padding), F.pad(by_bucket, padding)
    sums = real.sum(), (counts.log() * real).sum(), table.sum((1, 3)), *buckets
    return ModuleSums(tuple(series), *(total.cpu().double().numpy() for total in sums))

"""Statistics of attention weights by slot, layer and head, over many sentences.

These statistics need the matrix of weights, which is computed for one mechanism and one batch at a
time. The statistics of :mod:`~relu_nmt.applications.attention_statistics` and
:mod:`~relu_nmt.applications.layer_statistics` need no matrix.
"""

import html
import itertools
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from relu_nmt.applications.statistics import (
    ANALYZED,
    LEAST_KEYS,
    NUM_FREQUENT,
    SYMBOLS,
    definitions,
)
from relu_nmt.attention.base import Attention, Need
from relu_nmt.attention.records import AttentionRecord, record_attention
from relu_nmt.attention.regularizer import NULL_SUM
from relu_nmt.data.dictionary import EOS, SENTENCE_SEPARATOR, SPECIAL_SYMBOLS, Dictionary
from relu_nmt.data.translation_batches import pad_rows
from relu_nmt.modules.config import SLOTS
from relu_nmt.translation.base import Ensemble
from relu_nmt.translator.attention_maps import input_batches, single_model

PERCENTS = (*(step / 10 for step in range(1, 16)), 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""Percents p of the visible keys. Figure 4 of the paper ends at 1.5."""
WEIGHTS_AT_ONCE = 2**21  # weights to process together: 16 MB in float64, in about ten copies
COPIES = 8  # copies of a matrix of weights in memory while a mechanism computes it
SUBWORD_MARKS = ("@@", "\u2581")
RANKED = ("top_sum", "share_at_rank")
OF_ALL_HEADS = "mean_of_heads_entropy"
KINDS = ("punctuation", "frequent", "ends")
ALL_KEYS = "all"
OWN_SENTENCE = "sentence"
NEAR = 3  # keys at less than this distance, in tokens, are neighbors
DEFINITIONS = {
    "sees": "all: every key that padding and causality leave; sentence: those of its own sentence "
    "(--document-attention aligned, whose upper layers have both)",
    "rows": "real query rows; targets are read in one pass, weights are those before dropout; "
    + SYMBOLS,
    **definitions((*ANALYZED, *RANKED)),
}
WeightsPlace = tuple[str, str, int]  # slot, ``ALL_KEYS`` or ``OWN_SENTENCE``, and layer
Numbers = tuple[np.ndarray, np.ndarray]  # sentence numbers of the tokens of source and target
Table = tuple[Tensor, Tensor]
"""Values of rows [B, H or 1, q] or [B, H, q, percents], and a mask of the rows that count."""
Record = Mapping[str, Any]
Records = Sequence[Record]
"""Statistics of heads and means by name, beside ``slot``, ``sees``, ``layer`` and ``head``."""


class _Tokens(NamedTuple):
    """Kinds [B, N, 3] of the tokens of a side, and their sentence numbers [B, N] if known."""

    kinds: Tensor
    sentences: Tensor | None = None


class WeightStatistics:
    """Sums of the statistics of a model's attention weights over pairs of sentences or of groups.

    Attentions without a matrix of weights are left out. ``without_weights`` lists their slots. The
    ensemble holds a single model, which computes in the ensemble's dtype. The dictionaries of
    source and target show which tokens are punctuation or frequent words.

    Reference: ReLUFormer, Tables 3 and 5, Figures 4 and 5.
    """

    def __init__(self, ensemble: Ensemble, dictionaries: tuple[Dictionary, Dictionary]) -> None:
        self._ensemble = ensemble
        self._model = single_model(ensemble)
        self._able = []
        slots = set()
        for module in self._model.modules():
            if isinstance(module, Attention) and module.capabilities.weights:
                self._able.append(module)
                slots.add(module.slot)
        self.without_weights = tuple(slot for slot in SLOTS if slot not in slots)
        source_dictionary, target_dictionary = dictionaries
        self._source_kinds = kinds_of(source_dictionary).to(ensemble.device)
        self._target_kinds = kinds_of(target_dictionary).to(ensemble.device)
        # The totals and numbers of rows of each statistic, [2, H] or [2, H, percents].
        self._sums: dict[WeightsPlace, dict[str, np.ndarray]] = defaultdict(dict)
        self._rows: Counter[WeightsPlace] = Counter()

    def add(
        self,
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        numbers: Sequence[Numbers] | None = None,
        advance: Callable[[int], object] = lambda count: None,
    ) -> None:
        """Add pairs of token ids with end symbols. ``numbers``: sentence number of each token."""
        heads = max((attention.num_heads for attention in self._able), default=1)
        batches = input_batches(sources, targets, self._ensemble, lambda n: COPIES * heads * n * n)
        device = self._ensemble.device
        for batch, src_tokens, prev_output_tokens in batches:
            source = _Tokens(self._source_kinds[src_tokens])
            target = _Tokens(self._target_kinds[prev_output_tokens])
            if numbers is not None:
                of_sources, of_targets = zip(*map(numbers.__getitem__, batch), strict=True)
                source = source._replace(sentences=pad_rows(of_sources, 0).to(device))
                target = target._replace(sentences=pad_rows(of_targets, 0).to(device))
            # The queries and the keys of each slot.
            slots = {
                "encoder": (source, source),
                "decoder": (target, target),
                "cross": (target, source),
            }
            with self._ensemble.evaluating(), ExitStack() as stack:
                for attention in self._able:
                    queries, keys = slots[attention.slot]
                    take = partial(self._take, attention, queries, keys)
                    stack.enter_context(record_attention(attention, Need(weights=True), take))
                self._model(src_tokens, prev_output_tokens)
            advance(len(batch))

    def _take(
        self, attention: Attention, queries: _Tokens, keys: _Tokens, record: AttentionRecord
    ) -> None:
        """Add the weights of one mechanism."""
        weights = record.weights
        visibility = record.visibility
        sentences = visibility.sentences
        assert weights is not None, f"{attention.name} has weights, but returned none"
        query_sentences = queries.sentences
        key_sentences = keys.sentences
        kinds = keys.kinds
        # Attention inside sentences has one sentence per row. Arrange the tokens in the same way.
        if sentences is not None:
            of_queries, of_keys = sentences
            kinds = of_keys.for_query_rows(of_keys.take(kinds))
            if query_sentences is not None and key_sentences is not None:
                query_sentences = of_queries.take(query_sentences[..., None])[..., 0]
                key_sentences = of_keys.take(key_sentences[..., None])[..., 0]
                key_sentences = of_keys.for_query_rows(key_sentences)
        # Keep attention inside sentences apart from attention to all keys.
        sees = ALL_KEYS if sentences is None else OWN_SENTENCE
        key = record.slot, sees, record.layer
        sums = self._sums[key]
        batch, heads, num_queries, num_keys = weights.shape
        # Count the visible keys of each query, and mark real rows: [B, Nq].
        counts = visibility.positive_counts[:, 0].expand(batch, num_queries)
        real = visibility.real_rows(batch)[:, 0] > 0
        # Take the position of each query among the keys, scaled in cross-attention: [B, Nq].
        expected = visibility.query_positions().double()
        if record.slot == "cross":
            expected = expected * counts / real.sum(1, keepdim=True).clamp_min(1)
        size = max(1, WEIGHTS_AT_ONCE // max(1, batch * heads * num_keys))
        for start in range(0, num_queries, size):
            rows = slice(start, start + size)
            distances = (visibility.key_positions()[:, None] - expected[:, rows, None]).abs()
            # Mark the keys in another sentence than the query: [B, q, Nk].
            in_others = None
            if query_sentences is not None and key_sentences is not None:
                in_others = query_sentences[:, rows, None] != key_sentences[:, None]
            tables = _tables(
                weights=weights[:, :, rows],
                counts=counts[:, rows],
                real=real[:, rows],
                distances=distances,
                in_others=in_others,
                kinds=kinds,
                with_entropies=attention.capabilities.non_negative,
            )
            for name, (table, counted) in tables.items():
                counted = counted.expand_as(table)
                # Padded rows may hold NaN, which a product with 0 would keep.
                totals = table.masked_fill(~counted, 0.0).sum((0, 2)), counted.sum((0, 2)).double()
                sums[name] = sums.get(name, 0.0) + torch.stack(totals).cpu().numpy()
        self._rows[key] += int(real.sum())

    def records(self) -> list[dict[str, Any]]:
        """Return flat records: means of heads, then of layers over heads, of slots over layers.

        The record of a layer has "mean" as ``head``, and the record of a slot also as ``layer``. A
        record lacks statistics without a value, as for signed weights. ``top_sum`` and
        ``share_at_rank`` have a value for each percent.
        """
        records: list[dict[str, Any]] = []
        # Heads, then their means by layer, then the means of the layers by slot.
        by_slot = sorted(self._sums, key=lambda key: (SLOTS.index(key[0]), *key[1:]))
        for (slot, sees), keys in itertools.groupby(by_slot, lambda key: key[:2]):
            layers = []
            all_rows = 0
            for key in keys:
                rows = self._rows[key]
                means = {name: _ratio(*sums) for name, sums in self._sums[key].items()}
                where = {"slot": slot, "sees": sees, "layer": key[2]}
                for head in range(len(means["sum"])):
                    # Leave out the entropy of mean weights, which belongs to the whole layer.
                    of_head = {n: values[head] for n, values in means.items() if n != OF_ALL_HEADS}
                    records.append({**where, "head": head, "rows": rows, **_record(of_head)})
                layers.append(_means(means))
                records.append({**where, "head": "mean", "rows": rows, **_record(layers[-1])})
                all_rows += rows
            by_name = {name: [of_layer[name] for of_layer in layers] for name in layers[0]}
            where = {"slot": slot, "sees": sees, "layer": "mean", "head": "mean"}
            records.append({**where, "rows": all_rows, **_record(_means(by_name))})
        return records


def _tables(
    weights: Tensor,
    counts: Tensor,
    real: Tensor,
    distances: Tensor,
    in_others: Tensor | None,
    kinds: Tensor,
    with_entropies: bool,
) -> dict[str, Table]:
    """Return the statistics of rows of weights [B, H, q, Nk].

    ``counts`` [B, q] are numbers of visible keys, at least 1. ``real`` [B, q] is False for padding.
    ``distances`` [B or 1, q, Nk] are distances from query to key, ``kinds`` [B, Nk, 3] the kinds
    of keys. ``in_others`` [B, q, Nk] marks keys in another sentence than the query.
    """
    # Shares of the absolute weights. Null rows have none.
    weights = weights.double()
    counts = counts[:, None].double()
    real = real[:, None]
    sizes = weights.abs()
    size = sizes.sum(-1)
    full = real & (size > NULL_SUM)
    shares = sizes / size.clamp_min(NULL_SUM)[..., None]
    # All weights, signed or not.
    total = weights.sum(-1)
    nonzero = (weights != 0).sum(-1).double()
    log_counts = counts.log()
    tables: dict[str, Table] = {
        "sum": (total, real),
        "abs_log_sum": (total.abs().log().abs(), full & (total.abs() > NULL_SUM)),
        "zero_fraction": (1 - nonzero / counts, real),
        "null_fraction": (1 - full.double(), real),
        "largest_share": (shares.amax(-1), full),
        "nonzero_keys": (nonzero, real),
        "mean_log_n": (log_counts.expand_as(total), real),
    }
    if with_entropies:
        tables |= _entropies(weights, shares, log_counts, real, full)
    # Mean distances, shares by place, and shares on each kind of key: [B, H, q, 3].
    tables["distance"] = (shares * distances[:, None]).sum(-1), full
    long_rows = full & (counts >= LEAST_KEYS)
    is_near = distances[:, None] < NEAR
    at_place = (shares * (distances[:, None] < 1)).sum(-1)
    tables["diagonal"] = at_place, long_rows
    tables["neighbors"] = (shares * is_near).sum(-1) - at_place, long_rows
    tables["first"] = shares[..., 0], long_rows
    for name, share in zip(KINDS, (shares @ kinds[:, None]).unbind(-1), strict=True):
        tables[name] = share, full
    if in_others is not None:
        tables["outside"] = (shares * in_others[:, None]).sum(-1), full
    return tables | _ranks(shares.cpu(), counts.cpu(), full.cpu())


def _entropies(
    weights: Tensor, shares: Tensor, log_counts: Tensor, real: Tensor, full: Tensor
) -> dict[str, Table]:
    """Return the entropies of each head, and the entropy of the mean weights of all heads."""
    entropies = torch.where(full, _entropy(shares), 0.0)
    averaged = weights.mean(1, keepdim=True)
    averaged_sum = averaged.sum(-1, keepdim=True)
    of_mean = _entropy(averaged / averaged_sum.clamp_min(NULL_SUM))
    return {
        "entropy": (entropies, real),
        "entropy_with_weight": (entropies, full),
        # Leave out rows with one visible key, which have no relative entropy.
        "relative_entropy": (entropies / log_counts.clamp_min(0.5), full & (log_counts > 0)),
        "raw_entropy": (_entropy(weights), real),
        "mean_exp_entropy": (entropies.exp(), full),
        OF_ALL_HEADS: (of_mean, real & (averaged_sum[..., 0] > NULL_SUM)),
    }


def _ranks(shares: Tensor, counts: Tensor, counted: Tensor) -> dict[str, Table]:
    """Return ``top_sum`` and ``share_at_rank`` for each percent, [B, H, q, percents]."""
    # NumPy sorts faster than PyTorch.
    ranked = torch.from_numpy(np.sort(shares.numpy())).flip(-1)
    percents = torch.tensor(PERCENTS, dtype=torch.float64)
    # Find the last counted key. Subtract a little first: 3 % of 100 must not round up to 4.
    last = (percents * counts[..., None] / 100 - 1e-9).ceil().long() - 1
    last = last.expand(*ranked.shape[:3], -1)
    counted = counted[..., None]
    return {
        "top_sum": (ranked.cumsum(-1).gather(-1, last), counted),
        "share_at_rank": (ranked.gather(-1, last), counted),
    }


def sentence_numbers(sizes: np.ndarray, separated: bool) -> np.ndarray:
    """Return the sentence number of each token of joined sentences, int64 [n].

    ``sizes`` are the tokens of each sentence with its ``</s>``. Only the last ``</s>`` stays. With
    separators it has a separate number, as in attention that stays inside sentences.

    Example:
        >>> sentence_numbers(np.array([3, 2]), separated=False).tolist()
        [0, 0, 1, 1]
    """
    numbers = np.repeat(np.arange(len(sizes)), sizes - 1)
    return np.append(numbers, len(sizes) if separated else len(sizes) - 1)


def kinds_of(dictionary: Dictionary) -> Tensor:
    """Return 1 for each of the ``KINDS`` that a symbol belongs to, else 0, float64 [V, 3]."""
    kinds = torch.zeros(len(dictionary), len(KINDS), dtype=torch.float64)
    # The first words of the dictionary are the frequent words.
    left = NUM_FREQUENT
    for index in range(len(dictionary)):
        symbol = dictionary[index]
        if symbol in (EOS, SENTENCE_SEPARATOR):
            kinds[index, KINDS.index("ends")] = 1
        elif is_punctuation(symbol):
            kinds[index, KINDS.index("punctuation")] = 1
        elif left and symbol not in SPECIAL_SYMBOLS:
            kinds[index, KINDS.index("frequent")] = 1
            left -= 1
    return kinds


def is_punctuation(symbol: str) -> bool:
    """Return True for a symbol of only punctuation. Subword marks and Moses' escapes are ignored.

    Example:
        >>> [is_punctuation(symbol) for symbol in (",", "&quot;", "\u2581...", "a.", "</s>")]
        [True, True, True, False, False]
    """
    text = html.unescape(symbol)
    for mark in SUBWORD_MARKS:
        text = text.replace(mark, "")
    return bool(text) and all(unicodedata.category(character)[0] == "P" for character in text)


def _entropy(shares: Tensor) -> Tensor:
    return -torch.xlogy(shares, shares).sum(-1)


def _ratio(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the means, NaN where the count is 0."""
    return np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts > 0)


def _means(tables: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Return the means of the known values along the first axes, NaN where none is known."""
    means = {}
    for name, values in tables.items():
        is_known = ~np.isnan(values)
        means[name] = _ratio(np.where(is_known, values, 0.0).sum(0), is_known.sum(0))
    return means


def _record(means: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the known means in the order of ``ANALYZED``, values derived from H, and ranks."""
    values = {}
    for name, value in means.items():
        if not value.ndim and not np.isnan(value):
            values[name] = float(value)
    if "entropy" in values:
        values["exp_entropy"] = math.exp(values["entropy"])
        values["entropy_bits"] = values["entropy"] / math.log(2)
    record: dict[str, Any] = {}
    for name in ANALYZED:
        if name in values:
            record[name] = values[name]
    for name in RANKED:
        is_known = ~np.isnan(means[name])
        percents = itertools.compress(PERCENTS, is_known)
        record[name] = dict(zip(percents, means[name][is_known].tolist(), strict=True))
    return record

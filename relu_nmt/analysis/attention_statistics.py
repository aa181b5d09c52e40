"""Statistics of all attention weights over a set of sentences, by module and head."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relu_nmt.analysis.attention_maps import attention_of, decoder_inputs, single_model
from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.attention.spec import SLOTS
from relu_nmt.attention.telemetry import ModuleSums, attention_sums, bucket_name
from relu_nmt.decoding.ensemble import Ensemble
from relu_nmt.errors import ConfigError

MOST_WEIGHTS = 2**25
"""Entries of the weights [B, H, Nq, Nk] of one attention at a time: 128 MB in float32."""
MOST_TOKENS = 2**14
"""Tokens of a batch, padding included: what else a layer makes grows with them."""
DEFINITIONS = {
    "weights": "before dropout, rows of real queries only; targets are read in one pass",
    "sum": "sum of the weights of a row",
    "entropy": "nats, of the weights of a row divided by their sum; 0 in a null row",
    "exp_entropy": "exp of the mean entropy: effective number of keys",
    "zero_fraction": "share of the visible keys whose weight is exactly zero",
    "null_fraction": "share of the rows whose weights sum to 1e-6 or less",
    "largest": "largest absolute weight of a row",
    "mean_log_n": "mean over rows of log n, n the number of visible keys: the largest entropy",
    "slots": "means over rows and heads, then over the slot's modules",
    "overall": "means over rows and heads, then over all modules",
}


class AttentionStatistics:
    """Accumulates the statistics of a model's attentions over pairs of sentences.

    The definition is the same for every mechanism and every model: mean over real query rows and
    heads of a module, then over modules, entropy in nats.

    Args:
        ensemble: a single model; its number format is used.

    Raises:
        ConfigError: several models, or no attention of the model has weights.

    Reference: ReLUFormer, Tables 3 and 5 (its Table 3 contradicts its text and Table 5).
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._model = single_model(ensemble)
        self._sums: dict[tuple[str, int], ModuleSums] = {}
        self._num_sentences = 0
        able = [attention_of(self._model, slot, 0).capabilities.weights for slot in SLOTS]
        if not any(able):
            names = ", ".join(sorted({self._model.config.attention_of(slot) for slot in SLOTS}))
            raise ConfigError(f"no attention of the model has weights to measure ({names})")

    def add(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
        """Take in sentences with their translations.

        Args:
            sources: token numbers, ending in the end symbol.
            targets: token numbers, ending in the end symbol.
        """
        lengths = np.array(
            [max(len(s), len(t)) for s, t in zip(sources, targets, strict=True)], dtype=np.int64
        )
        for batch in self._batches(lengths):
            inputs = decoder_inputs(
                [sources[i] for i in batch], [targets[i] for i in batch], self._ensemble
            )
            with (
                self._ensemble.evaluating(),
                record_attention(self._model, Need(telemetry=True)) as records,
            ):
                self._model(*inputs)
                found = attention_sums(records)
            for sums in found:
                place = (sums.slot, sums.layer)
                if place in self._sums:
                    self._sums[place].add(sums)
                else:
                    self._sums[place] = sums
        self._num_sentences += len(lengths)

    def _batches(self, lengths: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the sentences of each batch, longest first."""
        num_heads = max(attention_of(self._model, slot, 0).num_heads for slot in SLOTS)
        order, first = np.argsort(-lengths, kind="stable"), 0
        while first < len(order):
            longest = int(lengths[order[first]])
            size = min(MOST_WEIGHTS // (num_heads * longest**2), MOST_TOKENS // longest)
            size = max(1, size)
            yield order[first : first + size]
            first += size

    def report(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold.

        ``modules`` has a part for each module: means over all its rows and heads, of each head,
        and in the causal slot by number of visible keys. A statistic that signed weights do not
        have is absent; slots whose mechanism has no weights are named in ``without_weights``.
        """
        modules = {f"{slot}.{layer}": _of_module(s) for (slot, layer), s in self._sums.items()}
        means = {name: module["mean"] for name, module in modules.items()}
        of_slot = {
            slot: [mean for name, mean in means.items() if name.split(".")[0] == slot]
            for slot in SLOTS
        }
        return {
            "definitions": DEFINITIONS,
            "sentences": self._num_sentences,
            "attention": {slot: self._model.config.attention_of(slot) for slot in SLOTS},
            "without_weights": [slot for slot in SLOTS if not of_slot[slot]]
            if self._num_sentences
            else [],
            "overall": _mean_of(list(means.values())),
            "slots": {slot: _mean_of(parts) for slot, parts in of_slot.items() if parts},
            "modules": modules,
        }


def _of_module(sums: ModuleSums) -> dict[str, Any]:
    rows = max(1.0, sums.rows)
    mean = dict(zip(sums.statistics, (sums.heads.mean(1) / rows).tolist(), strict=True))
    heads = [
        dict(zip(sums.statistics, (of_head / rows).tolist(), strict=True))
        for of_head in sums.heads.T
    ]
    part: dict[str, Any] = {
        "rows": int(sums.rows),
        "mean": _with_exp({**mean, "mean_log_n": sums.log_counts / rows}),
        "heads": [_with_exp(head) for head in heads],
    }
    if len(sums.bucket_rows):
        part["by_visible_keys"] = {
            bucket_name(index): {
                "rows": int(count),
                **_with_exp(dict(zip(sums.statistics, (total / count).tolist(), strict=True))),
            }
            for index, (count, total) in enumerate(
                zip(sums.bucket_rows, sums.buckets.T, strict=True)
            )
            if count
        }
    return part


def _mean_of(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the means over modules of the statistics that all of them have."""
    names = [name for name in (parts[0] if parts else {}) if all(name in part for part in parts)]
    return _with_exp({name: sum(part[name] for part in parts) / len(parts) for name in names})


def _with_exp(means: dict[str, float]) -> dict[str, float]:
    """Return the means with the exp of the entropy, if there is one, right behind it."""
    result = {}
    for name, value in means.items():
        if name == "exp_entropy":
            continue
        result[name] = value
        if name == "entropy":
            result["exp_entropy"] = math.exp(value)
    return result

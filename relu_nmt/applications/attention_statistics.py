"""Statistics of attention that need no matrix of weights, over many sentences."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from relu_nmt.applications.statistics import SYMBOLS, definitions, summary
from relu_nmt.attention.base import Need
from relu_nmt.attention.records import (
    LOGGED,
    ModuleSums,
    attention_sums,
    bucket_name,
    record_attention,
)
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import SLOTS
from relu_nmt.translation.base import Ensemble
from relu_nmt.translator.attention_maps import attention_of, input_batches, single_model

OF_ATTENTION = {
    "weights": f"before dropout, real query rows only; targets are read in one pass; {SYMBOLS}",
    **definitions((*LOGGED, "exp_entropy", "mean_log_n")),
    "slots": "means over rows and heads, then over the slot's modules",
    "overall": "means over rows and heads, then over all modules",
}


class AttentionStatistics:
    """Sums of the statistics of a model's attentions over pairs of sentences.

    Means are over real query rows and heads of a module, then over modules, for every mechanism.
    ``ensemble`` holds a single model, which computes in the ensemble's dtype.

    Reference: ReLUFormer, Tables 3 and 5. Table 3 of the paper contradicts its text and Table 5.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._model = single_model(ensemble)
        self._sums: dict[tuple[str, int], ModuleSums] = {}
        self._num_sentences = 0
        if not any(attention_of(self._model, slot, 0).capabilities.weights for slot in SLOTS):
            names = ", ".join(sorted(set(map(self._model.config.attention_of, SLOTS))))
            raise ConfigError(f"no attention of the model has weights to measure ({names})")

    def add(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
        """Add sentences and their translations: token ids, each with its end symbol."""
        heads = max(attention_of(self._model, slot, 0).num_heads for slot in SLOTS)
        batches = input_batches(sources, targets, self._ensemble, lambda n: heads * n * n)
        need = Need(telemetry=True)
        for _, *inputs in batches:
            with self._ensemble.evaluating(), record_attention(self._model, need) as records:
                self._model(*inputs)
                attention_sums(records, self._sums)
        self._num_sentences += len(sources)

    def report(self) -> dict[str, Any]:
        """Return all statistics as plain values for JSON.

        ``modules`` has means for each module: over all rows and heads, for each head, and in the
        causal slot for each number of visible keys. Signed weights lack some statistics.
        ``without_weights`` lists the slots whose mechanism has no weights.
        """
        modules = {}
        means = {}
        for (slot, layer), sums in self._sums.items():
            part = _of_module(sums)
            modules[f"{slot}.{layer}"] = part
            means[f"{slot}.{layer}"] = part["mean"]
        overall, slots = summary(means)
        for slot, slot_means in slots.items():
            slots[slot] = _with_exp(slot_means)
        attentions = {}
        without_weights = []
        for slot in SLOTS:
            attentions[slot] = self._model.config.attention_of(slot)
            # Name slots without weights only after a pass: before it, no slot has sums.
            if self._sums and slot not in slots:
                without_weights.append(slot)
        return {
            "definitions": OF_ATTENTION,
            "sentences": self._num_sentences,
            "attention": attentions,
            "without_weights": without_weights,
            "overall": _with_exp(overall),
            "slots": slots,
            "modules": modules,
        }


def _of_module(sums: ModuleSums) -> dict[str, Any]:
    def means(totals: np.ndarray, rows: float, **further: float) -> dict[str, float]:
        names = zip(sums.statistics, (totals / rows).tolist(), strict=True)
        return _with_exp({**dict(names), **further})

    rows = max(1.0, float(sums.num_rows))
    part: dict[str, Any] = {
        "rows": int(sums.num_rows),
        "mean": means(sums.heads.mean(1), rows, mean_log_n=float(sums.log_counts) / rows),
        "heads": [means(of_head, rows) for of_head in sums.heads.T],
    }
    for index in np.flatnonzero(sums.bucket_rows).tolist():
        count = sums.bucket_rows[index]
        bucket = {"rows": int(count), **means(sums.buckets[:, index], count)}
        part.setdefault("by_visible_keys", {})[bucket_name(index)] = bucket
    return part


def _with_exp(means: dict[str, float]) -> dict[str, float]:
    """Return the means with ``exp_entropy`` directly after the entropy, if it is known."""
    result = {}
    for name, value in means.items():
        # Drop a mean of exp(H): exp of the mean H replaces it.
        if name != "exp_entropy":
            result[name] = value
        if name == "entropy":
            result["exp_entropy"] = math.exp(value)
    return result

"""Statistics of the training log over many sentences, by slot, layer and head."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import ModuleSums, attention_sums, bucket_name, record_attention
from relu_nmt.attention.statistics import LOGGED, SYMBOLS, definitions
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import SLOTS
from relu_nmt.translation.attention_maps import attention_of, input_batches, single_model
from relu_nmt.translation.search.ensemble import Ensemble

DEFINITIONS = {
    "weights": f"before dropout, real query rows only; targets are read in one pass; {SYMBOLS}",
    **definitions((*LOGGED, "exp_entropy", "mean_log_n")),
    "slots": "means over rows and heads, then over the slot's modules",
    "overall": "means over rows and heads, then over all modules",
}


class AttentionStatistics:
    """Sums of the statistics of a model's attentions over pairs of sentences.

    Means are over real query rows and heads of a module, then over modules, for every mechanism.

    ``ensemble`` holds a single model; its dtype is used.

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
        """Add sentences and their translations: token ids, each with its end symbol."""
        # Run batches of bounded size with telemetry, and add up their sums by module.
        heads = max(attention_of(self._model, slot, 0).num_heads for slot in SLOTS)
        batches = input_batches(sources, targets, self._ensemble, lambda n: heads * n * n)
        for _, *inputs in batches:
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
        self._num_sentences += len(sources)

    def report(self) -> dict[str, Any]:
        """Return everything as plain values for JSON.

        ``modules`` has a part for each module: means over all its rows and heads, of each head,
        and in the causal slot by number of visible keys. Signed weights lack some statistics;
        ``without_weights`` lists the slots whose mechanism has no weights.
        """
        # Means of each module, of each slot and of all modules.
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
            # Name slots without weights only after a pass: before it, no slot has sums.
            "without_weights": [slot for slot in SLOTS if not of_slot[slot]]
            if self._num_sentences
            else [],
            "overall": _mean_of(list(means.values())),
            "slots": {slot: _mean_of(parts) for slot, parts in of_slot.items() if parts},
            "modules": modules,
        }


def _of_module(sums: ModuleSums) -> dict[str, Any]:
    # Divide totals by the number of rows, and name the results.
    def means(totals: np.ndarray, rows: float, **further: float) -> dict[str, float]:
        names = zip(sums.statistics, (totals / rows).tolist(), strict=True)
        return _with_exp({**dict(names), **further})

    rows = max(1.0, sums.rows)
    part: dict[str, Any] = {
        "rows": int(sums.rows),
        "mean": means(sums.heads.mean(1), rows, mean_log_n=sums.log_counts / rows),
        "heads": [means(of_head, rows) for of_head in sums.heads.T],
    }
    # Split causal rows by their number of visible keys; leave out empty buckets.
    if len(sums.bucket_rows):
        counted = zip(sums.bucket_rows, sums.buckets.T, strict=True)
        part["by_visible_keys"] = {
            bucket_name(index): {"rows": int(count), **means(totals, count)}
            for index, (count, totals) in enumerate(counted)
            if count
        }
    return part


def _mean_of(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the means over modules of the statistics that all of them have."""
    names = [name for name in (parts[0] if parts else {}) if all(name in part for part in parts)]
    return _with_exp({name: sum(part[name] for part in parts) / len(parts) for name in names})


def _with_exp(means: dict[str, float]) -> dict[str, float]:
    """Return the means with ``exp_entropy`` directly after the entropy, if it is known."""
    result = {}
    for name, value in means.items():
        # Drop a mean of exp(H): exp of the mean H replaces it.
        if name == "exp_entropy":
            continue
        result[name] = value
        if name == "entropy":
            result["exp_entropy"] = math.exp(value)
    return result

"""The names of statistics, with their titles, formulas, units and definitions.

The training log, TensorBoard, result files, pages of ``relu-nmt-analyze`` and reports of
``relu-nmt-sweep`` use the names in ``STATISTICS``, the table in ``statistics.json``. A *row* holds
the weights w_1 ... w_n of one query for its n visible keys, before dropout, or of one token for the
n keys of a feed-forward memory. ``SYMBOLS`` explains the formulas.
:mod:`relu_nmt.attention.kernels.reference` computes the statistics of every row of attention, and
``attention_statistics`` their means. ``layer_statistics`` and ``weight_statistics`` have the rest.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LEAST_KEYS = 10  # least visible keys of a row that counts in statistics of the place of weight
NUM_FREQUENT = 50  # entries of the dictionary that count as frequent words
SYMBOLS = (
    "w_1 ... w_n: weights of a row, with n visible keys; S: their sum; p_j: the shares "
    "|w_j| / sum_j |w_j|; null rows have sum_j |w_j| <= 1e-6 and no shares"
)
"""The symbols of the formulas, for pages and result files."""


class Statistic(NamedTuple):
    """A statistic of one row. Files hold its mean over real rows, or over rows that have shares.

    The title is for tables and plots. The formula uses the symbols of this module. It is empty
    where the definition suffices. The unit is empty for plain numbers.
    """

    title: str
    formula: str = ""
    unit: str = ""
    definition: str = ""

    @property
    def label(self) -> str:
        """The title with the unit, for axes and columns."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def __str__(self) -> str:
        if not self.formula:
            return self.definition
        unit = f", in {self.unit}" if self.unit else ""
        return f"{self.formula}{unit}: {self.definition}"


_TABLE = Path(__file__).with_name("statistics.json")
STATISTICS = {
    name: Statistic(**values) for name, values in json.loads(_TABLE.read_text("utf-8")).items()
}
"""All statistics by the name that they have in files and in TensorBoard."""

ANALYZED = (
    *("sum", "abs_log_sum", "zero_fraction", "null_fraction", "largest_share"),
    *("entropy", "entropy_with_weight", "entropy_bits", "relative_entropy", "raw_entropy"),
    *("exp_entropy", "mean_exp_entropy", "nonzero_keys", "mean_log_n", "mean_of_heads_entropy"),
    *("distance", "punctuation", "frequent", "ends", "outside"),
    *("diagonal", "neighbors", "first", "added_variance"),
)
"""Statistics of ``relu-nmt-analyze``, in the order of its files.

All but the last come from the matrix of weights.
"""


def definitions(names: Iterable[str]) -> dict[str, str]:
    """Return formula, unit and definition by name, as result files and pages show them."""
    return {name: str(STATISTICS[name]) for name in names}


def summary(
    modules: Mapping[str, Mapping[str, Any]], without: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the means over modules such as ``encoder.0``, and the means of each side or slot."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for name, part in modules.items():
        groups.setdefault(name.partition(".")[0], []).append(part)
    means = {}
    for name, parts in groups.items():
        means[name] = _means_of(parts, without)
    return _means_of(list(modules.values()), without), means


def _means_of(parts: Sequence[Mapping[str, Any]], without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the means of the values that all parts have, or None if no part knows the value."""
    means: dict[str, Any] = {}
    for name in parts[0] if parts else ():
        if name in without or not all(name in part for part in parts):
            continue
        values = [part[name] for part in parts]
        if isinstance(values[0], dict):
            means[name] = _means_of(values)
        else:
            numbers = [value for value in values if value is not None]
            means[name] = sum(numbers) / len(numbers) if numbers else None
    return means

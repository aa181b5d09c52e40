"""Statistics of attention and of feed-forward memories: name, formula, unit and meaning of each.

The training log, TensorBoard, result files, pages of ``relu-nmt-analyze`` and reports of
``relu-nmt-sweep`` use these names. The file imports no PyTorch. Code that computes them:
:mod:`relu_nmt.attention.kernels.reference` for every row of attention,
:mod:`relu_nmt.attention.records` for their sums, and ``layer_statistics`` and
``weight_statistics`` in :mod:`relu_nmt.applications`.

A *row* holds the weights w_1 ... w_n of one query for its n visible keys, before dropout; or those
of one token for the n keys of a feed-forward memory. ``SYMBOLS`` explains the formulas.
"""

from collections.abc import Iterable
from typing import NamedTuple

NULL_SUM = 1e-6
"""A row whose absolute weights sum to no more than this is a null row."""
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

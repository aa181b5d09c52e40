"""Confidence intervals over seeds and documents, and paired tests, of d-BLEU.

Documents are resampled as sacreBLEU does it, with its number of resamples, its seed and its
p-value; the score of a resample is the mean over the seeds. With one seed the numbers are those of
relu-nmt-score --baseline.
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from relu_nmt.sweep.document_counts import bleu_of

RESAMPLES = 1000
RESAMPLING_SEED = 12345
# 97.5% quantiles of Student's t by degrees of freedom from 1.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
NORMAL_QUANTILE = 1.960


def seed_interval(values: Sequence[float]) -> float | None:
    """Return half the width of the 95% confidence interval of the mean, by Student's t.

    Args:
        values: one per seed.

    Returns:
        None for fewer than two values.

    Example:
        >>> round(seed_interval([30.0, 31.0, 32.0]), 3)
        2.484
    """
    if len(values) < 2:
        return None
    freedom = len(values) - 1
    quantile = T_QUANTILES[freedom - 1] if freedom <= len(T_QUANTILES) else NORMAL_QUANTILE
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def bootstrap_scores(counts_of_seeds: Sequence[np.ndarray]) -> np.ndarray:
    """Return the d-BLEU of each resample of the documents, [seeds, RESAMPLES].

    Args:
        counts_of_seeds: for each seed, the counts of the same documents, [documents, counts].
    """
    documents = len(counts_of_seeds[0])
    rng = np.random.default_rng(RESAMPLING_SEED)
    drawn = rng.choice(documents, size=(RESAMPLES, documents), replace=True)
    times = np.zeros((RESAMPLES, documents), dtype=np.int64)
    np.add.at(times, (np.arange(RESAMPLES)[:, None], drawn), 1)
    scores = [[bleu_of(sums) for sums in times @ counts] for counts in counts_of_seeds]
    return np.array(scores)


def document_interval(scores: np.ndarray) -> float:
    """Return half the width of the interval that holds 95% of the resamples' scores."""
    ordered, cut = np.sort(scores), len(scores) // 40
    return float(ordered[-1 - cut] - ordered[cut]) / 2


def p_value(system: np.ndarray, baseline: np.ndarray, difference: float) -> float:
    """Return how often resampling alone gives a difference this large.

    Args:
        system: score of each resample.
        baseline: of the same resamples.
        difference: of the scores on all documents.
    """
    differences = np.abs(system - baseline)
    if not differences.any():
        return 1.0
    larger = int((differences - differences.mean() > abs(difference)).sum())
    return (larger + 1) / (len(differences) + 1)

"""Confidence intervals of scores, and the paired bootstrap that compares two systems.

Segments (lines or whole documents) are drawn with replacement, the same ones for all systems. All
values equal sacreBLEU's. A system may also be several trainings with a mean score.
"""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.evaluation.metrics import Metric

DEFAULT_SAMPLES = 1000
DEFAULT_SEED = 12345  # the default seed of sacreBLEU
# 97.5% quantiles of Student's t by degrees of freedom from 1, so that SciPy is not needed.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
NORMAL_QUANTILE = 1.960


@dataclass(frozen=True)
class SegmentStatistics:
    """Counts of each segment, whose sums over segments give a corpus score."""

    metric: Metric  # the metric
    # Int64 [segments, counts]. BLEU: tokens of translation and of reference, then matching n-grams
    # by n and all n-grams by n. TER, in float64: edits and the mean length of the references.
    counts: np.ndarray

    @classmethod
    def of(
        cls, metric: Metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> "SegmentStatistics":
        """Return the statistics of translations against one or more lists of references."""
        # Every metric of sacreBLEU has this hook for significance tests.
        counts = metric.build()._extract_corpus_statistics(
            list(hypotheses), list(map(list, references))
        )
        return cls(metric, np.array(counts, dtype=_dtype(metric)))

    def to_json(self) -> dict[str, Any]:
        """Return the settings and the counts of each segment as JSON values."""
        return {"metric": asdict(self.metric), "counts": self.counts.tolist()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "SegmentStatistics":
        """Return the statistics of :meth:`to_json` (DataError: the values are damaged)."""
        try:
            metric = Metric(**values["metric"])
            counts: np.ndarray = np.array(values["counts"], dtype=_dtype(metric))
        except (KeyError, TypeError, ValueError, OverflowError, ConfigError) as error:
            raise DataError(f"damaged counts of a score ({error}); compute it again") from error
        return cls(metric, counts)

    def score(self, segments: Sequence[int] | None = None) -> float:
        """Return the score of some segments or of all."""
        counts = self.counts if segments is None else self.counts[list(segments)]
        return self.scores_of([counts.sum(0)])[0]

    def scores_of(self, sums: Sequence[np.ndarray] | np.ndarray) -> list[float]:
        """Return the score of each row of sums of counts, [rows, counts]."""
        # Leave out the tokenizer, which counts do not need.
        metric = replace(self.metric, tokenize="none").build()
        return [float(metric._compute_score_from_stats(row.tolist()).score) for row in sums]


def _dtype(metric: Metric) -> type:
    return np.float64 if metric.name == "ter" else np.int64


def resampled_scores(
    systems: Sequence[SegmentStatistics],
    samples: int = DEFAULT_SAMPLES,
    seed: int | None = DEFAULT_SEED,
) -> np.ndarray:
    """Return the scores of resamples, the same for all systems, float64 [systems, samples]."""
    times = resamples(len(systems[0].counts), samples, seed)
    return np.array([system.scores_of(times @ system.counts) for system in systems])


def resamples(
    segments: int, samples: int = DEFAULT_SAMPLES, seed: int | None = DEFAULT_SEED
) -> np.ndarray:
    """Return how often each resample has each segment, int64 [samples, segments]."""
    drawn = np.random.default_rng(seed).choice(segments, size=(samples, segments), replace=True)
    times = np.zeros((samples, segments), dtype=np.int64)
    np.add.at(times, (np.arange(samples)[:, None], drawn), 1)
    return times


def resampling_bounds(scores: np.ndarray) -> tuple[float, float]:
    """Return the ends of the interval that holds 95% of the resamples' scores [samples]."""
    ordered = np.sort(scores)
    cut = len(scores) // 40
    return float(ordered[cut]), float(ordered[-1 - cut])


def resampling_interval(scores: np.ndarray) -> float:
    """Return half the width of the interval that holds 95% of the resamples' scores [samples]."""
    low, high = resampling_bounds(scores)
    return (high - low) / 2


def p_value(system: np.ndarray, baseline: np.ndarray, difference: float) -> float:
    """Return the share of resamples [samples] with a difference this large or larger by chance."""
    differences = np.abs(system - baseline)
    if not differences.any():
        return 1.0
    # Center the differences, as if both systems were equally good.
    larger = int((differences - differences.mean() > abs(difference)).sum())
    # Count the observed difference as one more resample.
    return (larger + 1) / (len(differences) + 1)


def mean_interval(values: Sequence[float]) -> float | None:
    """Return half the width of the 95% confidence interval of a mean, by Student's t.

    There is none for fewer than two values.

    Example:
        >>> round(mean_interval([30.0, 31.0, 32.0]), 3)
        2.484
    """
    if len(values) < 2:
        return None
    freedom = len(values) - 1
    quantile = T_QUANTILES[freedom - 1] if freedom <= len(T_QUANTILES) else NORMAL_QUANTILE
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def paired_bootstrap(
    metric: Metric,
    system: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[Sequence[str]],
    samples: int = DEFAULT_SAMPLES,
    prefix: str = "",
) -> tuple[str, dict[str, Any]]:
    """Compare two systems by resampling the same segments for both. Return a line and its values.

    The values are ``value``, ``mean`` over the resamples and ``interval`` of each system,
    ``p_value`` and ``difference``. Segments are lines, or whole documents, whose ``prefix`` is
    ``d-``. As in sacreBLEU, the environment variable ``SACREBLEU_SEED`` sets the seed, 12345 by
    default.

    Reference: Koehn 2004, "Statistical significance tests for machine translation evaluation". The
    p-value is sacreBLEU's. Deviation: for two systems with the same output it is 1.
    """
    seed = _seed()
    if samples < 1:
        raise ConfigError(f"--paired-bs-n {samples}: expected 1 or more resamples")
    # Score all segments first, which also checks the references.
    score = metric.score(system, references)
    if len(baseline) != len(system):
        raise DataError(
            f"{len(system):,} segments of the system, but {len(baseline):,} of the baseline; both "
            "need the same segments in the same order"
        )
    systems = [SegmentStatistics.of(metric, lines, references) for lines in (system, baseline)]
    resampled = resampled_scores(systems, samples, seed)
    estimates = list(map(_estimate, systems, resampled))
    difference = estimates[0]["value"] - estimates[1]["value"]
    p = p_value(resampled[0], resampled[1], difference)
    # Put samples and seed at sacreBLEU's place in the signature.
    settings = f"|bs:{samples}|seed:{'none' if seed is None else seed}|"
    signature = score.signature.replace("|", settings, 1)
    name = f"{prefix}{score.name}"
    line = (
        f"{name} = {_shown(estimates[0])} baseline = {_shown(estimates[1])} "
        f"difference = {difference:+.2f} p = {p:.4f} resampled = {len(system)} "
        f"signature: {signature}"
    )
    return line, {
        "metric": name,
        "system": estimates[0],
        "baseline": estimates[1],
        "p_value": p,
        "num_segments": len(system),
        "signature": signature,
        "difference": difference,
    }


def _estimate(system: SegmentStatistics, scores: np.ndarray) -> dict[str, float]:
    interval = resampling_interval(scores)
    return {"value": system.score(), "mean": float(scores.mean()), "interval": interval}


def _seed() -> int | None:
    """Return the seed of the environment, or None for another seed in each run."""
    seed = os.environ.get("SACREBLEU_SEED", str(DEFAULT_SEED)).lower()
    if not seed.isdecimal() and seed != "none":
        raise ConfigError(f"SACREBLEU_SEED={seed}: expected a number, or none for a random seed")
    return None if seed == "none" else int(seed)


def _shown(estimate: dict[str, float]) -> str:
    return "{value:.2f} (mean = {mean:.2f} +- {interval:.2f})".format(**estimate)

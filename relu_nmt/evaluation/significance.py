"""Whether one system is better than another: paired bootstrap, by sacreBLEU."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.evaluation.bleu import MetricConfig

DEFAULT_SAMPLES = 1000


@dataclass(frozen=True)
class BootstrapEstimate:
    """A score, and how it varies over bootstrap resamples of the segments.

    Args:
        value: score of all segments, 0 to 100.
        mean: mean over the resamples.
        interval: half the width of the interval that holds 95% of them.
    """

    value: float
    mean: float
    interval: float

    def __str__(self) -> str:
        return f"{self.value:.2f} (mean = {self.mean:.2f} +- {self.interval:.2f})"


@dataclass(frozen=True)
class Comparison:
    """One system against another on the same segments.

    Args:
        metric: name of the score: ``d-BLEU``.
        system: score of the system.
        baseline: score of the other one.
        p_value: how often resampling alone gives a difference this large.
        num_segments: what was resampled: documents or lines.
        signature: sacreBLEU's, with the resamples and their seed.
    """

    metric: str
    system: BootstrapEstimate
    baseline: BootstrapEstimate
    p_value: float
    num_segments: int
    signature: str

    @property
    def difference(self) -> float:
        """Score of the system less that of the baseline."""
        return self.system.value - self.baseline.value

    def __str__(self) -> str:
        return (
            f"{self.metric} = {self.system} baseline = {self.baseline} "
            f"difference = {self.difference:+.2f} p = {self.p_value:.4f} "
            f"resampled = {self.num_segments} signature: {self.signature}"
        )


def paired_bootstrap(
    metric: MetricConfig,
    system: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[Sequence[str]],
    samples: int = DEFAULT_SAMPLES,
    prefix: str = "",
) -> Comparison:
    """Compare two systems by resampling segments, the same for both.

    The seed is sacreBLEU's: the environment variable ``SACREBLEU_SEED``, 12345 by default.

    Args:
        metric: metric and its settings.
        system: a segment each: lines, or whole documents as of
            :func:`relu_nmt.evaluation.document_scores.join_lines`.
        baseline: the other system's, as many.
        references: one or more sets.
        samples: bootstrap resamples.
        prefix: goes before the metric's name: ``d-`` where segments are documents.

    Raises:
        DataError: numbers of segments differ, or there are none.
        ConfigError: no resamples, or a seed that is no number.

    Reference: Koehn 2004, "Statistical significance tests for machine translation evaluation";
    the p-value as sacreBLEU computes it. Deviation: of two systems with the same output it is 1.
    """
    from sacrebleu.significance import PairedTest

    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if not seed.isdecimal() and seed.lower() != "none":
        raise ConfigError(f"SACREBLEU_SEED={seed}: expected a number, or none for another each run")
    if samples < 1:
        raise ConfigError(f"--paired-bs-n {samples}: expected 1 or more resamples")
    if not system:
        raise DataError("no lines to compare")
    for lines in (baseline, *references):
        if len(lines) != len(system):
            raise DataError(
                f"{len(system):,} segments of the system, but {len(lines):,} of the baseline or a "
                "reference; all need the same segments in the same order"
            )
    test = PairedTest(
        [("baseline", list(baseline)), ("system", list(system))],
        {metric.name: metric.build()},
        [list(lines) for lines in references],
        test_type="bs",
        n_samples=samples,
    )
    signatures, scores = test()
    [(name, signature)] = signatures.items()
    estimates = [BootstrapEstimate(r.score, float(r.mean), float(r.ci)) for r in scores[name]]
    p_value = 1.0 if list(system) == list(baseline) else float(scores[name][1].p_value)
    return Comparison(
        f"{prefix}{name}", estimates[1], estimates[0], p_value, len(system), str(signature)
    )

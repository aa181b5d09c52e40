"""Intervals and tests are those of sacreBLEU where there is one seed."""

import random

import numpy as np
import pytest

from relu_nmt.evaluation import document_scores as docs
from relu_nmt.evaluation.bleu import MetricConfig
from relu_nmt.evaluation.significance import paired_bootstrap
from relu_nmt.sweep.document_counts import bleu_of, count_documents, stored_counts
from relu_nmt.sweep.statistics import (
    bootstrap_scores,
    document_interval,
    p_value,
    seed_interval,
)


@pytest.fixture(scope="module")
def texts():
    """References and two systems, 12 documents."""
    rng = random.Random(3)
    references = [
        [" ".join(f"w{rng.randint(0, 50)}" for _ in range(9)) for _ in range(1 + i % 5)]
        for i in range(12)
    ]
    systems = [
        [
            [" ".join(w if rng.random() < right else "x" for w in line.split()) for line in lines]
            for lines in references
        ]
        for right in (0.8, 0.84)
    ]
    return references, systems


def test_intervals_and_p_value_are_sacrebleus(texts):
    references, (baseline, system) = texts
    metric = MetricConfig()
    joined = [docs.join_lines(lines) for lines in (system, baseline, references)]
    expected = paired_bootstrap(metric, joined[0], joined[1], [joined[2]])
    counts = [count_documents(lines, references, metric) for lines in (system, baseline)]
    own, base = bootstrap_scores(counts)
    assert bleu_of(counts[0].sum(0)) == pytest.approx(expected.system.value)
    # sacreBLEU sums its counts in 32 bits.
    assert own.mean() == pytest.approx(expected.system.mean, abs=1e-4)
    assert document_interval(own) == pytest.approx(expected.system.interval, abs=1e-4)
    found = p_value(own, base, expected.difference)
    assert found == pytest.approx(expected.p_value, abs=2e-3)
    assert 0 < found < 0.5


def test_the_same_system_is_not_better():
    scores = np.array([1.0, 2.0, 3.0])
    assert p_value(scores, scores, 0.0) == 1.0


def test_the_interval_over_seeds_is_students():
    assert seed_interval([30.0]) is None
    assert seed_interval([30.0, 30.0]) == 0.0
    # t of 2 degrees of freedom is 4.303, the standard error 1 / sqrt(3).
    assert seed_interval([29.0, 30.0, 31.0]) == pytest.approx(4.303 / 3**0.5)
    many = [float(i % 2) for i in range(100)]
    assert seed_interval(many) == pytest.approx(1.96 * np.std(many, ddof=1) / 10)


def test_counts_are_kept_beside_the_translation(texts, tmp_path):
    references, (system, _) = texts
    system = [[""], *system[1:]]  # an empty translation is still a document
    path = tmp_path / "evaluate-8.txt"
    path.write_text("".join("<d>\n" + "".join(f"{x}\n" for x in lines) for lines in system))
    signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
    expected = docs.document_score(MetricConfig(), system, [references])
    counts = stored_counts(path, references, signature, "run 1")
    assert bleu_of(counts.sum(0)) == pytest.approx(expected.value)
    path.unlink()
    assert (stored_counts(path, references, signature, "run 1") == counts).all()
    path.write_text("".join("<d>\nx\n" for _ in references))
    assert stored_counts(path, references, signature, "run 2")[:, 0].sum() == 0

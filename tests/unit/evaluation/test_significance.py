import numpy as np
import pytest

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.evaluation.bleu import MetricConfig, corpus_bleu
from relu_nmt.evaluation.significance import paired_bootstrap


def made_systems(count=40):
    """Return references, a system with some words wrong, and one with many."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(30)])
    references = [rng.choice(words, 20) for _ in range(count)]
    systems = [
        [np.where(rng.random(20) < wrong, "x", line) for line in references] for wrong in (0.1, 0.3)
    ]
    return [[" ".join(line) for line in side] for side in (references, *systems)]


def test_resamples_are_of_whole_segments():
    references, better, worse = made_systems(6)
    found = paired_bootstrap(MetricConfig(), better, worse, [references], samples=30, prefix="d-")
    lots = np.random.default_rng(12345).choice(6, size=(30, 6), replace=True)
    for lines, estimate in ((better, found.system), (worse, found.baseline)):
        scores = [
            corpus_bleu([lines[i] for i in row], [[references[i] for i in row]]).value
            for row in lots
        ]
        assert estimate.mean == pytest.approx(np.mean(scores), abs=1e-3)
        assert estimate.value == pytest.approx(corpus_bleu(lines, [references]).value)
    assert found.metric == "d-BLEU"
    assert found.num_segments == 6
    assert "bs:30|seed:12345" in found.signature
    assert str(found).startswith(f"d-BLEU = {found.system.value:.2f} (mean = ")


def test_a_better_system_is_told_from_an_equal_one():
    references, better, worse = made_systems()
    forth = paired_bootstrap(MetricConfig(), better, worse, [references], samples=200)
    back = paired_bootstrap(MetricConfig(), worse, better, [references], samples=200)
    assert forth.p_value < 0.01
    assert forth.difference > 5
    assert (back.p_value, back.difference) == (forth.p_value, -forth.difference)
    same = paired_bootstrap(MetricConfig("chrf"), better, better, [references], samples=200)
    assert (same.p_value, same.difference, same.metric) == (1.0, 0.0, "chrF2")
    # One other word in one line is no evidence.
    almost = [*better[:-1], better[-1].replace("x", "y")[:-1] + "y"]
    assert paired_bootstrap(MetricConfig(), almost, better, [references]).p_value > 0.1


def test_what_cannot_be_compared():
    with pytest.raises(ConfigError, match="--paired-bs-n 0"):
        paired_bootstrap(MetricConfig(), ["a"], ["a"], [["a"]], samples=0)
    with pytest.raises(DataError, match="1 segments of the system, but 2"):
        paired_bootstrap(MetricConfig(), ["a"], ["a", "b"], [["a"]])
    with pytest.raises(DataError, match="no lines"):
        paired_bootstrap(MetricConfig(), [], [], [[]])


def test_a_seed_that_is_no_number(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "first")
    with pytest.raises(ConfigError, match="SACREBLEU_SEED=first: expected a number"):
        paired_bootstrap(MetricConfig(), ["a"], ["a"], [["a"]])

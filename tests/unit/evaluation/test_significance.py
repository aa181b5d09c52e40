import json

import numpy as np
import pytest

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.evaluation.metrics import Metric
from relu_nmt.evaluation.significance import (
    SegmentStatistics,
    mean_interval,
    p_value,
    paired_bootstrap,
    resampled_scores,
)


def made_systems(count=40):
    """Return references, a system with some words wrong, and one with many."""
    rng = np.random.default_rng(0)
    words = np.array(list(map("w{}".format, range(30))))
    references = rng.choice(words, (count, 20))
    better = np.where(rng.random((count, 20)) < 0.1, "x", references)
    worse = np.where(rng.random((count, 20)) < 0.3, "x", references)
    return [list(map(" ".join, side)) for side in (references, better, worse)]


def test_resamples_are_of_whole_segments():
    references, better, worse = made_systems(6)
    line, record = paired_bootstrap(Metric(), better, worse, [references], samples=30, prefix="d-")
    lots = np.random.default_rng(12345).choice(6, size=(30, 6), replace=True)
    for lines, estimate in ((better, record["system"]), (worse, record["baseline"])):
        scores = []
        for row in lots:
            drawn = np.array([lines, references])[:, row].tolist()
            scores.append(Metric().score(drawn[0], drawn[1:]).value)
        assert estimate["mean"] == pytest.approx(np.mean(scores), abs=1e-3)
        assert estimate["value"] == pytest.approx(Metric().score(lines, [references]).value)
    assert record["metric"] == "d-BLEU"
    assert record["num_segments"] == 6
    assert "bs:30|seed:12345" in record["signature"]
    assert line.startswith(f"d-BLEU = {record['system']['value']:.2f} (mean = ")


def test_a_better_system_is_significant_and_an_equal_one_is_not():
    references, better, worse = made_systems()
    _, forth = paired_bootstrap(Metric(), better, worse, [references], samples=200)
    _, back = paired_bootstrap(Metric(), worse, better, [references], samples=200)
    assert forth["p_value"] < 0.01
    assert forth["difference"] > 5
    assert (back["p_value"], back["difference"]) == (forth["p_value"], -forth["difference"])
    _, same = paired_bootstrap(Metric("chrf"), better, better, [references], samples=200)
    assert (same["p_value"], same["difference"], same["metric"]) == (1.0, 0.0, "chrF2")
    # One other word in one line is no evidence.
    almost = [*better[:-1], better[-1].replace("x", "y")[:-1] + "y"]
    assert paired_bootstrap(Metric(), almost, better, [references])[1]["p_value"] > 0.1


def test_texts_that_cannot_be_compared_are_errors():
    with pytest.raises(ConfigError, match="--paired-bs-n 0"):
        paired_bootstrap(Metric(), ["a"], ["a"], [["a"]], samples=0)
    with pytest.raises(DataError, match="1 segments of the system, but 2"):
        paired_bootstrap(Metric(), ["a"], ["a", "b"], [["a"]])
    with pytest.raises(DataError, match="no lines"):
        paired_bootstrap(Metric(), [], [], [[]])


def test_a_seed_that_is_no_number_is_an_error(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "first")
    with pytest.raises(ConfigError, match="SACREBLEU_SEED=first: expected a number"):
        paired_bootstrap(Metric(), ["a"], ["a"], [["a"]])


@pytest.mark.parametrize("metric", [Metric(), Metric("chrf", word_order=2), Metric("ter")])
def test_the_numbers_equal_those_of_sacrebleu(metric):
    from sacrebleu.significance import PairedTest

    references, better, worse = made_systems(30)
    references = [references, [line[::-1] for line in references]]
    almost = [line.replace("w1 ", "x ") for line in better]
    assert almost != better
    for other in (worse, almost):
        _, record = paired_bootstrap(metric, better, other, references, samples=300)
        test = PairedTest(
            [("baseline", other), ("system", better)],
            {"score": metric.build()},
            references,
            test_type="bs",
            n_samples=300,
        )
        signatures, scores = test()
        [(name, signature)] = signatures.items()
        assert (record["metric"], record["signature"]) == (name, str(signature))
        assert record["p_value"] == scores[name][1].p_value
        for side, expected in zip(("baseline", "system"), scores[name], strict=True):
            score = record[side]
            assert score["value"] == pytest.approx(expected.score)
            # sacreBLEU sums its counts in 32 bits.
            assert score["mean"] == pytest.approx(expected.mean, abs=1e-4)
            assert score["interval"] == pytest.approx(expected.ci, abs=1e-4)


def test_several_systems_share_their_resamples():
    references, better, worse = made_systems(8)
    texts = better, worse
    statistics = [SegmentStatistics.of(Metric(), text, [references]) for text in texts]
    scores = resampled_scores([*statistics, statistics[0]], samples=50)
    assert scores.shape == (3, 50)
    assert (scores[0] == scores[2]).all()
    assert (scores[0] > scores[1]).all()
    assert (resampled_scores(statistics[1:], samples=50) == scores[1]).all()
    assert statistics[0].score([2, 5]) == pytest.approx(
        Metric().score([better[2], better[5]], [[references[2], references[5]]]).value
    )


def test_the_same_system_is_not_better():
    scores = np.array([1.0, 2.0, 3.0])
    assert p_value(scores, scores, 0.0) == 1.0


def test_the_interval_of_a_mean_follows_students_t():
    assert mean_interval([30.0]) is None
    assert mean_interval([30.0, 30.0]) == 0.0
    # t of 2 degrees of freedom is 4.303, the standard error 1 / sqrt(3).
    assert mean_interval([29.0, 30.0, 31.0]) == pytest.approx(4.303 / 3**0.5)
    many = [0.0, 1.0] * 50
    assert mean_interval(many) == pytest.approx(1.96 * np.std(many, ddof=1) / 10)


def test_statistics_come_back_from_json():
    metric = Metric(smooth="none", lowercase=True)
    texts = ["a dog is here .", "it barks"]
    statistics = SegmentStatistics.of(metric, texts, [["a dog was here .", "it sleeps"]])
    again = SegmentStatistics.from_json(json.loads(json.dumps(statistics.to_json())))
    assert again.metric == statistics.metric
    assert again.counts.tolist() == statistics.counts.tolist()
    with pytest.raises(DataError, match="compute it again"):
        SegmentStatistics.from_json({"metric": {"name": "rouge"}, "counts": []})
    with pytest.raises(DataError, match="compute it again"):
        SegmentStatistics.from_json({**statistics.to_json(), "counts": [[10**30]]})

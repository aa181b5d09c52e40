import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from relu_nmt.applications.attention_statistics import AttentionStatistics
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.translate.settings import TranslateSplitSettings
from relu_nmt.jobs.translate.split import AttentionReport
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.base import Ensemble, StepDecoder
from relu_nmt.translator import attention_maps
from relu_nmt.translator.attention_maps import attention_weights
from tests.tiny import EOS
from tests.unit.applications.analysis.models import make_model

SLOTS = ("encoder", "decoder", "cross")
RNG = np.random.default_rng(0)
SOURCES = [np.append(RNG.integers(4, 8, n), EOS) for n in (3, 9, 1, 5)]
TARGETS = [np.append(RNG.integers(4, 8, n), EOS) for n in (4, 2, 0, 7)]


def report_of(model):
    statistics = AttentionStatistics(Ensemble([StepDecoder(model)]))
    statistics.add(SOURCES[:3], TARGETS[:3])
    statistics.add(SOURCES[3:], TARGETS[3:])
    return statistics.report()


def rows_of(model, slot, layer, head):
    """Yield the weights that each query row sees, from maps of single sentences."""
    for source, target in zip(SOURCES, TARGETS, strict=True):
        where = AttentionPlace(slot, layer, head)
        weights = attention_weights(Ensemble([StepDecoder(model)]), [where], source, target)[0]
        for i, row in enumerate(weights.astype(np.float64)):
            yield row[: i + 1] if slot == "decoder" else row


def entropy(row):
    shares = row[row > 0] / row.sum()
    return -(shares * np.log(shares)).sum() if row.sum() > 1e-6 else 0.0


def test_few_short_sentences_are_in_memory_at_once(monkeypatch):
    monkeypatch.setattr(attention_maps, "MOST_TOKENS", 12)
    statistics = AttentionStatistics(Ensemble([StepDecoder(make_model("softmax"))]))
    read = []
    decoder_inputs = attention_maps.decoder_inputs

    def noted(sources, targets, ensemble):
        read.append(len(sources) * max(map(len, [*sources, *targets])))
        return decoder_inputs(sources, targets, ensemble)

    monkeypatch.setattr(attention_maps, "decoder_inputs", noted)
    sentence = np.array([5, 6, EOS])
    statistics.add([sentence] * 10, [sentence] * 10)
    assert read == [12, 12, 6]


@pytest.mark.parametrize("has_references", [True, False], ids=["references", "no references"])
def test_attention_is_measured_after_all_translations(tmp_path, monkeypatch, has_references):
    """So that time and memory of the translation are its own."""
    translator = SimpleNamespace(ensemble=Ensemble([StepDecoder(make_model("softmax"))]))
    path = tmp_path / "stats.json"
    calls = []
    monkeypatch.setattr(AttentionStatistics, "add", lambda _, *lists: calls.append(lists))
    settings = TranslateSplitSettings.of(data="data", path="model", attention_stats=str(path))
    report = AttentionReport(settings, translator)
    outputs = [SimpleNamespace(hypothesis=SimpleNamespace(ids=target)) for target in TARGETS]
    references = TARGETS[::-1] if has_references else [None] * len(TARGETS)
    pairs = zip(SOURCES, references, strict=True)
    for (source, reference), translation in zip(pairs, outputs, strict=True):
        report.add(SimpleNamespace(ids=source, reference=reference), translation)
    assert not calls
    report.write()
    [(sources, targets)] = calls
    assert all(map(np.array_equal, sources, SOURCES))
    assert all(map(np.array_equal, targets, TARGETS[::-1] if has_references else TARGETS))


@pytest.mark.parametrize("attention", ["softmax", "reluformer"])
@pytest.mark.parametrize("most_weights", [1, 2**25])
def test_means_equal_those_of_the_weights_of_each_sentence(attention, most_weights, monkeypatch):
    monkeypatch.setattr(attention_maps, "MOST_WEIGHTS", most_weights)  # batches of 1 or all
    model = make_model(attention)
    report = report_of(model)
    assert report["sentences"] == 4
    assert report["attention"] == dict.fromkeys(SLOTS, attention)
    assert not report["without_weights"]
    measures = {
        "sum": np.sum,
        "entropy": entropy,
        "zero_fraction": lambda row: np.mean(row == 0),
        "null_fraction": lambda row: row.sum() <= 1e-6,
        "largest": np.max,
        "mean_log_n": lambda row: math.log(len(row)),
    }
    rows_at = {}
    for place in itertools.product(SLOTS, range(2), range(2)):
        rows_at[place] = list(rows_of(model, *place))
    for name, measure in measures.items():
        in_slots = {slot: [] for slot in SLOTS}
        for slot in SLOTS:
            for layer in range(2):
                heads = []
                for head in range(2):
                    heads.append(np.mean(list(map(measure, rows_at[slot, layer, head]))))
                module = report["modules"][f"{slot}.{layer}"]
                if name != "mean_log_n":
                    values = [head[name] for head in module["heads"]]
                    np.testing.assert_allclose(values, heads, atol=1e-5)
                assert module["mean"][name] == pytest.approx(np.mean(heads), abs=1e-5)
                in_slots[slot].append(np.mean(heads))
        for slot, means in in_slots.items():
            assert report["slots"][slot][name] == pytest.approx(np.mean(means), abs=1e-5)
        overall = np.mean(list(in_slots.values()))
        assert report["overall"][name] == pytest.approx(overall, abs=1e-5)
    overall = report["overall"]
    assert overall["exp_entropy"] == pytest.approx(math.exp(overall["entropy"]))
    json.dumps(report, allow_nan=False)


def test_rows_by_number_of_visible_keys():
    model = make_model()
    report = report_of(model)
    module = report["modules"]["decoder.1"]
    buckets = module["by_visible_keys"]
    rows_by_bucket = {name: bucket["rows"] for name, bucket in buckets.items()}
    assert rows_by_bucket == {"1": 4, "2-3": 2 + 2 + 2, "4-7": 2 + 4, "8-15": 1}
    rows = [*rows_of(model, "decoder", 1, 0), *rows_of(model, "decoder", 1, 1)]
    expected = np.mean([entropy(row) for row in rows if 4 <= len(row) <= 7])
    assert buckets["4-7"]["entropy"] == pytest.approx(expected, abs=1e-5)
    assert module["rows"] == sum(map(len, TARGETS))
    assert "by_visible_keys" not in report["modules"]["cross.0"]


def test_a_report_of_no_sentences_is_empty():
    report = AttentionStatistics(Ensemble([StepDecoder(make_model())])).report()
    assert (report["sentences"], report["modules"], report["overall"]) == (0, {}, {})


def test_an_ensemble_is_an_error():
    model = make_model()
    with pytest.raises(ConfigError, match="one model only"):
        AttentionStatistics(Ensemble([StepDecoder(model), StepDecoder(model)]))

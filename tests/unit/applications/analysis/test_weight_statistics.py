"""Statistics of the weights, against plain loops over the weights of single sentences."""

import math
import weakref
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
import torch

from relu_nmt.applications import weight_statistics as analysis
from relu_nmt.applications.statistics import ANALYZED
from relu_nmt.applications.weight_statistics import PERCENTS, WeightStatistics, sentence_numbers
from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.attention.sentences import in_documents
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import ConfigError
from relu_nmt.translation.base import Ensemble, StepDecoder
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from tests.outputs import column, select, values
from tests.tiny import EOS, PAD, tiny_config
from tests.unit.applications.analysis.models import make_model

SEP = 8
WORDS = Dictionary([",", "das", "Haus", "gross", "<sep>"])
RNG = np.random.default_rng(0)
SIZES = [([4, 3], [5, 2]), ([6], [3]), ([2, 9, 3], [3, 4, 6]), ([1], [1])]
SLOTS = ("encoder", "decoder", "cross")


def joined(sizes, separated):
    """Return made-up sentences, each with its end symbol counted, as one row of token ids."""
    rows = []
    for size in sizes:
        words = RNG.integers(4, 8, size - 1)
        rows.append(np.append(words[1:], SEP) if separated and size > 1 else words)
    return np.append(np.concatenate(rows), EOS)


def pairs_of(separated):
    sources, targets = zip(*SIZES, strict=True)
    numbers = []
    for sizes in SIZES:
        of_source, of_target = map(np.array, sizes)
        numbers.append(
            (sentence_numbers(of_source, separated), sentence_numbers(of_target, separated))
        )
    join = partial(joined, separated=separated)
    return list(map(join, sources)), list(map(join, targets)), numbers


def statistics_of(model, pairs):
    sources, targets, numbers = pairs
    statistics = WeightStatistics(Ensemble([StepDecoder(model)]), (WORDS, WORDS))
    statistics.add(sources[:3], targets[:3], numbers[:3])
    statistics.add(sources[3:], targets[3:], numbers[3:])
    return statistics.records()


def shares_of(row):
    """Return the shares of the weights in the sum of their sizes, or zeros for a row of zeros."""
    total = np.abs(row).sum()
    return np.abs(row) / total if total > 1e-6 else np.zeros(len(row))


def entropy(shares):
    shares = shares[shares > 0]
    return -(shares * np.log(shares)).sum()


def expected(model, pairs, positive=True):
    """Return lists of the values of rows by (slot, visible keys, layer), head and statistic."""
    values_by_head = defaultdict(lambda: defaultdict(list))
    for source, target, (of_source, of_target) in zip(*pairs, strict=True):
        inputs = torch.from_numpy(source)[None], torch.from_numpy(np.append(EOS, target[:-1]))[None]
        with torch.no_grad(), record_attention(model, Need(weights=True)) as records:
            model(*inputs)
        for record in records:
            weights = in_documents(record.weights, record.visibility)
            queries = of_source if record.slot == "encoder" else of_target
            keys = of_target if record.slot == "decoder" else of_source
            tokens = inputs[record.slot == "decoder"][0].numpy()
            sees = "all" if record.visibility.sentences is None else "sentence"
            for head, table in enumerate(weights[0].double().numpy()):
                for i, row in enumerate(table):
                    visible = np.arange(i + 1 if record.slot == "decoder" else len(row))
                    if sees == "sentence":  # the last one has the rest
                        visible = visible[keys[visible] == min(queries[i], max(keys))]
                    neighbors = np.flatnonzero(queries == queries[i]).tolist()
                    position = neighbors.index(i) if sees == "sentence" else i
                    number = len(neighbors) if sees == "sentence" else len(queries)
                    if record.slot == "cross":
                        position *= len(visible) / number
                    outside = keys[visible] != queries[i]
                    values = row_values(row[visible], tokens[visible], outside, position, positive)
                    for name, value in values.items():
                        values_by_head[record.slot, sees, record.layer, head][name].append(value)
    return values_by_head


def row_values(row, tokens, outside, position, positive):
    """Return the statistics of one row over its visible keys, by their definitions."""
    shares = shares_of(row)
    n = len(row)
    values = {
        "sum": row.sum(),
        "zero_fraction": np.mean(row == 0),
        "null_fraction": float(not shares.any()),
        "nonzero_keys": np.count_nonzero(row),
        "mean_log_n": math.log(n),
    }
    if positive:
        values["entropy"] = entropy(shares)
        values["raw_entropy"] = entropy(row)
    if not shares.any():
        return values
    if abs(row.sum()) > 1e-6:
        values["abs_log_sum"] = abs(math.log(abs(row.sum())))
    if positive:
        values["entropy_with_weight"] = entropy(shares)
        values["mean_exp_entropy"] = math.exp(entropy(shares))
        if n > 1:
            values["relative_entropy"] = entropy(shares) / math.log(n)
    for name, kind in (("punctuation", [4]), ("frequent", [5, 6, 7]), ("ends", [EOS, SEP])):
        values[name] = shares[np.isin(tokens, kind)].sum()
    values["outside"] = shares[outside].sum()
    distances = np.abs(np.arange(n) - position)
    values["distance"] = (shares * distances).sum()
    if n >= 10:
        values["diagonal"] = shares[distances < 1].sum()
        values["neighbors"] = shares[(distances >= 1) & (distances < 3)].sum()
        values["first"] = shares[0]
    ranked = np.sort(shares)[::-1]
    values["largest_share"] = ranked[0]
    for percent in PERCENTS:
        rank = math.ceil(round(percent * n / 100, 6))
        values[f"top_sum {percent}"] = ranked[:rank].sum()
        values[f"share_at_rank {percent}"] = ranked[rank - 1]
    return values


def flat(record):
    values = {name: record[name] for name in ANALYZED if name in record}
    for name in ("top_sum", "share_at_rank"):
        values |= {f"{name} {percent}": value for percent, value in record[name].items()}
    for derived in ("entropy_bits", "exp_entropy", "mean_of_heads_entropy"):
        values.pop(derived, None)
    return values


def check(records, rows):
    heads = [record for record in records if record["head"] != "mean"]
    assert len(heads) == len(rows)
    for record in heads:
        head = record["slot"], record["sees"], record["layer"], record["head"]
        means = {name: np.mean(values) for name, values in rows[head].items()}
        assert flat(record) == pytest.approx(means, abs=1e-9), head
        assert record["rows"] == len(rows[head]["sum"])


@pytest.mark.parametrize("attention", ["softmax", "reluformer", "polynomial:power=3"])
@pytest.mark.parametrize("max_weights", [1, 60, 2**21])
def test_means_equal_those_of_the_weights_of_each_sentence(attention, max_weights, monkeypatch):
    monkeypatch.setattr(analysis, "WEIGHTS_AT_ONCE", max_weights)  # a row at a time, some, or all
    model = make_model(attention).double()
    pairs = pairs_of(separated=False)
    records = statistics_of(model, pairs)
    positive = not attention.startswith("polynomial")
    check(records, expected(model, pairs, positive))
    assert all(("entropy" in record) == positive for record in records)


@pytest.mark.parametrize("attention", ["softmax", "reluformer"])
def test_attention_to_the_own_sentence_and_to_the_document_have_separate_records(attention):
    torch.manual_seed(0)
    document = {"document_attention": "aligned", "global_layers": 1}
    config = tiny_config({"layers": 2}, attention=attention, **document)
    model = EncoderDecoder(config, len(WORDS), len(WORDS), PAD, (SEP, SEP)).eval().double()
    pairs = pairs_of(separated=True)
    # Without its separator the empty last one would not count as a sentence.
    statistics = WeightStatistics(Ensemble([StepDecoder(model)]), (WORDS, WORDS))
    sources, targets, numbers = (part[:3] for part in pairs)
    statistics.add(sources, targets, numbers)
    head_records = statistics.records()
    check(head_records, expected(model, (sources, targets, numbers)))
    assert {(r["sees"], r["layer"]) for r in head_records if r["layer"] != "mean"} == {
        *[("sentence", 0), ("sentence", 1)],
        ("all", 1),
    }
    inside = column(select(head_records, sees="sentence"), "outside")
    assert not any(inside)


def place_of(record):
    return record["slot"], record["layer"], record["head"]


def test_means_over_heads_and_layers_and_values_derived_from_the_entropy():
    records = statistics_of(make_model("reluformer"), pairs_of(separated=False))
    by_head = {place_of(record): record for record in records}
    for slot in SLOTS:
        for name in ("sum", "entropy", "distance"):
            layers = [by_head[slot, layer, "mean"][name] for layer in range(2)]
            heads = [by_head[slot, 1, head][name] for head in range(2)]
            assert layers[1] == pytest.approx(np.mean(heads))
            assert by_head[slot, "mean", "mean"][name] == pytest.approx(np.mean(layers))
    for record in records:
        assert record["exp_entropy"] == pytest.approx(math.exp(record["entropy"]))
        assert record["entropy_bits"] == pytest.approx(record["entropy"] / math.log(2))
        assert record["top_sum"][100] == pytest.approx(1)


def test_the_entropy_of_the_mean_of_heads():
    model = make_model("reluformer")
    pairs = pairs_of(separated=False)
    by_head = {place_of(record): record for record in statistics_of(model, pairs)}
    values = []
    for source, target in zip(*pairs[:2], strict=True):
        inputs = torch.from_numpy(source)[None], torch.from_numpy(np.append(EOS, target[:-1]))[None]
        with torch.no_grad(), record_attention(model, Need(weights=True)) as records:
            model(*inputs)
        for row in records[0].weights[0].double().mean(0).numpy():
            if shares_of(row).any():
                values.append(entropy(shares_of(row)))
    assert by_head["encoder", 0, "mean"]["mean_of_heads_entropy"] == pytest.approx(np.mean(values))
    assert "mean_of_heads_entropy" not in by_head["encoder", 0, 0]


def test_weights_of_one_mechanism_at_a_time_are_in_memory(monkeypatch):
    """Weights are dropped layer by layer: all layers would fill the memory."""
    earlier = []
    take = WeightStatistics._take

    def noting(self, attention, queries, keys, record):
        assert not any(weights() is not None for weights in earlier)
        take(self, attention, queries, keys, record)
        earlier.append(weakref.ref(record.weights))

    monkeypatch.setattr(WeightStatistics, "_take", noting)
    sources, targets, _ = pairs_of(separated=False)
    statistics = WeightStatistics(Ensemble([StepDecoder(make_model("softmax"))]), (WORDS, WORDS))
    statistics.add(sources, targets)
    assert len(earlier) == 6


def test_records_go_to_the_given_function():
    model = make_model("softmax")
    received = []
    with torch.no_grad(), record_attention(model, Need(weights=True), received.append) as records:
        model(torch.tensor([[4, 5, EOS]]), torch.tensor([[EOS, 5]]))
    assert not records and len(received) == 6


def test_a_mechanism_without_weights_is_left_out():
    slots = {"encoder_attention": "nystromformer", "cross_attention": "linformer"}
    statistics = WeightStatistics(
        Ensemble([StepDecoder(make_model("softmax", **slots))]), (WORDS, WORDS)
    )
    assert statistics.without_weights == ("encoder", "cross")
    sources, targets, _ = pairs_of(separated=False)
    statistics.add(sources, targets)
    records = statistics.records()
    assert set(values(records, "slot")) == {"decoder"}
    assert not values(records, "outside")


@pytest.mark.parametrize("attention", ["linear", "sima", "entmax15", "rela", "efficient"])
def test_statistics_of_every_registered_attention(attention):
    encoder_only = attention in ("sima", "efficient")
    model = make_model("softmax" if encoder_only else attention, encoder_attention=attention)
    pairs = pairs_of(separated=False)
    positive = attention != "sima"
    rows = expected(model.double(), pairs, positive)
    encoder = select(statistics_of(model, pairs), slot="encoder")
    check(encoder, {head: values for head, values in rows.items() if head[0] == "encoder"})


def test_an_ensemble_is_an_error():
    model = make_model()
    with pytest.raises(ConfigError, match="one model only"):
        WeightStatistics(Ensemble([StepDecoder(model), StepDecoder(model)]), (WORDS, WORDS))

"""Statistics of memories and of branches, against plain loops in float64."""

import collections
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from relu_nmt.applications import layer_statistics as statistics
from relu_nmt.applications.layer_statistics import BRANCHES, PERCENTS, LayerStatistics, anisotropy
from relu_nmt.errors import ConfigError
from relu_nmt.modules.transformer_layer import Residual
from relu_nmt.translation.base import Ensemble, StepDecoder
from tests.tiny import EOS, PAD
from tests.unit.applications.analysis.models import make_model

RNG = np.random.default_rng(0)
SOURCES = [np.append(RNG.integers(4, 8, n), EOS) for n in (3, 9, 1, 5)]
TARGETS = [np.append(RNG.integers(4, 8, n), EOS) for n in (4, 2, 0, 7)]
SHIFTED = [np.append(EOS, target[:-1]) for target in TARGETS]


def memory_statistics(model, batches):
    memories = LayerStatistics(Ensemble([StepDecoder(model)]), memories_only=True)
    for batch in batches:
        memories.add_batch(*batch)
    return memories.report()


def make(feed_forward, before=False, **settings):
    sides = {f"{side}_normalize_before": before for side in ("encoder", "decoder")}
    model = make_model("softmax", feed_forward=feed_forward, **sides, **settings).double()
    with torch.no_grad():
        for parameter in model.parameters():  # what starts at 0 or 1 must count, too
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def report_of(model):
    statistics = LayerStatistics(Ensemble([StepDecoder(model)]), True)
    statistics.add(SOURCES[:3], TARGETS[:3])
    statistics.add(SOURCES[3:], TARGETS[3:])
    return statistics.report()


def batch_of(number):
    return torch.tensor(SOURCES[number])[None], torch.tensor(SHIFTED[number])[None]


def tokens_of(model, monkeypatch):
    """Return the inputs of each residual branch and of its network, each sentence read alone."""
    tokens = {}

    def note(residual, name):
        def before(x, original=residual.before):
            y = original(x)
            tokens.setdefault(name, []).extend(zip(x[0], y[0], strict=True))
            return y

        monkeypatch.setattr(residual, "before", before)

    for side in ("encoder", "decoder"):
        for i, layer in enumerate(getattr(model, side).layers):
            note(layer.feed_forward_residual, f"{side}.{i}")
    with torch.no_grad():
        for number in range(len(SOURCES)):
            model(*batch_of(number))
    monkeypatch.undo()
    return tokens


def weights_and_output(network, kind, x):
    scores = network.inner.weight @ x
    if kind.startswith("softmax"):
        weights = scores.exp() / scores.exp().sum()
    else:
        weights = (scores + network.inner.bias).relu()
    y = network.outer.bias + weights @ network.outer.weight.T
    if kind.endswith("-ln"):
        deviations = y - y.mean()
        y = deviations / (deviations.square().mean() + 1e-5).sqrt()
        y = y * network.norm.weight + network.norm.bias
    return weights.tolist(), y.tolist()


def mean_cosine(values):
    """Return the mean cosine of all pairs of two vectors that are not 0."""
    rows = values[values.any(1)]
    rows = rows / rows.norm(dim=1, keepdim=True)
    number = len(rows)
    return float((rows @ rows.T).sum() - number) / (number * (number - 1))


@pytest.mark.parametrize("kind", ["relu", "softmax", "softmax-ln", "relu-ln"])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("max_weights", [1, 2**22])
@torch.no_grad()
def test_statistics_equal_the_formulas(kind, before, max_weights, monkeypatch):
    monkeypatch.setattr(statistics, "SORTED_AT_ONCE", max_weights)
    model = make(kind, before)
    if kind.startswith("relu"):  # so that some tokens have no weight at all
        for layer in [*model.encoder.layers, *model.decoder.layers]:
            layer.feed_forward.inner.bias.sub_(1.5 if kind == "relu" else 2.0)
    report = report_of(model)
    assert (report["sentences"], report["feed_forward"]) == (4, kind)
    monkeypatch.undo()
    means = collections.defaultdict(list)
    for name, tokens in tokens_of(model, monkeypatch).items():
        side, number = name.split(".")
        network = getattr(model, side).layers[int(number)].feed_forward
        xs = []
        ys = []
        tops = []
        null = 0
        for x, read in tokens:
            weights, y = weights_and_output(network, kind, read)
            xs += x.tolist()
            ys += y
            if sum(weights) <= 1e-6:
                null += 1
                continue
            ranked = np.sort(weights)[::-1].cumsum() / sum(weights)
            tops.append([ranked[math.ceil(percent * 16 / 100) - 1] for percent in PERCENTS])
        module = report["modules"][name]
        assert (module["tokens"], module["size"]) == (len(tokens), 16)
        assert len(tokens) == sum(map(len, SOURCES if side == "encoder" else TARGETS))
        assert module["variance_ratio"] == pytest.approx(np.var(ys) / np.var(xs), rel=1e-9)
        assert module["anisotropy"] == pytest.approx(mean_cosine(network.outer.weight.T), abs=1e-9)
        assert module["null_fraction"] == pytest.approx(null / len(tokens))
        assert list(module["top_sums"].values()) == pytest.approx(np.mean(tops, 0), rel=1e-9)
        assert list(module["top_sums"]) == list(map(str, PERCENTS))
        assert module["top_sums"]["100"] == pytest.approx(1)
        for statistic in ("variance_ratio", "anisotropy", "null_fraction"):
            means[statistic].append(module[statistic])
    assert any(0 < fraction < 1 for fraction in means["null_fraction"]) == kind.startswith("relu")
    for statistic, values in means.items():
        assert report["overall"][statistic] == pytest.approx(np.mean(values))
        assert report["sides"]["decoder"][statistic] == pytest.approx(np.mean(values[2:]))
    tops = [module["top_sums"]["10"] for module in report["modules"].values()]
    assert report["overall"]["top_sums"]["10"] == pytest.approx(np.mean(tops))
    json.dumps(report, allow_nan=False)


def padded(rows):
    return nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), True, PAD)


def test_padded_batches_give_the_same_as_single_sentences():
    model = make("softmax")
    source = padded(SOURCES)
    target = padded(SHIFTED)
    single = memory_statistics(model, [(source, target)])
    several = memory_statistics(model, map(batch_of, range(4)))
    assert single["sentences"] == several["sentences"] == 4
    for name, module in single["modules"].items():
        other = several["modules"][name]
        assert module.pop("top_sums") == pytest.approx(other.pop("top_sums"))
        assert module == pytest.approx(other)


def test_dropout_is_off_and_the_model_stays_in_training_mode():
    settings = {"dropout": 0.3, "activation_dropout": 0.5}
    model = make("softmax", **settings).train()
    assert report_of(model) == report_of(make("softmax", **settings))
    assert model.training and model.encoder.layers[0].feed_forward.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_tokens_without_weights_do_not_enter_the_sums():
    model = make("relu")
    network = model.encoder.layers[0].feed_forward
    with torch.no_grad():
        network.inner.bias.fill_(-1e9)
        network.outer.bias.zero_()
    module = report_of(model)["modules"]["encoder.0"]
    assert (module["null_fraction"], module["variance_ratio"]) == (1, 0)
    assert set(module["top_sums"].values()) == {None}
    report = report_of(model)
    json.dumps(report, allow_nan=False)
    other_sums = [part["top_sums"]["5"] for part in report["modules"].values()][1:]
    assert report["overall"]["top_sums"]["5"] == pytest.approx(np.mean(other_sums))


@pytest.mark.parametrize("kind", ["gelu", "swiglu"])
def test_signed_weights_have_no_shares(kind):
    report = report_of(make(kind))
    assert report["overall"].keys() == {"variance_ratio", "anisotropy"}
    assert "top_sums" not in report["modules"]["encoder.0"]


def test_a_report_of_no_sentences_is_empty():
    report = LayerStatistics(Ensemble([StepDecoder(make("relu"))]), True).report()
    assert (report["sentences"], report["modules"], report["overall"]) == (0, {}, {})


def test_impossible_settings_are_errors():
    model = make("relu")
    with pytest.raises(ConfigError, match="one model only"):
        LayerStatistics(Ensemble([StepDecoder(model), StepDecoder(model)]), True)
    model.decoder.layers[1].feed_forward = nn.Linear(16, 16)
    with pytest.raises(ConfigError, match="network Linear is no subclass of FeedForward"):
        LayerStatistics(Ensemble([StepDecoder(model)]), True)


@given(st.integers(2, 20), st.integers(1, 8), st.integers(0, 2**31))
def test_anisotropy_is_between_its_bounds(number, width, seed):
    values = torch.randn(number, width, generator=torch.Generator().manual_seed(seed))
    value = anisotropy(values)
    assert -1 / (number - 1) - 1e-9 <= value <= 1 + 1e-9
    assert value == pytest.approx(mean_cosine(values.double()), abs=1e-9)


def test_anisotropy_of_known_values():
    torch.manual_seed(0)
    # The mean cosine of random rows has the deviation sqrt(2 / width) / number, 9e-5 here.
    assert abs(anisotropy(torch.randn(2000, 64))) < 5e-4
    assert anisotropy(torch.randn(2000, 64) + 3) > 0.8
    simplex = torch.eye(5) - 1 / 5  # the corners of a regular simplex
    assert anisotropy(simplex) == pytest.approx(-1 / 4)
    assert anisotropy(torch.ones(7, 3) * torch.arange(1, 8)[:, None]) == pytest.approx(1)
    with_zeros = torch.cat([simplex, torch.zeros(9, 5)])
    assert anisotropy(with_zeros) == pytest.approx(-1 / 4)
    assert anisotropy(with_zeros[4:]) is None


def branches_of(model):
    statistics = LayerStatistics(Ensemble([StepDecoder(model)]))
    statistics.add(SOURCES[:3], TARGETS[:3])
    statistics.add(SOURCES[3:], TARGETS[3:])
    return statistics.records()


def states_of_branches(model, monkeypatch):
    """Return the input and the output of each residual branch, each sentence read alone."""
    states = {}
    add = Residual.add

    def noted(residual, x, y):
        xs, ys = states.setdefault(residual, ([], []))
        xs.append(x.flatten())
        ys.append(y.flatten())
        return add(residual, x, y)

    monkeypatch.setattr(Residual, "add", noted)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        model(torch.tensor(source)[None], torch.tensor(np.append(EOS, target[:-1]))[None])
    monkeypatch.undo()
    return {residual: map(torch.cat, pair) for residual, pair in states.items()}


@pytest.mark.parametrize("before", [False, True])
@torch.no_grad()
def test_variance_ratios_equal_those_of_the_states(before, monkeypatch):
    sides = {f"{side}_normalize_before": before for side in ("encoder", "decoder")}
    model = make_model(**sides).double()
    records = branches_of(model)
    states = states_of_branches(model, monkeypatch)
    assert len(records) == len(states) == 2 * 2 + 2 * 3
    for record in records:
        layer = getattr(model, record["side"]).layers[record["layer"]]
        x, y = states[getattr(layer, f"{record['branch']}_residual")]
        expected = float(y.var(correction=0) / x.var(correction=0))
        assert record["variance_ratio"] == pytest.approx(expected, rel=1e-9)


@torch.no_grad()
def test_a_branch_of_zeros_has_the_ratio_0():
    model = make_model()
    attention = model.encoder.layers[1].self_attention
    for parameter in attention.out_proj.parameters():
        parameter.zero_()
    where = {"side": "encoder", "layer": 1, "branch": BRANCHES[0]}
    [record] = [record for record in branches_of(model) if where.items() <= record.items()]
    assert record["variance_ratio"] == 0.0


def test_branches_of_several_models_are_an_error():
    with pytest.raises(ConfigError, match="one model only"):
        LayerStatistics(Ensemble([StepDecoder(make_model()), StepDecoder(make_model())]))


def test_the_parts_of_heads_have_the_variance_of_states_with_this_head_alone():
    """The output of a branch whose other heads are cut from its last matrix, without its bias."""
    model = make("relu")
    all_heads = LayerStatistics(Ensemble([StepDecoder(model)]))
    all_heads.add(SOURCES[:2], TARGETS[:2])
    variances = all_heads.added_variances()
    assert len(variances) == 2 * 3 * 2  # layers, slots and heads
    layer = model.decoder.layers[1]
    inputs = []
    parts = []
    start = layer.cross_attention
    width = start.embed_dim // 2

    def take(module, arguments):
        joined = arguments[0][0]
        parts.append(joined[:, width:] @ start.out_proj.weight.T[width:])

    start.out_proj.register_forward_pre_hook(take)
    start.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0][0]))
    with torch.no_grad():
        for number in range(2):
            model(*batch_of(number))
    ratio = torch.cat(parts).var(correction=0) / torch.cat(inputs).var(correction=0)
    assert variances["cross", 1, 1] == pytest.approx(float(ratio), rel=1e-6)

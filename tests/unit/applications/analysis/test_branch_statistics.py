"""Variance ratios of branches, against each sentence read alone."""

import numpy as np
import pytest
import torch

from relu_nmt.applications.analysis.memories import BRANCHES, BranchStatistics
from relu_nmt.errors import ConfigError
from relu_nmt.modules.transformer_layer import Residual
from relu_nmt.translation.search.ensemble import Ensemble
from relu_nmt.translation.step_decoder import PlainDecoder
from tests.unit.applications.analysis.models import EOS, make_model

RNG = np.random.default_rng(0)
SOURCES = [np.append(RNG.integers(4, 8, n), EOS) for n in (3, 9, 1, 5)]
TARGETS = [np.append(RNG.integers(4, 8, n), EOS) for n in (4, 2, 0, 7)]


def statistics_of(model):
    statistics = BranchStatistics(Ensemble([PlainDecoder(model)]))
    statistics.add(SOURCES[:3], TARGETS[:3])
    statistics.add(SOURCES[3:], TARGETS[3:])
    return statistics.records()


def states_of(model, monkeypatch):
    """Return the input and the output of each residual branch, each sentence read alone."""
    found = {}
    add = Residual.add

    def noted(residual, x, y):
        xs, ys = found.setdefault(residual, ([], []))
        xs.append(x.flatten())
        ys.append(y.flatten())
        return add(residual, x, y)

    monkeypatch.setattr(Residual, "add", noted)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        model(torch.tensor(source)[None], torch.tensor(np.append(EOS, target[:-1]))[None])
    monkeypatch.undo()
    return {residual: map(torch.cat, pair) for residual, pair in found.items()}


@pytest.mark.parametrize("before", [False, True])
@torch.no_grad()
def test_variance_ratios_equal_those_of_the_states(before, monkeypatch):
    sides = {f"{side}_normalize_before": before for side in ("encoder", "decoder")}
    model = make_model(**sides).double()
    records = statistics_of(model)
    states = states_of(model, monkeypatch)
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
    [ratio] = [
        record["variance_ratio"]
        for record in statistics_of(model)
        if (record["side"], record["layer"], record["branch"]) == ("encoder", 1, BRANCHES[0])
    ]
    assert ratio == 0.0


def test_several_models_are_an_error():
    with pytest.raises(ConfigError, match="one model only"):
        BranchStatistics(Ensemble([PlainDecoder(make_model()), PlainDecoder(make_model())]))

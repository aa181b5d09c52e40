"""A start from a model with other attention: queries are scaled so that rows sum to 1."""

import numpy as np
import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.data.translation_batches import collate
from relu_nmt.translation.calibration import (
    calibrate,
    changed_slots,
    describe,
    fit_mechanisms,
    scale_queries,
)
from tests.tiny import tiny_config, tiny_model, tiny_task

TASK = tiny_task("abcdefgh")
DEEP = {"layers": 2}


@pytest.fixture
def batch():
    draw = torch.Generator().manual_seed(0)
    pairs = []
    for source_size, target_size in ((5, 4), (3, 7), (8, 2), (6, 6)):
        ids = torch.randint(4, 12, (source_size + target_size,), generator=draw)
        ids[[source_size - 1, -1]] = 2
        pairs.append(np.split(ids.numpy(), [source_size]))
    return collate(pairs, range(4))


def row_sums(model, batch):
    """Return the mean absolute row sum of every attention, by slot and layer."""
    with record_attention(model, Need(weights=True)) as records, torch.no_grad():
        model(batch.src_tokens, batch.prev_output_tokens)
    mean_sums = {}
    for record in records:
        sums = record.weights.abs().sum(-1)
        real = record.visibility.real_rows(len(sums)).expand_as(sums).bool()
        mean_sums[record.slot, record.layer] = float(sums[real].double().mean())
    return mean_sums


def adapted(attention, batch, start="softmax", **settings):
    """Return a model with another attention, its changed slots and the factors of its start."""
    before = tiny_model(TASK, shape=DEEP, attention=start)
    model = tiny_model(TASK, seed=2, shape=DEEP, attention=attention, **settings).eval()
    slots = changed_slots({"attention": start}, model.config)
    model.load_state_dict(fit_mechanisms(model, before.state_dict(), slots))
    return model, slots, calibrate(model, batch, slots)


@pytest.mark.parametrize(
    "attention",
    [
        "reluformer:gamma=8",
        "reluformer:power=2",
        "reluformer:centered=true,learnable=true",
        "pointwise",
        "pointwise:h=relu2,qk_norm=false",
        "polynomial",
    ],
)
def test_the_rows_of_every_layer_sum_to_1(attention, batch):
    model, _, factors = adapted(attention, batch)
    assert row_sums(model, batch) == pytest.approx(
        dict.fromkeys(row_sums(model, batch), 1), abs=0.02
    )
    assert list(map(len, factors.values())) == [2] * len(factors)


def test_a_bias_of_the_scores_is_no_obstacle(batch):
    model, _, _ = adapted("reluformer", batch, positions="sinusoidal+alibi")
    sums = row_sums(model, batch)
    assert sums == pytest.approx(dict.fromkeys(sums, 1), abs=0.1)


def test_only_changed_slots_are_scaled(batch):
    before = tiny_model(TASK, shape=DEEP).state_dict()
    model, slots, factors = adapted("softmax", batch, cross_attention="reluformer")
    assert slots == {"cross": "softmax to reluformer"} and factors.keys() == {"cross"}
    for name, tensor in model.state_dict().items():
        is_scaled = ".cross_attention.q." in name and name.endswith("weight")
        assert torch.equal(tensor, before[name]) is not is_scaled, name


def test_the_factors_give_the_same_weights_again(batch):
    model, slots, factors = adapted("reluformer", batch)
    weights = fit_mechanisms(model, tiny_model(TASK, shape=DEEP).state_dict(), slots)
    for by_name in factors.values():
        for name, factor in by_name.items():
            scale_queries(weights, name, factor)
    torch.testing.assert_close(dict(model.state_dict()), dict(weights))


def test_another_mechanism_starts_as_it_is_and_the_log_says_so(batch):
    model, slots, factors = adapted("rela", batch)
    assert factors == {"encoder": {}, "decoder": {}, "cross": {}}
    assert describe(slots, factors)[0] == "encoder attention softmax to rela: starts as it is"
    assert torch.equal(model.encoder.layers[0].self_attention.attention.norm_gain, torch.ones(16))


def test_the_log_has_a_line_for_each_slot():
    factors = {"cross": {"decoder.layers.0": 0.25, "decoder.layers.1": 1.5}}
    line = "cross attention softmax to reluformer: rows sum to 1 with queries times 0.25, 1.5"
    assert describe({"cross": "softmax to reluformer"}, factors) == [line]


def test_other_options_of_the_same_mechanism_are_no_change():
    config = tiny_config(attention="reluformer:gamma=8", encoder_attention="softmax")
    assert changed_slots({"attention": "reluformer", "encoder_attention": None}, config) == {
        "encoder": "reluformer to softmax"
    }


def test_a_mechanism_loses_the_parameters_of_the_one_before(batch):
    model, _, _ = adapted("softmax", batch, start="rela")
    assert "gain" not in "".join(model.state_dict())

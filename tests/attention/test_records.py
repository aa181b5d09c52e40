"""Recording what attention modules did, by hooks."""

import torch

from relu_nmt.attention.base import NOTHING, Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import record_attention
from tests.attention.helpers import make_attention, random_qkv


def two_layers():
    model = torch.nn.ModuleList([make_attention("softmax", "encoder"), make_attention("linear")])
    model[1].layer = 1
    return model


def run(model):
    visibility = Visibility(4, 4)
    return [attention(*random_qkv(1, 4, 4), visibility) for attention in model], visibility


def test_every_call_is_recorded_in_order_with_what_is_needed():
    model = two_layers()
    with record_attention(model, Need(telemetry=True)) as records:
        outputs, visibility = run(model)
    assert [(r.slot, r.layer) for r in records] == [("encoder", 0), ("encoder", 1)]
    assert all(r.visibility is visibility and r.weights is None for r in records)
    assert all(
        r.rows is o.rows and o.rows.largest is not None
        for r, o in zip(records, outputs, strict=True)
    )
    outputs, _ = run(model)
    assert len(records) == 2 and all(o.rows is None for o in outputs)


def test_nested_recorders_both_get_what_they_need_and_one_mechanism_can_be_watched_alone():
    model = two_layers()
    with (
        record_attention(model, Need(statistics=True)) as outer,
        record_attention(model[1], Need(weights=True)) as inner,
    ):
        run(model)
    assert len(outer) == 2 and len(inner) == 1
    assert outer[0].weights is None and inner[0].weights is not None and inner[0].rows is not None


def test_an_error_inside_removes_the_hooks():
    model = two_layers()
    try:
        with record_attention(model, Need(weights=True)):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert all(output.weights is None for output in run(model)[0])


def test_nothing_needed_records_nothing():
    model = two_layers()
    with record_attention(model, NOTHING) as records:
        run(model)
    assert records == []

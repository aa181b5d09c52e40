"""Recording what attention modules did, by hooks."""

import pytest
import torch

from relu_nmt.attention.base import NOTHING, Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import attention_sums, record_attention
from tests.attention.helpers import make_attention, random_qkv


def two_layers():
    model = torch.nn.ModuleList([make_attention("softmax", "encoder"), make_attention("linear")])
    model[1].layer = 1
    return model


def run(model):
    visibility = Visibility(4, 4)
    return [attention(*random_qkv(1, 4, 4), visibility) for attention in model], visibility


def test_every_call_is_recorded_in_order_with_the_needed_results():
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


def test_nested_recorders_and_a_recorder_of_one_mechanism():
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


@pytest.mark.parametrize("causal", [False, True])
def test_vector_sizes_count_real_rows_and_visible_keys_only(causal):
    attend = make_attention("reluformer", "decoder" if causal else "encoder")
    mask = torch.arange(5) < torch.tensor([[3], [5]])
    visibility = Visibility(5, 5, key_mask=mask, query_mask=mask, causal=causal)
    q, k, v = random_qkv(2, 5, 5)
    with record_attention(attend, Need(telemetry=True)) as records:
        values = attend(q, k, v, visibility).values
    [sums] = attention_sums(records)
    names = ("query_norm", "key_norm", "output_square")
    found = {name: sums.heads[sums.statistics.index(name)] / sums.rows for name in names}
    assert sums.rows == 8
    for head in range(2):
        rows = [(b, i) for b, length in enumerate((3, 5)) for i in range(length)]
        seen = {(b, i): i + 1 if causal else (3, 5)[b] for b, i in rows}
        expected = {
            "query_norm": [q[b, head, i].norm() for b, i in rows],
            "key_norm": [k[b, head, : seen[b, i]].norm(dim=-1).mean() for b, i in rows],
            "output_square": [values[b, head, i].square().mean() for b, i in rows],
        }
        for name, each in expected.items():
            assert found[name][head] == pytest.approx(float(sum(each)) / 8, rel=1e-5), name

"""Records of attention, made by hooks, and their means against loops over explicit weights."""

import itertools
import math
from collections import Counter, defaultdict

import pytest
import torch

from relu_nmt.attention.base import NOTHING, Need, RowStatistics
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import (
    AttentionRecord,
    attention_sums,
    attention_telemetry,
    bucket_name,
    record_attention,
)
from tests.attention.helpers import SLOTS, entropy_of, make_attention, random_qkv
from tests.outputs import containing
from tests.tiny import slots_of

ALL = Need(telemetry=True, weights=True)
HEADS = 2


def two_layers():
    model = torch.nn.ModuleList([make_attention("softmax", "encoder"), make_attention("linear")])
    model[1].layer = 1
    return model


def run(model):
    visibility = Visibility(4, 4)
    q, k, v = random_qkv(1, 4, 4)
    return [attention(q, k, v, visibility) for attention in model], visibility


def test_every_call_is_recorded_in_order_with_the_needed_results():
    model = two_layers()
    with record_attention(model, Need(telemetry=True)) as records:
        outputs, visibility = run(model)
    assert slots_of(records) == [("encoder", 0), ("encoder", 1)]
    for record, output in zip(records, outputs, strict=True):
        assert record.visibility is visibility and record.weights is None
        assert record.statistics is output.statistics and output.statistics.largest is not None
    first, second = run(model)[0]
    assert len(records) == 2 and first.statistics is second.statistics is None


def test_nested_recorders_and_a_recorder_of_one_mechanism():
    model = two_layers()
    with (
        record_attention(model, Need(statistics=True)) as outer,
        record_attention(model[1], Need(weights=True)) as inner,
    ):
        run(model)
    assert len(outer) == 2 and len(inner) == 1
    assert (
        outer[0].weights is None
        and inner[0].weights is not None
        and inner[0].statistics is not None
    )


def test_an_error_inside_removes_the_hooks():
    model = two_layers()
    try:
        with record_attention(model, Need(weights=True)):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    first, second = run(model)[0]
    assert first.weights is second.weights is None


def test_nothing_needed_records_nothing():
    model = two_layers()
    with record_attention(model, NOTHING) as records:
        run(model)
    assert records == []


@pytest.mark.parametrize("causal", [False, True])
def test_vector_sizes_count_real_rows_and_visible_keys_only(causal):
    attend = make_attention("reluformer", SLOTS[causal])
    mask = torch.arange(5) < torch.tensor([[3], [5]])
    visibility = Visibility(5, 5, key_mask=mask, query_mask=mask, causal=causal)
    q, k, v = random_qkv(2, 5, 5)
    with record_attention(attend, Need(telemetry=True)) as records:
        values = attend(q, k, v, visibility).values
    [sums] = attention_sums(records).values()
    assert sums.num_rows == 8
    for head in range(2):
        totals = Counter()
        for b, i in [*itertools.product([0], range(3)), *itertools.product([1], range(5))]:
            visible = i + 1 if causal else (3, 5)[b]
            totals["query_norm"] += q[b, head, i].norm().item()
            totals["key_norm"] += k[b, head, :visible].norm(dim=-1).mean().item()
            totals["output_square"] += values[b, head, i].square().mean().item()
        for name, total in totals.items():
            mean = sums.heads[sums.statistics.index(name)][head] / sums.num_rows
            assert mean == pytest.approx(total / 8, rel=1e-5), name


def causal_record(lengths, width, layer=0, seed=0):
    attend = make_attention("reluformer", "decoder", HEADS)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    visibility = Visibility(width, width, query_mask=mask, causal=True)
    output = attend(*random_qkv(len(lengths), width, width, seed=seed), visibility, need=ALL)
    return AttentionRecord("decoder", layer, output.statistics, output.weights, visibility)


def row_values(weights, n):
    """Return the statistics of one row of weights as the definitions say."""
    row = weights[:n].tolist()
    total = sum(row)
    return {
        "sum": total,
        "entropy": entropy_of(row) if total > 1e-6 else 0.0,
        "zero_fraction": row.count(0) / n,
        "null_fraction": float(total <= 1e-6),
        "largest": max(row),
    }


def expected_scalars(record, lengths):
    groups = defaultdict(list)
    for b, length in enumerate(lengths):
        for i in range(length):
            bucket = f"n{bucket_name(int(math.log2(i + 1)))}"
            for h in range(HEADS):
                values = row_values(record.weights[b, h, i], i + 1)
                for name, value in values.items():
                    groups[f"attention/decoder.{record.layer}.{h}/{name}"].append(value)
                    groups[f"attention/decoder.{record.layer}.{bucket}/{name}"].append(value)
    return {name: sum(values) / len(values) for name, values in groups.items()}


def test_scalars_by_head_and_by_number_of_visible_keys():
    lengths = [9, 3, 6]
    record = causal_record(lengths, 11)
    scalars = attention_telemetry([record])
    expected = expected_scalars(record, lengths)
    assert scalars == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert "attention/decoder.0.n8-15/entropy" in scalars
    assert not containing(scalars, "n16")
    assert scalars["attention/decoder.0.n1/null_fraction"] > 0


def test_autocast_does_not_round_the_sums():
    record = causal_record([300], 300)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = attention_telemetry([record])
    assert rounded == attention_telemetry([record])


@pytest.mark.parametrize(("index", "name"), [(0, "1"), (1, "2-3"), (3, "8-15")])
def test_buckets_are_powers_of_two(index, name):
    assert bucket_name(index) == name


def test_sums_of_batches_of_different_lengths_add_up():
    first, second = causal_record([5, 2], 5), causal_record([17], 17, seed=1)
    sums = attention_sums([first])
    [together] = attention_sums([second], sums).values()
    assert together.num_rows == 5 + 2 + 17
    assert together.bucket_rows[:5].tolist() == [3, 2 + 1 + 2, 2 + 4, 8, 2]
    log_counts = math.lgamma(6) + math.lgamma(3) + math.lgamma(18)
    assert together.log_counts == pytest.approx(log_counts, rel=1e-6)
    attention_sums([causal_record([1], 1)], sums)
    assert together.bucket_rows[:5].tolist() == [4, 2 + 1 + 2, 2 + 4, 8, 2]
    scalars = [expected_scalars(first, [5, 2]), expected_scalars(second, [17])]
    entropy = together.statistics.index("entropy")
    for head in range(HEADS):
        name = f"attention/decoder.0.{head}/entropy"
        # The single row has an entropy of 0.
        expected = 7 * scalars[0][name] + 17 * scalars[1][name]
        assert together.heads[entropy, head] == pytest.approx(expected, rel=1e-5)
    expected = 2 * scalars[0]["attention/decoder.0.n4-7/sum"]
    expected += 4 * scalars[1]["attention/decoder.0.n4-7/sum"]
    assert together.buckets[0, 2] == pytest.approx(expected, rel=1e-5)


def test_several_modules_are_summed_separately():
    encoder = make_attention("softmax", "encoder", HEADS)
    visibility = Visibility(4, 4)
    output = encoder(*random_qkv(2, 4, 4), visibility, need=ALL)
    record = AttentionRecord("encoder", 1, output.statistics, output.weights, visibility)
    causal = causal_record([3, 4], 4, layer=2)
    scalars = attention_telemetry([record, causal])
    assert scalars == {**attention_telemetry([record]), **attention_telemetry([causal])}
    assert scalars["attention/encoder.1.0/sum"] == pytest.approx(1.0)
    assert not containing(scalars, "encoder.1.n")


def test_signed_weights_have_neither_entropy_nor_null_rows():
    unit = torch.ones(1, 1, 2)
    rows = RowStatistics(0 * unit, None, unit / 2, 3 * unit)
    record = AttentionRecord("encoder", 0, rows, None, Visibility(2, 2))
    assert attention_telemetry([record]) == {
        "attention/encoder.0.0/sum": 0.0,
        "attention/encoder.0.0/zero_fraction": 0.5,
        "attention/encoder.0.0/largest": 3.0,
    }


def test_a_mechanism_without_rows_is_left_out():
    assert attention_telemetry([AttentionRecord("encoder", 0, None, None, Visibility(2, 2))]) == {}

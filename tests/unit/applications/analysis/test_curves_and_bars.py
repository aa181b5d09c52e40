"""Plots of an analysis: which are drawn, with which titles and lines."""

import itertools

import pytest

from relu_nmt.jobs.analyze.curves import TELEMETRY, TRAIN
from relu_nmt.jobs.analyze.page import page_text
from relu_nmt.jobs.analyze.plots import Series, by_layer, by_rank, course_panels, of_courses


def records(layers, sums, slots=("encoder", "decoder", "cross")):
    """Return records of two heads and their mean by layer, and of the mean of all layers."""
    heads = (0, 1, "mean")
    keys = [*itertools.product(range(layers), heads), ("mean", "mean")]
    ranked = {"top_sum": sums, "share_at_rank": sums}
    records = []
    for slot, (layer, head) in itertools.product(slots, keys):
        labels = {"slot": slot, "sees": "all", "layer": layer, "head": head}
        records.append({**labels, "entropy": 1.5, **ranked})
    return records


def test_level_lines_of_short_rows_are_not_drawn():
    """The largest 0.5 and 1.5 % of 20 keys are one key, and of 100 keys one and two."""
    short = Series("short", 0, None, records(2, {0.5: 0.3, 1.5: 0.3, 10.0: 0.5}))
    longer = Series("longer", 1, None, records(2, {0.5: 0.3, 1.5: 0.4, 10.0: 0.5}))
    assert not by_rank([short])
    assert ">longer</text>" in by_rank([short, longer])


def test_a_single_layer_makes_no_chart_and_a_slot_without_weights_no_panel():
    assert not by_layer([Series("one", 0, None, records(1, {}))], "entropy", "entropy, nats")
    source = by_layer([Series("two", 0, None, records(2, {}, ("cross",)))], "entropy", "H, nats")
    assert ">cross-attention: H, nats</text>" in source
    assert "encoder self-attention" not in source


def test_a_metric_with_one_value_makes_no_curve():
    scalars = {"once": {(TRAIN, "loss"): {10: 3.0}, (TRAIN, "gnorm"): {10: 1.0, 20: 0.5}}}
    assert course_panels(scalars) == [{(TRAIN, "gnorm"): "norm of the gradient"}]
    del scalars["once"][TRAIN, "gnorm"]
    assert not course_panels(scalars)


@pytest.mark.parametrize(
    ("metric", "unit"), [("nll_loss", "bits per token"), ("accuracy", "bits per example")]
)
def test_bits_are_per_token_only_if_tokens_were_counted(metric, unit):
    """Image classifiers have a loss of each image, and none without smoothing."""
    course = {"c": {(TRAIN, name): {10: 3.0, 20: 2.0} for name in ("loss", metric)}}
    [panels] = course_panels(course)
    assert panels[TRAIN, "loss"] == f"training loss, {unit}"
    assert f">training loss, {unit}</text>" in of_courses(course, panels)


def test_telemetry_is_called_so_even_without_losses():
    course = {"c": {(TELEMETRY, "encoder entropy"): {10: 3.0, 20: 2.0}}}
    page = page_text([], [], course, {}, [])
    assert "<figcaption>Telemetry of the training" in page
    assert "of validation sets" not in page

"""benchmarks/step_times.py: steps of both kinds of models, ratios and their intervals."""

import sys

import numpy as np
import pytest

from tests.example_modules import example_modules
from tests.outputs import csv_rows


@pytest.fixture
def step_times():
    with example_modules("../benchmarks", ["measuring", "telemetry", "step_times"]) as modules:
        yield modules.step_times


TEXT = ["softmax", "reluformer:gamma=8", "--regularized", "reluformer:gamma=8", "--length", "4"]
IMAGES = ["softmax", "pointwise:h=relu,gate=silu", "--images", "--patch-size", "16"]


@pytest.mark.parametrize("words", [TEXT, IMAGES], ids=["text", "images"])
def test_a_row_for_each_attention(step_times, tmp_path, monkeypatch, capsys, words):
    small = ["--layers", "1", "--sentences", "2", "--images-at-once", "2", "--turns", "2"]
    out = tmp_path / "made" / "times.csv"
    monkeypatch.setattr(sys, "argv", ["step_times.py", *words, *small, "--out", str(out)])
    step_times.main()
    first, second = csv_rows(out)
    assert [first["attention"], second["attention"]] == words[:2]
    assert first["ratio"] == first["low"] == first["high"] == "1.000"
    assert float(second["low"]) <= float(second["ratio"]) <= float(second["high"])
    assert second["ratio"] in capsys.readouterr().out


def test_ratios_are_of_the_same_turn(step_times):
    """A slow turn of both does not count. A single slow step of one hardly does."""
    first = np.array([1.0, 5.0, 1.0, 1.0, 1.0])
    seconds = {"a": first, "b": 2 * first, "c": np.array([3.0, 15.0, 3.0, 3.0, 30.0])}
    rows = {row["attention"]: row for row in step_times.table(seconds)}
    assert rows["b"]["ratio"] == rows["b"]["low"] == rows["b"]["high"] == "2.000"
    assert rows["c"]["ratio"] == "3.000" and rows["c"]["low"] == "3.000"
    assert rows["c"]["ms"] == "3000.0"

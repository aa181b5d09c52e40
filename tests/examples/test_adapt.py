"""examples/adapt: the losses before the first update, and a report of the trainings."""

import base64
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import outputs, tiny
from tests.example_modules import example_modules
from tests.markdown import cells

EXAMPLE = Path(__file__).parents[2] / "examples" / "adapt"


def write_training(folder, updates, scores):
    """Write the files that the report reads: a course of two validations, a score by length."""
    folder.mkdir(parents=True)
    half = {"num_updates": updates // 2, "bleu": updates / 20}
    course = {
        "num_updates": updates,
        "train": [{"num_updates": updates, "loss": 2.0}],
        "valid": {"valid": [half, {"num_updates": updates, "bleu": updates / 10}]},
    }
    (folder / "results.json").write_text(json.dumps(course))
    for length, score in scores.items():
        (folder / f"test-{length}.json").write_text(json.dumps({"d_bleu": {"score": score}}))


def report(folder):
    return subprocess.run(
        [sys.executable, str(EXAMPLE / "report.py"), folder.name],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])},
        capture_output=True,
        encoding="utf-8",
    )


def test_the_report_has_the_numbers_of_the_trainings(tmp_path):
    out = tmp_path / "small"
    for seed, softmax, relu in ((1, 40.0, 39.0), (2, 41.0, 41.0), (3, 42.0, 40.0)):
        write_training(out / f"softmax-seed{seed}", 400, {1: softmax})
        write_training(out / f"reluformer_hybrid-start-seed{seed}", 40, {1: relu})
    write_training(
        out / "reluformer_hybrid-start-seed4", 40, {1: 40.0}
    )  # without a model to start from
    for updates, score in ((40, 40.25), (80, 40.5)):
        write_training(out / f"softmax-start-{updates}-seed1", updates, {1: score})
    write_training(out / "sentences-seed1", 100, {1: 60.0})
    write_training(out / "documents-start-seed1", 80, {1: 60.5, 1024: 66.25})
    (out / "multi30k").mkdir()
    (out / "documents-start-seed2").mkdir()  # not done yet

    done = report(out)

    assert done.returncode == 0, done.stderr
    rows = list(map(cells, outputs.containing(done.stdout.splitlines(), "|")))
    scores = {}
    goes_on = []
    for row in rows[2:]:
        scores[row[0], row[1], row[3]] = row[4:]
        if row[:2] == ["softmax", "from the model"]:
            goes_on.append(row[2:])
    assert goes_on == [
        ["40", "a sentence", "40.25", "40.25", "+0.25"],
        ["80", "a sentence", "40.50", "40.50", "+0.50"],
    ]
    start = "from the model"
    assert scores["ReLU in encoder and decoder", start, "a sentence"] == [
        *("40.00", "39.00, 41.00, 40.00, 40.00", "−1.00 ± 2.48")
    ]
    assert scores["aligned documents", start, "1,024"] == ["66.25", "66.25", "+6.25"]
    assert len(scores) == 6
    page = (out / "report.html").read_text("utf-8")
    assert "ReLU in encoder and decoder" in page and "66.25" in page and "<img" in page
    source = re.search(r'src="data:image/svg\+xml;base64,([^"]*)"', page)[1]
    drawn = base64.b64decode(source).decode()
    for count in (40, 80):
        assert f">from the model, {count} updates</text>" in drawn
    table = outputs.csv_rows(out / "results.csv")
    assert len(table) == 12
    assert {
        "model": "documents",
        "way": "start",
        "tokens_at_once": "1024",
        "seed": "1",
    }.items() <= (table[-1].items())
    points = outputs.select(outputs.csv_rows(out / "curves.csv"), model="softmax", way="", seed="1")
    assert outputs.column(points, "updates") == ["200", "400"]
    assert outputs.column(points, "valid_bleu") == ["20.0", "40.0"]


@pytest.mark.parametrize(
    ("score", "expected"),
    [(None, "small: no finished training"), ("{", "test-1.json: no d_bleu score in it")],
)
def test_a_folder_without_trainings_and_a_damaged_score_are_errors(score, expected, tmp_path):
    out = tmp_path / "small"
    out.mkdir()
    if score is not None:
        write_training(out / "softmax-seed1", 400, {1: 40.0})
        (out / "softmax-seed1" / "test-1.json").write_text(score)
    done = report(out)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("report: error: ")
    assert expected in line


def test_the_losses_before_the_first_update_are_those_of_trainings(tmp_path):
    rng = random.Random(1)
    for split, count in (("train", 40), ("valid", 10)):
        tiny.write_lines(tmp_path, split, tiny.digit_lines(rng, count))
    data = tiny.preprocessed(tmp_path)

    def valid_loss(name, *flags):
        """Return the loss on the validation set after an update that changes nothing."""
        shared = ("--max-update", "1", "--lr", "1e-12", "--seed", "1", "--max-tokens", "2048")
        done = tiny.train(data, tmp_path / name, shared, flags)
        [loss] = outputs.values(outputs.json_lines(done.stdout), "valid_nll_loss")
        return f"{float(loss):.3f}"

    expected = [valid_loss("softmax")]
    path = tmp_path / "softmax" / "checkpoint_last.safetensors"
    every_slot = ("--attention", "reluformer:gamma=8,centered=true,power=2")
    expected.append(valid_loss("relu", "--finetune-from-model", path, every_slot))

    with example_modules("adapt", ["start"]) as example:
        assert example.start.main([str(data), str(path), str(tmp_path / "start.md")]) == 0

    lines = (tmp_path / "start.md").read_text("utf-8").splitlines()
    rows = list(map(cells, lines))
    assert rows[2][:2] == ["softmax", expected[0]]
    assert rows[-1][0] == "ReLU in every slot, gamma 8, centered, squared"
    assert rows[-1][2] == expected[1]
    assert len(rows) == 9

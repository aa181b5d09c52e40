"""Courses of trainings, read from what training itself writes."""

import json
import math

import pytest

from relu_nmt.applications.analysis.report import course_panels
from relu_nmt.errors import DataError
from relu_nmt.training.config import LoggingConfig
from relu_nmt.training.log import TrainingLog
from relu_nmt.training.results import TrainingResult, entry, read_course

TELEMETRY = {
    "attention/encoder.0.0/entropy": 1.0,
    "attention/encoder.1.1/entropy": 2.0,
    "attention/decoder.0.n4-7/entropy": 9.0,
    "attention/cross.0.0/sum": math.inf,
}


def stats(updates, loss):
    return {"loss": loss, "nll_loss": loss - 1, "attention_norm": 0.5, "num_updates": updates}


def written_log(folder, form):
    """Return the file of a log: updates, a validation, an epoch, and updates done again."""
    path = folder / "train.log"
    log = TrainingLog(LoggingConfig(log_format=form, log_file=str(path)), shown=False)
    log.say("epoch 001 is here")
    log.updates(1, 50, 100, stats(50, 6.0))
    log.telemetry(1, 50, TELEMETRY)
    log.updates(1, 100, 100, stats(100, 99.0))
    log.updates(1, 100, 100, stats(100, 5.0))
    log.validation(1, "valid", {**stats(100, 5.5), "bleu": 12.5})
    log.end_epoch(1, stats(100, 5.2))
    log.close()
    return path


@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\x7f"])
def test_a_line_of_a_log_ends_in_a_line_feed(tmp_path, mark):
    path = tmp_path / "train.log"
    path.write_text(f'{{"num_updates": 50, "loss": 6.0, "run": "a{mark}b"}}\n', "utf-8")
    assert read_course(path, "own").curves["train", "loss"] == {50: 6.0}


@pytest.mark.parametrize("form", ["json", "simple"])
def test_a_log_of_either_format(tmp_path, form):
    course = read_course(written_log(tmp_path, form), "own")
    assert course.curves["train", "loss"] == {50: 6.0, 100: 5.0}
    assert course.curves["train", "attention_norm"] == {50: 0.5, 100: 0.5}
    assert course.curves["valid", "nll_loss"] == {100: 4.5}
    assert course.curves["valid", "bleu"] == {100: 12.5}
    telemetry = {key[1]: values for key, values in course.curves.items() if key[0] == "telemetry"}
    assert telemetry == ({"encoder entropy": {50: 1.5}} if form == "json" else {})
    assert not {"epoch", "update", "num_updates"} & {metric for _, metric in course.curves}
    rows = list(course.rows())
    assert rows[0] == {
        **{"training": "own", "split": "train", "metric": "loss"},
        **{"num_updates": 50, "value": 6.0},
    }


def test_the_results_of_a_training(tmp_path):
    result, speed = TrainingResult(tmp_path), {"wps": 9.0, "ups": 1.0, "train_wall": 2.0}
    for updates, loss in ((10, 7.0), (20, 6.0), (30, math.nan)):
        result.train.append(entry(1, {**stats(updates, loss), **speed}))
    result.valid["dev"] = [entry(1, {"loss": 6.5, "num_updates": 20})]
    result.write()
    course = read_course(tmp_path / "results.json", "own")
    assert course.curves["train", "loss"] == {10: 7.0, 20: 6.0}
    assert course.curves["dev", "loss"] == {20: 6.5}


def test_what_is_drawn_is_there(tmp_path):
    course = read_course(written_log(tmp_path, "json"), "own")
    [losses] = course_panels([course])  # a single point gives no curve
    assert ("valid", "bleu") not in losses and ("train", "loss") in losses
    for points in course.curves.values():
        points[200] = 1.0
    losses, telemetry = course_panels([course])
    assert ("valid", "nll_loss") in losses and ("train", "attention_norm") in losses
    assert ("valid", "bleu") in losses and ("train", "gnorm") not in losses
    assert list(telemetry) == [("telemetry", "encoder entropy")]
    assert course_panels([]) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"epoch 1 loss 3\n", b"{}", b'{"train": []}', b"[1]", b'{"train": 1}\n{"epoch": 1}'],
)
def test_a_file_without_a_course(tmp_path, content):
    path = tmp_path / "some.log"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"some.log: no course of a training in it"):
        read_course(path, "own")
    assert not read_course(path, "own", may_be_empty=True).curves


@pytest.mark.parametrize(
    "content",
    [
        {"train": [1, None, {"num_updates": "3", "loss": 1}], "valid": {"v": 3}},
        {"train": [{"num_updates": 3, "loss": "x"}], "valid": []},
    ],
)
def test_damaged_results(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="no course of a training"):
        read_course(path, "own")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"none.log: cannot read .*: No such file"):
        read_course(tmp_path / "none.log", "own")
    (tmp_path / "bin.log").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match=r"bin.log: cannot read .*: it is no text"):
        read_course(tmp_path / "bin.log", "own")

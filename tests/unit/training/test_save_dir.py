"""The result of a training, ``results.json``."""

import json
import math
import os
import shutil
import signal

import pytest

from relu_nmt.errors import DataError, TrainingError
from relu_nmt.training.save_dir import TrainingResult, entry
from tests.outputs import containing, values
from tests.tiny import num_parameters
from tests.unit.training.test_trainer import Interrupting
from tests.unit.training.toy import Toy, ToyScorer, ToySource, json_lines, without

BLEU = {"best_checkpoint_metric": "bleu"}


def stored(folder):
    return json.loads((folder / "results.json").read_text())


def interval(num_updates, updates, tokens, seconds):
    speeds = {"wps": tokens / seconds, "ups": updates / seconds, "train_wall": seconds}
    return entry(1, {"num_updates": num_updates, **speeds})


def test_the_file_agrees_with_the_log_and_with_what_is_returned(tmp_path, capsys):
    toy = Toy(tmp_path, {"max_epoch": 3}, validation=BLEU, scorer=ToyScorer())
    results = toy.trainer().train()
    assert TrainingResult.load(tmp_path) == results
    result = stored(tmp_path)
    lines = json_lines(capsys.readouterr().out)
    inner = containing(lines, "update")
    assert values(result["train"], "num_updates") == list(range(2, 22, 2))
    for line, stored_line in zip(inner, result["train"], strict=True):
        assert set(line) == set(stored_line) | {"update"}
        assert line["loss"] == round(stored_line["loss"], 3)
    for name, losses in (
        ("train_loss", values(result["epochs"], "loss")),
        ("valid_nll_loss", values(result["valid"]["valid"], "nll_loss")),
    ):
        assert values(lines, name) == [round(loss, 3) for loss in losses]
    assert result["best"] == {"metric": "bleu", "value": 3.0, "num_updates": 14}
    assert (result["epoch"], result["num_updates"], result["signal"]) == (3, 21, None)
    assert "--max-epoch" in result["ended"]
    assert result["settings"] == {"lr": 0.05}
    assert result["parameters"] == num_parameters(toy.trainer().learner.model)
    assert result["memory"]["resident_bytes"] > 1e6
    assert result["format"] == 1
    assert result["tokens_per_second"] > result["updates_per_second"] > 0
    assert result["seconds"] > 0


def test_speed_is_that_of_all_intervals_but_the_first():
    results = TrainingResult()
    assert results.tokens_per_second is None
    results.epochs.append(interval(40, 40, 4000, 8.0))
    assert results.tokens_per_second == 500.0
    results.train += [interval(10, 10, 100, 100.0), interval(20, 10, 200, 2.0)]
    results.train.append(interval(40, 20, 600, 10.0))
    assert results.tokens_per_second == pytest.approx(800 / 12)
    assert results.updates_per_second == pytest.approx(30 / 12)


def test_a_resumed_training_goes_on_with_its_history(tmp_path):
    def course(folder):
        result = stored(folder)
        # The best loss so far also knows of the validations that the whole training did not make.
        speeds = ("wps", "ups", "train_wall", "wall", "best_loss")
        parts = [*result["train"], *result["epochs"], *result["valid"]["valid"]]
        return [without(record, speeds) for record in parts], result["best"]

    def train(name, max_update):
        Toy(tmp_path / name, {"max_update": max_update}).trainer().train()

    train("whole", 17)
    for max_update in (4, 9, 17):
        train("parts", max_update)
    records, best = course(tmp_path / "whole")
    parts, best_of_parts = course(tmp_path / "parts")
    extra = [record for record in parts if record not in records]
    assert values(extra, "num_updates") == [4, 9]
    assert [record for record in parts if record in records] == records
    assert best == best_of_parts


def test_results_after_the_checkpoint_are_forgotten(tmp_path):
    toy = Toy(tmp_path, {"max_update": 14})
    toy.trainer().train()
    shutil.copy(tmp_path / "checkpoint1.safetensors", tmp_path / "checkpoint_last.safetensors")
    toy.run = {"max_update": 7}  # it ends at once, and its best is not a later update
    toy.trainer().train()
    assert stored(tmp_path)["best"]["num_updates"] == 7
    toy.run = {"max_update": 9}
    toy.trainer().train()
    result = stored(tmp_path)
    assert values(result["train"], "num_updates") == [2, 4, 6, 8]
    assert values(result["valid"]["valid"], "num_updates") == [7, 9]
    assert result["best"]["num_updates"] in (7, 9)


def test_a_fresh_start_begins_a_new_history(tmp_path):
    Toy(tmp_path / "a", {"max_update": 4}).trainer().train()
    Toy(tmp_path / "b", {"max_update": 2}).trainer().train()
    last = "checkpoint_last.safetensors"
    other = {"restore_file": str(tmp_path / "a" / last)}
    (tmp_path / "b" / last).unlink()
    Toy(tmp_path / "b", {"max_update": 8}, other).trainer().train()
    assert values(stored(tmp_path / "b")["train"], "num_updates") == [6, 8]


def test_results_tell_how_a_training_ended(tmp_path):
    poisoned = Toy(tmp_path / "nan", train=ToySource(poisoned=[3]))
    with pytest.raises(TrainingError):
        poisoned.trainer().train()
    result = stored(tmp_path / "nan")
    assert result["diverged"]
    assert "not finite" in result["ended"]

    class Broken(ToySource):
        def load(self, index):
            assert index < 4, "the disk is gone"
            return super().load(index)

    with pytest.raises(AssertionError):
        Toy(tmp_path / "broken", train=Broken()).trainer().train()
    result = stored(tmp_path / "broken")
    assert (result["diverged"], "the disk is gone" in result["ended"]) == (False, True)

    toy = Toy(tmp_path / "signal", train=Interrupting(signal.SIGTERM, (1, 3)))
    toy.trainer().train()
    assert (stored(tmp_path / "signal")["signal"], stored(tmp_path / "signal")["num_updates"]) == (
        signal.SIGTERM,
        4,
    )
    toy.train = ToySource()
    toy.run = {"max_update": 5}
    toy.trainer().train()
    assert stored(tmp_path / "signal")["signal"] is None


def test_a_running_training_has_no_end_in_its_result(tmp_path):
    running = []

    class Watching(ToySource):
        def load(self, index):
            running.append(stored(tmp_path))
            return super().load(index)

    toy = Toy(tmp_path, {"max_update": 3})
    toy.trainer().train()
    toy.run = {"max_update": 8, "preflight": False}
    toy.train = Watching()
    toy.trainer().train()
    assert values(running, "ended") == [None] * 5
    assert running[-1]["epoch"] == 1
    assert running[-1]["num_updates"] == 7  # the validation at the end of the epoch


def test_nothing_is_written_with_no_save(tmp_path):
    toy = Toy(tmp_path / "x", {"max_update": 2}, {"no_save": True})
    assert toy.trainer().train().num_updates == 2
    assert not (tmp_path / "x").exists()


def test_no_infinity_in_the_file(tmp_path):
    results = TrainingResult(tmp_path)
    results.valid["valid"] = [entry(1, {"num_updates": 3, "ppl": math.inf, "loss": math.nan})]
    results.write()
    assert stored(tmp_path)["valid"] == {
        "valid": [{"epoch": 1, "num_updates": 3, "ppl": None, "loss": None}]
    }


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 1, "ended": 3', "\xff"])
def test_a_damaged_file_is_one_line(tmp_path, text):
    (tmp_path / "results.json").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"results\.json: damaged") as caught:
        TrainingResult.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"train": [[]]},
        {"train": [{"wps": "fast"}]},
        {"valid": {"valid": 5}},
        {"best": {"metric": "loss", "value": "5", "num_updates": 1}},
        {"best": {"metric": "loss"}},
        {"epoch": 1e308},
        {"signal": [1]},
        {"settings": 5},
    ],
)
def test_values_of_other_types_are_one_line(tmp_path, changes):
    TrainingResult(tmp_path).write()
    (tmp_path / "results.json").write_text(json.dumps({**stored(tmp_path), **changes}))
    with pytest.raises(DataError, match=r"results\.json: damaged"):
        TrainingResult.load(tmp_path)


def test_entries_without_speeds_have_no_speed(tmp_path):
    results = TrainingResult(tmp_path, train=[{"num_updates": 3, "loss": 4.5}])
    assert results.tokens_per_second is None


def test_results_that_cannot_be_read_are_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        TrainingResult.load(tmp_path)
    (tmp_path / "results.json").write_text('{"format": 2}')
    with pytest.raises(DataError, match="format 2"):
        TrainingResult.load(tmp_path)
    if os.geteuid():
        tmp_path.chmod(0o500)
    with pytest.raises(DataError, match="cannot be written"):
        TrainingResult(tmp_path / "results.json").write()

import dataclasses
import json
import os
import signal
import time
import weakref

import pytest
import torch
from torch import nn

from relu_nmt.errors import CheckpointError, ConfigError, TrainingError
from relu_nmt.io.process import STOP_SIGNALS
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.training.config import OptimizerConfig
from relu_nmt.training.state import WeightAverage
from relu_nmt.training.validation import measure
from tests.outputs import assert_same_tensors, containing, steps_of, tensors, values
from tests.unit.training.toy import Toy, ToyScorer, ToySource, json_lines, without


def names(folder):
    return sorted(os.listdir(folder))


def test_a_training_lowers_the_loss_and_logs_each_interval(tmp_path, capsys):
    results = Toy(tmp_path, run={"max_epoch": 20}, dropout=0.0).trainer().train()
    assert results.num_updates == 140
    lines = json_lines(capsys.readouterr().out)
    losses = values(lines, "valid_loss")
    assert len(losses) == 20
    assert losses[-1] < 0.3 * losses[0]
    inner = containing(lines, "update")
    assert len(inner) == 70
    assert list(inner[0]) == [
        *("epoch", "update", "loss", "nll_loss", "ppl", "bias", "wps", "ups", "wpb", "bsz"),
        *("num_updates", "lr", "gnorm", "train_wall", "wall"),
    ]
    assert len(values(lines, "train_loss")) == 20


def test_a_resumed_epoch_reads_only_what_is_left(tmp_path):
    Toy(tmp_path, run={"max_update": 5}).trainer().train()
    source = ToySource()
    Toy(tmp_path, run={"max_update": 9}, train=source).trainer().train()
    preflight, *loaded = source.loaded
    assert preflight == (1, source.largest())
    assert loaded == [(1, 5), (1, 6), (2, 0), (2, 1)]


def test_accumulated_batches_equal_one_large_batch(tmp_path):
    class Joined(ToySource):
        """Two batches of the ordinary source in one."""

        def load(self, index):
            first = ToySource.load(self, 2 * index)
            second = ToySource.load(self, 2 * index + 1)
            pairs = zip(dataclasses.astuple(first), dataclasses.astuple(second), strict=True)
            return type(first)(*map(torch.cat, pairs))

    for name, source, freq in (("two", ToySource(6), 2), ("one", Joined(3), 1)):
        Toy(
            tmp_path / name, run={"max_epoch": 2, "update_freq": (freq,)}, train=source, dropout=0.0
        ).trainer().train()
    halves = tensors(tmp_path / "one")
    full = tensors(tmp_path / "two")
    for name in halves:
        if not name.endswith("calls"):
            torch.testing.assert_close(halves[name], full[name], rtol=1e-4, atol=1e-6)


def test_validation_uses_the_average_and_gives_the_weights_back(tmp_path, capsys):
    toy = Toy(tmp_path, run={"max_update": 7}, optimizer={"store_ema": True, "ema_decay": 0.5})
    trainer = toy.trainer()
    trainer.train()
    stored = tensors(tmp_path)
    live = trainer.learner.model.state_dict()
    assert torch.equal(live["output.weight"], stored["train.model.output.weight"])
    assert not torch.equal(live["output.weight"], stored["output.weight"])
    reported = values(json_lines(capsys.readouterr().out), "valid_loss")[-1]
    model = trainer.learner.model
    model.load_state_dict({name: stored[name] for name in model.state_dict()})
    trainer.learner.average = WeightAverage(trainer.learner.model, OptimizerConfig())
    loss = measure(trainer.learner, trainer._data.valid["valid"])["loss"]
    assert loss == pytest.approx(reported, abs=1e-3)


def test_best_and_kept_checkpoints(tmp_path):
    Toy(
        tmp_path,
        run={"max_epoch": 4},
        validation={"best_checkpoint_metric": "bleu"},
        checkpoint={"keep_best_checkpoints": 2, "keep_last_epochs": 2},
        scorer=ToyScorer([1.0, 3.0, 2.996, 2.0]),
    ).trainer().train()
    assert names(tmp_path) == [
        "checkpoint.best_bleu_2.9960.safetensors",
        "checkpoint.best_bleu_3.0000.safetensors",
        "checkpoint3.safetensors",
        "checkpoint4.safetensors",
        "checkpoint_best.safetensors",
        "checkpoint_last.safetensors",
        "results.json",
    ]
    best = load_checkpoint(tmp_path / "checkpoint_best.safetensors").metadata
    assert best["training_state"]["best_score"] == 3.0
    assert best["training_state"]["num_updates"] == 14
    assert best["model_config"] == {"width": 8}


def test_the_best_score_survives_a_resume(tmp_path):
    settings = {
        "validation": {"best_checkpoint_metric": "bleu"},
        "checkpoint": {"no_epoch_checkpoints": True},
    }
    Toy(tmp_path, {"max_epoch": 1}, scorer=ToyScorer([3.0]), **settings).trainer().train()
    Toy(tmp_path, {"max_epoch": 2}, scorer=ToyScorer([2.0]), **settings).trainer().train()
    best = load_checkpoint(tmp_path / "checkpoint_best.safetensors").metadata["training_state"]
    last = load_checkpoint(tmp_path / "checkpoint_last.safetensors").metadata["training_state"]
    assert (best["num_updates"], last["num_updates"], last["best_score"]) == (7, 14, 3.0)


def test_saving_and_validating_between_epochs(tmp_path, capsys):
    Toy(
        tmp_path,
        run={"max_update": 13},
        validation={"validate_interval_updates": 3},
        checkpoint={"save_interval_updates": 4, "keep_interval_updates": 1},
    ).trainer().train()
    validated = values(json_lines(capsys.readouterr().out), "valid_num_updates")
    assert validated == [3, 4, 6, 7, 8, 9, 12, 13]
    assert "checkpoint_2_12.safetensors" in names(tmp_path)
    assert "checkpoint_1_4.safetensors" not in names(tmp_path)


def test_patience_ends_a_training_that_does_not_improve(tmp_path):
    toy = Toy(
        tmp_path,
        run={"patience": 2},
        validation={"best_checkpoint_metric": "bleu"},
        scorer=ToyScorer([1.0, 3.0, 2.0, 3.0, 9.0]),
    )
    for _ in range(2):
        results = toy.trainer().train()
        assert "--patience" in results.ended
        assert (results.epoch, results.num_updates) == (4, 28)


class Slow(ToySource):
    def load(self, index):
        time.sleep(0.05)
        return super().load(index)


def test_the_time_limit_counts_over_resumes_and_ends_with_a_validation(tmp_path, capsys):
    toy = Toy(tmp_path, run={"stop_time_hours": 0.4 / 3600}, train=Slow())
    results = toy.trainer().train()
    assert "--stop-time-hours" in results.ended
    assert 1 <= results.num_updates <= 9
    assert "valid_loss" in capsys.readouterr().out
    again = toy.trainer().train()
    assert "--stop-time-hours" in again.ended
    assert again.num_updates == results.num_updates


def test_the_lowest_learning_rate_stops(tmp_path):
    schedule = {
        "lr_scheduler": "polynomial_decay",
        "warmup_updates": 0,
        "total_num_update": 10,
        "stop_min_lr": 1e-9,
    }
    for _ in range(2):
        results = Toy(tmp_path, schedule=schedule).trainer().train()
        assert "--stop-min-lr" in results.ended
        assert results.num_updates == 14


class Interrupting(ToySource):
    def __init__(self, number, at):
        super().__init__()
        self.number = number
        self.at = at

    def load(self, index):
        if (self.epoch, index) == self.at:
            signal.raise_signal(self.number)
        return super().load(index)


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("at", [(1, 3), (1, 6), (2, 0)])
@pytest.mark.parametrize("without", ["no_epoch_checkpoints", "no_last_checkpoints"])
def test_a_signal_saves_and_the_same_command_goes_on(tmp_path, number, at, without):
    before = signal.getsignal(number)
    run = {"max_update": 14, "preflight": False}  # which reads a batch, too
    checkpoint = {without: True}
    Toy(
        tmp_path / "whole", run, {**checkpoint, "save_dir": str(tmp_path / "whole")}
    ).trainer().train()
    toy = Toy(tmp_path, run, checkpoint, train=Interrupting(number, at))
    results = toy.trainer().train()
    assert results.signal == number
    assert results.num_updates == 7 * (at[0] - 1) + at[1] + 1
    assert signal.getsignal(number) == before
    toy.train = ToySource()
    assert toy.trainer().train().signal is None
    name = "checkpoint_last" if without == "no_epoch_checkpoints" else "checkpoint2"
    assert_same_tensors(tensors(tmp_path / "whole", name), tensors(tmp_path, name))


def test_a_signal_without_checkpoints_promises_nothing(tmp_path):
    toy = Toy(tmp_path, {"preflight": False}, {"no_save": True}, train=Interrupting(2, (1, 3)))
    assert toy.trainer().train().ended == "interrupted; nothing saved (--no-save)"
    assert names(tmp_path) == []


def test_a_signal_names_the_flags_that_would_begin_again(tmp_path):
    Toy(tmp_path, {"max_update": 2}).trainer().train()
    path = str(tmp_path / "checkpoint_last.safetensors")
    again = {"restore_file": path, "reset_optimizer": True}
    toy = Toy(tmp_path, {"preflight": False}, again, train=Interrupting(2, (1, 3)))
    command = "the same command without --restore-file --reset-optimizer"
    assert toy.trainer().train().ended == f"interrupted; {command} goes on from here"


def test_a_finished_training_is_left_alone(tmp_path):
    toy = Toy(tmp_path, run={"max_update": 3})
    toy.trainer().train()
    stamp = (tmp_path / "checkpoint_last.safetensors").stat().st_mtime_ns
    assert "3 updates" in toy.trainer().train().ended
    assert (tmp_path / "checkpoint_last.safetensors").stat().st_mtime_ns == stamp


def test_a_loss_that_is_not_finite_stops_with_the_samples(tmp_path):
    toy = Toy(tmp_path, run={"update_freq": (2,)}, train=ToySource(poisoned=[3]))
    with pytest.raises(TrainingError) as caught:
        toy.trainer().train()
    message = str(caught.value)
    assert "update 2 (epoch 1)" in message
    assert "samples 300, 301." in message
    assert message.endswith("the output of model.hidden is the first that is not finite")
    assert "\n" not in message


def test_numbers_that_are_read_late_are_the_same(tmp_path, capsys):
    """Read them as on a GPU, where an update's numbers are read during the next one."""
    outputs = []
    for late in (False, True):
        folder = tmp_path / str(late)
        toy = Toy(folder, run={"max_update": 17}, logging={"log_interval": 4})
        trainer = toy.trainer()
        trainer._reads_late = late
        trainer.train()
        times = ("wps", "ups", "wall", "train_wall", "train_wps", "train_ups", "train_train_wall")
        lines = json_lines(capsys.readouterr().out)
        outputs.append([without(line, (*times, "message")) for line in lines])
    assert outputs[0] == outputs[1]
    assert_same_tensors(tensors(tmp_path / "False"), tensors(tmp_path / "True"))
    trainer = Toy(tmp_path / "bad", {}, train=ToySource(poisoned=[3])).trainer()
    trainer._reads_late = True
    with pytest.raises(TrainingError, match=r"update 4 \(epoch 1\).* samples 300, 301\."):
        trainer.train()


def test_a_trainer_drops_the_wrapper_of_its_objective_before_the_processes_part(tmp_path):
    """A wrapper that ends after the group of processes can wait for ever for a thread of gloo."""

    class Wrapper(nn.Module):
        def __init__(self, objective):
            super().__init__()
            self.objective = objective

        def forward(self, batch, telemetry):
            return self.objective(batch, telemetry=telemetry)

    trainer = Toy(tmp_path, run={"max_update": 1}).trainer()
    trainer.learner.wrapped = Wrapper(trainer.learner.objective)
    wrapper = weakref.ref(trainer.learner.wrapped)
    trainer.train()
    assert wrapper() is None


def test_checks_before_the_first_update(tmp_path):
    with pytest.raises(ConfigError, match="bleu needs --eval-bleu"):
        Toy(tmp_path, validation={"best_checkpoint_metric": "bleu"}).trainer().train()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--save-dir .*file/x: cannot be written"):
        Toy(tmp_path / "file" / "x").trainer().train()
    with pytest.raises(ConfigError, match="--fp16 needs a CUDA GPU"):
        Toy(tmp_path, run={"fp16": True}).trainer()
    with pytest.raises(CheckpointError, match="--restore-file none"):
        Toy(tmp_path, checkpoint={"restore_file": "none.safetensors"}).trainer().train()


def test_reset_flags_leave_out_parts_of_the_checkpoint(tmp_path):
    Toy(tmp_path / "a", run={"max_update": 9}).trainer().train()
    last = str(tmp_path / "a" / "checkpoint_last.safetensors")

    def resumed(**checkpoint):
        settings = {"restore_file": last, "save_dir": str(tmp_path / "b"), **checkpoint}
        trainer = Toy(tmp_path / "b", {"max_update": 1}, settings).trainer()
        trainer.train()
        return trainer

    trainer = resumed(no_save=True)
    assert (trainer.state.num_updates, trainer.state.epoch, trainer.state.batch_offset) == (9, 2, 2)
    trainer = resumed(no_save=True, reset_optimizer=True)
    assert (trainer.state.num_updates, trainer.state.epoch, trainer.state.batch_offset) == (1, 2, 3)
    trainer = resumed(no_save=True, reset_dataloader=True)
    assert (trainer.state.num_updates, trainer.state.epoch, trainer.state.batch_offset) == (9, 1, 0)
    trainer = resumed(no_save=True, reset_meters=True)
    assert trainer.state.best_score is None
    assert trainer.state.epoch_meters.updates == 0
    tuned = {"restore_file": "checkpoint_last.safetensors", "finetune_from_model": last}
    trainer = resumed(no_save=True, **tuned)
    assert (trainer.state.num_updates, trainer.state.batch_offset) == (1, 1)


def test_a_checkpoint_of_another_model(tmp_path):
    Toy(tmp_path, run={"max_update": 1}).trainer().train()
    trainer = Toy(tmp_path, run={"max_update": 2}).trainer()
    trainer.learner.model.output = torch.nn.Linear(9, 1)
    with pytest.raises(CheckpointError, match=r"does not fit the model: it has output\.weight"):
        trainer.train()


def test_a_checkpoint_without_optimizer_state(tmp_path):
    checkpoint = {"no_save_optimizer_state": True}
    Toy(tmp_path, {"max_update": 1}, checkpoint).trainer().train()
    with pytest.raises(CheckpointError, match="--reset-optimizer"):
        Toy(tmp_path, {"max_update": 2}, checkpoint).trainer().train()


def test_the_position_moves_along_when_the_batches_change(tmp_path, capsys):
    Toy(tmp_path, run={"max_update": 4}, train=ToySource(8)).trainer().train()
    source = ToySource(4)
    Toy(tmp_path, run={"max_update": 5, "preflight": False}, train=source).trainer().train()
    assert source.loaded == [(1, 2)]
    assert "in proportion" in capsys.readouterr().out


def test_tensorboard_has_the_curves_of_the_log(tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    toy = Toy(
        tmp_path / "save",
        run={"max_update": 6},
        logging={
            "tensorboard_logdir": str(tmp_path / "tb"),
            "log_format": "simple",
            "telemetry_interval": 3,
        },
    )
    trainer = toy.trainer()
    trainer.train()
    assert "toy/output" not in capsys.readouterr().out
    curves = EventAccumulator(str(tmp_path / "tb" / "train_inner")).Reload()
    expected = {"loss", "nll_loss", "ppl", "bias", "lr", "gnorm", "wps", "toy/output"}
    assert expected <= set(curves.Tags()["scalars"])
    assert steps_of(curves, "loss") == [2, 4, 6]
    assert steps_of(curves, "toy/output") == [3, 6]
    # Telemetry costs time: it is asked for only where it is logged.
    assert trainer.learner.objective.telemetry_calls == 2
    valid = EventAccumulator(str(tmp_path / "tb" / "valid")).Reload()
    assert steps_of(valid, "loss") == [6]


@pytest.mark.parametrize(
    ("logging", "updates"),
    [
        ({"log_format": "json", "telemetry_interval": 3}, [3, 6]),
        ({"log_format": "json", "telemetry_interval": 0}, []),
        ({"log_format": "json"}, []),  # the default interval is longer
        ({"log_format": "simple", "telemetry_interval": 3}, []),
    ],
)
def test_telemetry_is_a_json_line_of_its_own(tmp_path, capsys, logging, updates):
    trainer = Toy(tmp_path, run={"max_update": 7}, logging=logging).trainer()
    trainer.train()
    assert trainer.learner.objective.telemetry_calls == len(updates)
    lines = capsys.readouterr().out.splitlines()
    records = [json.loads(line) for line in lines if '"telemetry"' in line]
    assert values(records, "num_updates") == updates
    for line in records:
        assert line.keys() == {"epoch", "num_updates", "telemetry"}
        assert line["telemetry"].keys() == {"toy/output"}


def no_space(*_, **__):
    raise OSError(28, "No space left on device")


def test_a_full_disk_in_the_middle_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    toy = Toy(tmp_path, run={"max_update": 3})
    toy.trainer().train()
    before = tensors(tmp_path)
    monkeypatch.setattr("relu_nmt.training.checkpoint.save_file", no_space)
    toy.run = {"max_update": 5}
    with pytest.raises(CheckpointError, match="No space left"):
        toy.trainer().train()
    assert_same_tensors(before, tensors(tmp_path))


def test_a_slow_preflight_shows_that_it_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("relu_nmt.io.progress.SECONDS_UNTIL_WAITING", 0.01)
    Toy(tmp_path, run={"max_update": 1}, train=Slow()).trainer().train()
    notes = values(json_lines(capsys.readouterr().out), "message")
    waiting = [text.startswith("preflight: 0% of 2 steps") for text in notes]
    done = [text.startswith("preflight: the largest batch") for text in notes]
    assert True in waiting and waiting.index(True) < done.index(True)


def test_a_slow_validation_shows_its_progress(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("relu_nmt.io.progress.SECONDS_BETWEEN_LINES", 0.0)
    Toy(tmp_path, run={"max_update": 1}).trainer().train()
    notes = values(json_lines(capsys.readouterr().out), "message")
    begin = notes.index("begin validation on 'valid' subset")
    assert notes[begin + 1].startswith("validation: ")


class ClockedSource(ToySource):
    """Batches that take one time before second 150 and another after it, on a clock of its own."""

    def __init__(self, monkeypatch, before, after):
        super().__init__()
        self.now = 100.0
        self.before = before
        self.after = after
        monkeypatch.setattr("relu_nmt.training.trainer.time", self)

    def monotonic(self):
        return self.now

    def load(self, index):
        self.now += self.before if self.now < 150 else self.after
        return super().load(index)


def train_in_seconds(folder, source, seconds):
    run = {"budget": f"{seconds}s", "max_update": seconds, "stop_time_hours": seconds / 3600}
    schedule = {"lr_scheduler": "polynomial_decay", "total_num_update": seconds}
    toy = Toy(folder, {**run, "log_interval": 1}, train=source, schedule=schedule)
    toy.validation = {"disable_validation": True}
    return toy.trainer().train()


@pytest.mark.parametrize(("before", "after"), [(1.0, 1.0), (1.0, 3.0), (2.0, 0.5)])
def test_a_budget_of_time_ends_with_rate_0_at_any_pace(tmp_path, monkeypatch, before, after):
    source = ClockedSource(monkeypatch, before, after)
    result = train_in_seconds(tmp_path, source, 100)
    assert 100 <= source.now - 100 <= 107
    assert result.ended == "the time is up (--budget 100s)"
    # Each rate is the rate of the planned update at this share of the time.
    for line in result.train[10:]:
        assert line["lr"] == pytest.approx(0.05 * (100 - line["wall"]) / 97, abs=0.003)
    assert result.train[-1]["lr"] < 0.003


def test_a_larger_budget_of_time_opens_the_schedule_again(tmp_path, monkeypatch):
    source = ClockedSource(monkeypatch, 1.0, 1.0)
    train_in_seconds(tmp_path, source, 20)
    done = train_in_seconds(tmp_path, source, 40)
    rates = [line["lr"] for line in done.train if line["num_updates"] > 20]
    assert 0.4 * 0.05 < rates[0] < 0.6 * 0.05
    assert rates[-1] < 0.1 * rates[0]

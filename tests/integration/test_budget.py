"""--budget: a training that chooses what is not given, ends with rate 0, and goes on."""

import itertools
import random
import time

import pytest

from relu_nmt.cli import train as train_command
from relu_nmt.jobs import budget
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.training.update import make_update
from tests.commands import assert_refused, run_here
from tests.outputs import json_lines, names_in, starting, values
from tests.tiny import (
    digit_documents,
    digit_lines,
    preprocessed,
    write_documents,
    write_lines,
)

LAST = "checkpoint_last.safetensors"
SHAPE = ("layers=1", "embed-dim=16", "ffn-embed-dim=16", "attention-heads=2")
SMALL = list(map("".join, itertools.product(("--encoder-", "--decoder-"), SHAPE)))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budget")
    rng = random.Random(0)
    for split in ("train", "valid"):
        write_lines(folder, split, digit_lines(rng, 100, 2, 4))
    return preprocessed(folder, joined_dictionary=True)


@pytest.fixture(autouse=True)
def _one_timed_update(monkeypatch):
    monkeypatch.setattr(budget, "TIMED_UPDATES", 1)


def train(data, folder, *flags, check=True):
    words = ["--cpu", "--log-format", "json", "--save-dir", folder, "--arch", "reluformer"]
    return run_here("train", data, words, flags, check=check)


def stored(folder):
    return read_metadata(folder / LAST)["args"]


def test_it_ends_with_rate_0_and_stores_its_choices(data, tmp_path):
    lines = json_lines(train(data, tmp_path, SMALL, "--budget", "30u").stdout)
    assert len(starting(values(lines, "message"), "budget 30u")) == 5
    assert values(lines, "num_updates")[-1] == 30
    rates = values(lines, "lr")
    assert max(rates) == 0.016 and rates[-1] == 0
    assert len(values(lines, "valid_loss")) > 1
    settings = stored(tmp_path)
    assert settings["trainer"]["max_update"] == 30
    assert settings["trainer"]["schedule"]["total_num_update"] == 30
    assert settings["trainer"]["schedule"]["warmup_updates"] == 10
    assert settings["trainer"]["optimizer"]["store_ema"]
    assert names_in(tmp_path, "checkpoint*") == ["checkpoint_best.safetensors", LAST]


@pytest.mark.parametrize(("budget", "width"), [("2s", 128), ("2u", 256)])
def test_a_short_time_has_a_small_shape(data, tmp_path, budget, width):
    done = train(data, tmp_path, "--budget", budget, "--disable-validation")
    assert f"3+3 layers of width {width}" in done.stdout
    settings = stored(tmp_path)
    assert settings["model"]["share_all_embeddings"]
    assert settings["model"]["positions"] == "sinusoidal+rotary"
    for side in ("encoder", "decoder"):
        assert settings["model"][f"{side}_normalize_before"] == (width == 128)
    assert settings["batching"]["max_tokens"] == 768


def test_two_dictionaries_tie_the_target_side_alone(tmp_path):
    for split in ("train", "valid"):
        lines = digit_lines(random.Random(0), 20, 2, 4)
        write_lines(tmp_path, split, lines, target=[f"{line} x" for line in lines])
    train(preprocessed(tmp_path), tmp_path / "save", SMALL, "--budget=2u", "--disable-validation")
    model = stored(tmp_path / "save")["model"]
    assert model["share_decoder_input_output_embed"] and not model["share_all_embeddings"]


def test_the_first_batch_holds_a_group_of_sentences(tmp_path):
    for split in ("train", "valid"):
        write_documents(tmp_path, split, digit_documents(random.Random(0), 9))
    data = preprocessed(tmp_path, joined_dictionary=True, document_separator="blank")
    flags = ["--budget=2u", "--disable-validation", "--max-doc-tokens=1024"]
    train(data, tmp_path / "save", SMALL, flags)
    assert stored(tmp_path / "save")["batching"]["max_tokens"] == 1024


def test_flags_win_and_are_kept(data, tmp_path):
    flags = (
        "--budget 6u --lr 5e-4 --dropout 0.3 --ema-decay 0.9 --max-tokens 500 --positions learned"
    )
    flags += " --warmup-updates 1 --label-smoothing 0"
    train(data, tmp_path, SMALL, flags.split())
    settings = stored(tmp_path)
    assert settings["trainer"]["schedule"]["lr"] == [5e-4]
    assert settings["trainer"]["schedule"]["warmup_updates"] == 1
    assert settings["trainer"]["optimizer"]["ema_decay"] == 0.9
    assert settings["model"]["dropout"] == 0.3
    assert settings["model"]["positions"] == "learned"
    assert settings["model"]["encoder_embed_dim"] == 16
    assert settings["batching"]["max_tokens"] == 500


def test_a_dumped_file_trains_as_its_flags_and_leaves_choices_to_a_budget(data, tmp_path, capsys):
    flags = [*SMALL, "--dropout", "0.3", "--lr", "5e-4", "--max-update", "9", "--max-tokens", "500"]
    words = [str(data), "--cpu", "--arch", "reluformer", "--save-dir", str(tmp_path / "first")]
    with pytest.raises(SystemExit):
        train_command.main([*words, *flags, "--dump-config"])
    dumped = tmp_path / "own.yaml"
    dumped.write_text(capsys.readouterr().out)
    run_here("train", "--config", dumped, "--budget", "4u")
    settings = stored(tmp_path / "first")
    assert settings["data"] == str(data)
    assert settings["model"]["dropout"] == 0.3
    assert settings["model"]["encoder_embed_dim"] == 16
    assert settings["batching"]["max_tokens"] == 500
    assert settings["trainer"]["schedule"]["lr"] == [5e-4]
    assert settings["trainer"]["max_update"] == 4
    assert settings["trainer"]["schedule"]["lr_scheduler"] == "polynomial_decay"
    assert settings["trainer"]["optimizer"]["store_ema"]
    assert settings["model"]["positions"] == "sinusoidal+rotary"


def test_the_number_of_max_tokens_auto_is_printed_once(data, tmp_path):
    done = train(data, tmp_path, SMALL, "--budget", "2u", "--max-tokens", "auto")
    assert done.stdout.count("--max-tokens auto: 4,096") == 1


def test_a_choice_may_be_switched_off(data, tmp_path):
    flags = "--budget 4u --no-store-ema --disable-validation --lr-scheduler inverse_sqrt"
    train(data, tmp_path, SMALL, flags.split())
    trainer = stored(tmp_path)["trainer"]
    assert not trainer["optimizer"]["store_ema"]
    assert trainer["schedule"]["lr_scheduler"] == "inverse_sqrt"
    assert trainer["validate_interval_updates"] == 0


@pytest.mark.parametrize(
    ("flags", "interval"), [([], 2), (["--lr-scheduler", "reduce_lr_on_plateau"], 1)]
)
def test_only_a_schedule_by_flag_is_validated_at_the_ends_of_epochs(
    data, tmp_path, flags, interval
):
    train(data, tmp_path, SMALL, "--budget", "2e", "--max-tokens", "100", flags)
    assert stored(tmp_path)["trainer"]["validate_interval"] == interval


def test_a_published_shape_stays(data, tmp_path):
    done = train(data, tmp_path, "--budget", "2u", "--arch", "reluformer_tiny")
    assert "the model as --arch reluformer_tiny states it" in done.stdout
    model = stored(tmp_path)["model"]
    assert model["encoder_embed_dim"] == 64 and model["positions"] == "sinusoidal"


def test_the_same_command_goes_on_and_a_larger_budget_too(data, tmp_path):
    train(data, tmp_path, SMALL, "--budget", "6u")
    again = train(data, tmp_path, "--budget", "6u")
    assert "6 updates are made" in again.stdout and "settings are changed" not in again.stdout
    lines = json_lines(train(data, tmp_path, "--budget", "12u").stdout)
    rates = dict(zip(values(lines, "num_updates"), values(lines, "lr"), strict=False))
    assert rates[12] == 0
    # The schedule is where a training of 12 updates would be.
    assert rates[7] == pytest.approx(0.001 * 16 * ((12 - 7) / (12 - 4)) ** 0.3, rel=1e-3)
    model = stored(tmp_path)["model"]
    assert model["encoder_embed_dim"] == 16


def test_a_trial_takes_a_small_share_of_the_time(data, tmp_path, monkeypatch):
    trials = []

    def slow_update(learner, plan, batches):
        trials.append(plan.num_updates)
        time.sleep(0.1)
        return make_update(learner, plan, batches)

    monkeypatch.setattr(budget, "TIMED_UPDATES", 8)
    monkeypatch.setattr(budget, "make_update", slow_update)
    monkeypatch.setattr(budget, "has_fast_bfloat16", lambda: False)
    train(data, tmp_path, SMALL, "--budget", "2s")
    assert trials == [1, 2]
    trials.clear()
    train(data, tmp_path / "more", SMALL, "--budget", "2u")
    assert len(trials) == 9


def test_a_share_of_an_epoch(data, tmp_path):
    done = train(data, tmp_path, SMALL, "--budget", "0.5e", "--max-tokens", "100")
    lines = json_lines(done.stdout)
    updates = values(lines, "num_updates")[-1]
    per_epoch = int(done.stdout.partition("an epoch has ")[2].split()[0])
    assert updates == round(per_epoch / 2) > 1


def test_seconds_are_measured_and_kept_by_the_schedule(data, tmp_path, monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            self.now += 0.01
            return self.now

    clock = Clock()
    monkeypatch.setattr(budget, "time", clock)
    monkeypatch.setattr("relu_nmt.training.trainer.time", clock)
    monkeypatch.setattr("relu_nmt.jobs.training.time", clock)
    lines = json_lines(train(data, tmp_path, SMALL, "--budget", "2s").stdout)
    trainer = stored(tmp_path)["trainer"]
    assert 0 < trainer["stop_time_hours"] * 3600 < 2 and trainer["max_update"] > 1
    rates = values(lines, "lr")
    share_left = (rates[-1] / max(rates)) ** (1 / 0.3)  # of the time, for a decay with power 0.3
    assert share_left < 0.2
    assert "the time is up (--budget 2s)" in lines[-1]["message"]


def test_the_settings_of_a_checkpoint_serve_another_budget(data, tmp_path):
    train(data, tmp_path / "first", SMALL, "--budget", "4u", "--dropout", "0.2")
    path = tmp_path / "first" / LAST
    train(data, tmp_path / "second", "--config", path, "--budget", "8u")
    settings = stored(tmp_path / "second")
    assert settings["trainer"]["max_update"] == 8
    assert settings["trainer"]["schedule"]["total_num_update"] == 8
    assert settings["model"]["dropout"] == 0.2
    done = train(data, tmp_path / "third", "--finetune-from-model", path, "--budget", "2u")
    assert f"the model of {path}" in done.stdout
    assert stored(tmp_path / "third")["model"]["encoder_embed_dim"] == 16


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--budget 1d", "--budget: '1d': expected 4000u"),
        ("--budget 0m", "expected 4000u"),
        ("--budget 2.5u", "updates are whole numbers"),
        ("--budget 1h --max-update 100", "--max-update: --budget 1h says when the training ends"),
        ("--budget 1h --max-epoch 2", "--max-epoch: --budget 1h says"),
        ("--budget 1h --stop-time-hours 2", "--stop-time-hours: --budget 1h says"),
        ("--budget 1h --total-num-update 9", "--total-num-update: --budget 1h says"),
    ],
)
def test_bad_budgets_and_two_ends(data, tmp_path, flags, message):
    folder = tmp_path / "none"
    assert_refused(train(data, folder, flags.split(), check=False), message)
    assert not folder.exists()

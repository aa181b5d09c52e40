"""Settings, averaged weights, signals and the names of checkpoints."""

import dataclasses
import json
import math
import os
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from relu_nmt.config import from_flat
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.io.process import noting_signals
from relu_nmt.training.checkpoint import SUFFIX, Checkpoint, load_checkpoint, save_checkpoint
from relu_nmt.training.config import OptimizerConfig, TrainerConfig
from relu_nmt.training.log import Meters
from relu_nmt.training.save_dir import CheckpointFolder
from relu_nmt.training.state import TrainingState, WeightAverage, running_statistics
from tests.unit.training.toy import parsed


def test_the_update_frequency_may_differ_by_epoch():
    assert parsed(TrainerConfig, ["--update-freq", "4,2"]).update_freq == (4, 2)
    config = TrainerConfig(update_freq=(4, 2))
    assert list(map(config.update_freq_of, (1, 2, 9))) == [4, 2, 2]
    for text in ("0", "x", "", "1.5"):
        with pytest.raises(ConfigError, match="--update-freq"):
            TrainerConfig(update_freq=text)


def test_whether_more_is_better_follows_from_the_metric():
    assert not TrainerConfig().maximize
    assert TrainerConfig(best_checkpoint_metric="bleu").maximize
    assert parsed(TrainerConfig, ["--maximize-best-checkpoint-metric"]).maximize
    assert not parsed(
        TrainerConfig, ["--best-checkpoint-metric", "bleu", "--no-maximize-best-checkpoint-metric"]
    ).maximize


@pytest.mark.parametrize(
    ("config_class", "settings", "message"),
    [
        (TrainerConfig, {"fp16": True, "bf16": True}, "--fp16 does nothing with --bf16"),
        (TrainerConfig, {"max_update": -1}, "--max-update -1"),
        (TrainerConfig, {"seed": -1}, "--seed -1"),
        (TrainerConfig, {"validate_interval": 0}, "--validate-interval 0"),
        (TrainerConfig, {"save_interval": 0}, "--save-interval 0"),
        (
            TrainerConfig,
            {"finetune_from_model": "x", "reset_meters": True},
            "--reset-meters does nothing with --finetune-from-model",
        ),
        (TrainerConfig, {"finetune_from_model": "x", "restore_file": "y"}, "leave one out"),
        (
            TrainerConfig,
            {"no_epoch_checkpoints": True, "no_last_checkpoints": True, "disable_validation": True},
            "or say --no-save",
        ),
        (TrainerConfig, {"log_interval": 0}, "--log-interval 0"),
        (TrainerConfig, {"telemetry_interval": -1}, "--telemetry-interval -1"),
        (OptimizerConfig, {"ema_decay": 1.0}, "--ema-decay"),
        (OptimizerConfig, {"ema_decay": 0.9}, "--ema-decay 0.9 does nothing without --store-ema"),
        (TrainerConfig, {"fp16_init_scale": 1}, "--fp16-init-scale 1 does nothing without --fp16"),
        (TrainerConfig, {"keep_interval_updates": 1}, "without --save-interval-updates"),
        (TrainerConfig, {"no_save": True, "keep_last_epochs": 1}, "with --no-save"),
        (TrainerConfig, {"disable_validation": True, "patience": 1}, "with --disable-validation"),
        (TrainerConfig, {"disable_validation": True, "keep_best_checkpoints": 1}, "does nothing"),
    ],
)
def test_contradicting_settings_of_training_are_errors(config_class, settings, message):
    with pytest.raises(ConfigError, match=message):
        from_flat(config_class, settings)


def test_the_average_follows_the_formula():
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    config = OptimizerConfig(store_ema=True, ema_decay=0.9, ema_start_update=1, ema_update_freq=2)
    average = WeightAverage(model, config)
    for update in range(1, 7):
        nn.init.constant_(model.weight, float(update))
        average.update(update)
    with average.applied():
        expected = 0.9 * (0.9 * 0.1 * 2 + 0.1 * 4) + 0.1 * 6
        assert model.weight[0, 0].item() == pytest.approx(expected)
    assert model.weight[0, 0].item() == 6.0


@pytest.mark.parametrize("freq", [1, 2])
def test_the_average_of_a_short_training_forgets_the_start(freq):
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    config = OptimizerConfig(store_ema=True, ema_decay=0.9999, ema_update_freq=freq)
    average = WeightAverage(model, config)
    nn.init.zeros_(model.weight)
    for update in range(1, 20 * freq + 1):
        average.update(update)
    # The product of (1 + t) / (10 + t) for t from 1 to 20.
    expected = math.factorial(21) * math.factorial(10) / math.factorial(30)
    with average.applied():
        assert model.weight.item() == pytest.approx(expected, rel=1e-4)


def test_the_decay_of_a_long_training_is_as_given():
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    average = WeightAverage(model, OptimizerConfig(store_ema=True, ema_decay=0.9))
    nn.init.zeros_(model.weight)
    average.update(80)  # where (1 + t) / (10 + t) is 0.9
    with average.applied():
        assert model.weight.item() == pytest.approx(0.9)


def test_the_statistics_of_batch_norm_are_averaged_with_the_weights_they_belong_to():
    model = nn.Sequential(nn.BatchNorm2d(1))
    config = OptimizerConfig(store_ema=True, ema_decay=0.5, ema_start_update=1)
    average = WeightAverage(model, config)
    means = []
    for update in (1, 2):
        model(torch.full((1, 1, 1, 2), 10.0 * update))
        means.append(model[0].running_mean.item())
        average.update(update)
    with average.applied() as raw:
        assert model[0].running_mean.item() == pytest.approx(0.25 * means[0] + 0.5 * means[1])
        assert raw["0.running_mean"].item() == means[1]
    assert model[0].running_mean.item() == means[1]


def test_batch_norm_without_statistics_has_none_to_average():
    model = nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.BatchNorm2d(1))
    assert list(running_statistics(model)) == ["1.running_mean", "1.running_var"]


def test_before_its_start_the_average_is_a_copy():
    model = nn.Linear(2, 1)
    average = WeightAverage(
        model, OptimizerConfig(store_ema=True, ema_decay=0.5, ema_start_update=3)
    )
    weights = []
    for update in (1, 2, 3, 4):
        with torch.no_grad():
            model.weight.fill_(float(update))
        average.update(update)
        with average.applied() as raw:
            weights.append(model.weight[0, 0].item())
            assert raw["weight"][0, 0].item() == update
    assert weights == [1.0, 2.0, 2.5, 3.25]


def test_weights_come_back_after_an_error():
    model = nn.Linear(2, 1)
    average = WeightAverage(model, OptimizerConfig(store_ema=True, ema_decay=0.5))
    with torch.no_grad():
        model.weight.fill_(7.0)
    with pytest.raises(RuntimeError), average.applied():
        raise RuntimeError
    assert (model.weight == 7.0).all()


def test_without_an_average_the_weights_are_the_models():
    model = nn.Linear(2, 1)
    average = WeightAverage(model, OptimizerConfig())
    average.update(1)
    before = model.weight.detach().clone()
    with average.applied() as raw:
        assert raw == {}
        assert torch.equal(model.weight, before)


def test_a_second_interrupt_is_not_held_back():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), noting_signals() as received:
        signal.raise_signal(signal.SIGINT)
        assert received == [signal.SIGINT]
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(("number", "heard"), [(signal.SIGINT, True), (signal.SIGHUP, False)])
def test_ignored_signals_stay_ignored_except_an_interrupt(number, heard):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with noting_signals() as received:
            signal.raise_signal(number)
            assert received == [number] * heard
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_validations_without_a_better_score_are_counted():
    state = TrainingState()
    scores = (1.0, 3.0, 3.0, 2.0, math.nan, 4.0)
    results = [(state.add_score(score, maximize=True), state.bad_validations) for score in scores]
    assert results == [(True, 0), (True, 0), (True, 1), (False, 2), (False, 3), (True, 0)]
    assert state.best_score == 4.0
    assert not TrainingState().add_score(math.nan, maximize=False)
    assert TrainingState(best_score=1.0).add_score(0.5, maximize=False)


def test_the_count_of_earlier_checkpoints_is_understood():
    meters = Meters({"loss": (1.5, 2)}, tokens=3.0, updates=1)
    state = TrainingState(epoch=3, best_score=2.0, bad_validations=4, epoch_meters=meters)
    stored = json.loads(json.dumps(dataclasses.asdict(state)))
    assert TrainingState.from_dict(stored, "x") == state
    del stored["bad_validations"]
    stored["patience"] = {"best": 2.0, "bad_validations": 4}
    assert TrainingState.from_dict(stored, "x") == state


@pytest.mark.parametrize("value", [None, [], "", 3, {"a": 1}, {"a": [1, 2, 3]}])
@pytest.mark.parametrize("at", [("inner",), ("inner", "sums"), ("epoch_meters", "sums")])
def test_a_state_of_another_form_is_refused(at, value):
    stored = dataclasses.asdict(TrainingState())
    *outer, last = at
    inner = stored
    for name in outer:
        inner = inner[name]
    inner[last] = value
    with pytest.raises(CheckpointError, match=r"^x: its training state cannot be read"):
        TrainingState.from_dict(stored, "x")


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_offset": 1e308},
        {"batch_offset": -1},
        {"best_subset": [1]},
        {"epoch": True},
        {"num_updates": 10**400},
        {"precision": {"scale": "x"}},
        {"rate": 1},
    ],
)
def test_a_state_with_a_value_of_another_type_is_refused(changes):
    stored = {**dataclasses.asdict(TrainingState()), **changes}
    with pytest.raises(CheckpointError, match=r"^x: its training state cannot be read"):
        TrainingState.from_dict(stored, "x")


def folder_at(path, metric="bleu", **settings):
    return CheckpointFolder(
        TrainerConfig(save_dir=str(path), best_checkpoint_metric=metric, **settings)
    )


def test_a_folder_that_is_gone_hides_no_error(tmp_path):
    folder = folder_at(tmp_path / "new")
    with pytest.raises(ConfigError, match="the cause"), folder.owned():
        shutil.rmtree(folder.path)
        raise ConfigError("the cause")


def stems(names):
    return [name.removesuffix(SUFFIX) for name in names]


@pytest.mark.parametrize(
    ("settings", "at", "expected"),
    [
        ({}, (3, 300, True), ["checkpoint3", "checkpoint_last"]),
        ({"no_epoch_checkpoints": True}, (3, 300, True), ["checkpoint_last"]),
        ({"save_interval": 2}, (3, 300, True), ["checkpoint_last"]),
        ({"no_last_checkpoints": True}, (3, 300, True), ["checkpoint3"]),
        (
            {"no_last_checkpoints": True},
            (3, 300, False, {"interrupted": True}),
            ["checkpoint_last"],
        ),
        ({"no_save": True}, (3, 300, True, {"is_best": True, "interrupted": True}), []),
        (
            {"keep_best_checkpoints": 3},
            (3, 300, True, {"is_best": True, "kept_score": 27.30849}),
            ["checkpoint3", "checkpoint_best", "checkpoint.best_bleu_27.3085", "checkpoint_last"],
        ),
        (
            {"save_interval_updates": 100},
            (3, 300, True),
            ["checkpoint3", "checkpoint_3_300", "checkpoint_last"],
        ),
        (
            {"save_interval_updates": 100, "no_epoch_checkpoints": True},
            (3, 300, True),
            ["checkpoint_3_300", "checkpoint_last"],
        ),
        ({"save_interval_updates": 100}, (3, 300, False), ["checkpoint_3_300", "checkpoint_last"]),
        ({"save_interval_updates": 70}, (3, 300, False), ["checkpoint_last"]),
    ],
)
def test_checkpoints_have_the_names_of_fairseq(tmp_path, settings, at, expected):
    *position, options = at if isinstance(at[-1], dict) else (*at, {})
    assert stems(folder_at(tmp_path, **settings).names(*position, **options)) == expected


@pytest.mark.parametrize(
    ("settings", "pattern", "other_numbers", "new"),
    [
        ({"keep_last_epochs": 2}, "checkpoint{}", (3, 4), (1, 2)),
        (
            {"keep_interval_updates": 2, "save_interval_updates": 3},
            "checkpoint_1_{}",
            (9, 12),
            (3, 6),
        ),
    ],
)
def test_a_new_checkpoint_stays_and_one_of_an_earlier_training_goes(
    tmp_path, settings, pattern, other_numbers, new
):
    folder = folder_at(tmp_path, **settings)
    for number in (*other_numbers, *new):
        folder.write(Checkpoint({"w": torch.ones(1)}), [f"{pattern.format(number)}{SUFFIX}"])
    assert set(os.listdir(tmp_path)) == {f"{pattern.format(number)}{SUFFIX}" for number in new}


def test_a_checkpoint_under_several_names_is_whole_under_each(tmp_path):
    folder = folder_at(tmp_path)
    folder.write(Checkpoint({"w": torch.ones(2)}), [f"a{SUFFIX}", f"b{SUFFIX}"])
    folder.write(Checkpoint({"w": torch.zeros(2)}), [f"a{SUFFIX}"])
    assert load_checkpoint(tmp_path / f"b{SUFFIX}").model_tensors["w"].tolist() == [1.0, 1.0]
    assert load_checkpoint(tmp_path / f"a{SUFFIX}").model_tensors["w"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("metric", "values"), [("bleu", [9.5, 10.0]), ("loss", [-1.0, 2.0])])
def test_the_best_are_kept_by_number_not_by_text(tmp_path, metric, values):
    folder = folder_at(tmp_path, metric, keep_best_checkpoints=2)
    other = f"checkpoint.best_other_1.00{SUFFIX}"
    (tmp_path / other).touch()
    for value in (9.5, 10.0, 2.0, -1.0):
        name = f"checkpoint.best_{metric}_{value:.4f}{SUFFIX}"
        if folder.keeps(value):
            folder.write(Checkpoint({"w": torch.ones(1)}), [name])
    assert not folder.keeps(math.nan)
    expected = {f"checkpoint.best_{metric}_{value:.4f}{SUFFIX}" for value in values}
    assert set(os.listdir(tmp_path)) == {*expected, other}


def test_a_restore_file_is_looked_for_in_the_folder_and_then_as_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint_last.safetensors").touch()
    assert folder_at(tmp_path / "x").restore_path() is None
    (tmp_path / "other").touch()
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "inside").touch()
    assert folder_at(tmp_path / "x", restore_file="inside").restore_path().parent.name == "x"
    assert folder_at(tmp_path / "x", restore_file="other").restore_path().name == "other"


def test_a_folder_cannot_be_the_restore_file(tmp_path):
    (tmp_path / "checkpoint_last.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="a folder; give the checkpoint file"):
        load_checkpoint(folder_at(tmp_path).restore_path())


def test_no_name_of_a_checkpoint_shares_its_bytes_with_another(tmp_path):
    names = [f"checkpoint{part}{SUFFIX}" for part in ("3", "_3_30", "_best", "_last")]
    folder = folder_at(tmp_path)
    other = tmp_path / "other"
    save_checkpoint(other, Checkpoint({"w": torch.zeros(1000)}))
    for replaced in names:
        folder.write(Checkpoint({"w": torch.ones(1000)}), names)
        shutil.copyfile(other, tmp_path / replaced)  # as cp does: into the file that is there
        for name in names:
            expected = 0 if name == replaced else 1
            assert load_checkpoint(tmp_path / name).model_tensors["w"].mean() == expected


def test_a_full_disk_is_noticed_before_training(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"MB free, but a checkpoint takes 1,600,000,000 MB"):
        folder_at(tmp_path).check(10**14, averaged=True)
    folder_at(tmp_path).check(10, averaged=False)
    folder_at(tmp_path, no_save=True).check(10**14, averaged=True)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1_048_576))
    with pytest.raises(ConfigError, match="x: 1 MB free, but a checkpoint takes 2 MB and 4 must"):
        folder_at(tmp_path / "x").check(200_000, averaged=False)
    (tmp_path / "x/checkpoint_last.safetensors").touch()  # which the new one takes the place of
    with pytest.raises(ConfigError, match="2 MB and 3 must"):
        folder_at(tmp_path / "x").check(200_000, averaged=False)
    os.link(tmp_path / "x/checkpoint_last.safetensors", tmp_path / "x/mine")
    with pytest.raises(ConfigError, match="2 MB and 6 must"):
        folder_at(tmp_path / "x", save_interval_updates=5, keep_best_checkpoints=2).check(
            200_000, averaged=False
        )

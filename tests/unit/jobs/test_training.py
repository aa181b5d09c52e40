"""Parts shared by all trainings, shown with a training of a user, which brings its own parts."""

import json
import re
from pathlib import Path

import pytest

from relu_nmt.config import REQUIRED, group, option, settings, to_dict
from relu_nmt.errors import CheckpointError, ConfigError, DataError, OutOfMemoryError
from relu_nmt.io import memory
from relu_nmt.jobs.comparison import change_note, refuse_other_model
from relu_nmt.jobs.convert.settings import AverageSettings
from relu_nmt.jobs.train.settings import TranslationTrainingSettings
from relu_nmt.jobs.training import require_training_memory, smaller_batches, training_run
from relu_nmt.jobs.vision_train.settings import ImageTrainingSettings
from relu_nmt.training.batches import TrainingData
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.log import TrainingLog
from tests.outputs import values
from tests.unit.training.toy import ToyModel, ToyObjective, ToySource


@settings
class ToyShape:
    p: float = option(0.2, "dropout", least=0, below=1)


@settings
class ToySettings:
    data: str = option(REQUIRED, "data", positional=True)
    model: ToyShape = group("model", ToyShape)
    trainer: TrainerConfig = group("trainer", TrainerConfig)


def train_toys(settings, progress):
    with training_run(settings, progress) as training:
        model = training.new_model(lambda: ToyModel(settings.model.p), settings.trainer)
        training.say_size(model)
        data = TrainingData(ToySource(), {"valid": ToySource(2)})
        task = {"name": settings.data}
        batches = "seven small batches"
        return training.trainer(ToyObjective(model), data, settings, batches, task).train()


def toy(folder, **values):
    defaults = {"save_dir": folder, "lr": 0.05, "warmup_updates": 3, "cpu": True, "num_workers": 0}
    return ToySettings.of(data="toys", **{**defaults, **values})


@pytest.mark.parametrize(
    ("flags", "world_size", "num_weights"),
    [
        ({}, 1, 3 * 49),
        ({"optimizer": "adafactor"}, 1, 49),
        ({"ddp_backend": "fully_sharded"}, 7, 3 * 7),
        ({"ddp_backend": "c10d"}, 7, 3 * 49),
    ],
)
def test_gradients_and_moments_fit_into_the_memory(monkeypatch, flags, world_size, num_weights):
    config = TrainerConfig.of(**flags)
    monkeypatch.setattr(memory, "UNCHECKED_BYTES", 0)
    monkeypatch.setattr(memory, "free_memory", lambda: 4 * num_weights)
    require_training_memory(ToyModel(0.1), config, world_size)
    monkeypatch.setattr(memory, "free_memory", lambda: 4 * num_weights - 1)
    with pytest.raises(OutOfMemoryError, match=r"gradients and the optimizer .* smaller model"):
        require_training_memory(ToyModel(0.1), config, world_size)


def test_a_model_that_is_too_large_is_not_blamed_on_the_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "UNCHECKED_BYTES", 0)
    monkeypatch.setattr(memory, "free_memory", lambda: 1)
    with pytest.raises(OutOfMemoryError, match=r"smaller model, or --freeze parts of it$"):
        train_toys(toy(tmp_path), False)


def test_the_log_is_closed_if_a_training_fails_before_it_begins(tmp_path, monkeypatch):
    logs = []
    monkeypatch.setattr(TrainingLog, "close", lambda log: logs.append(log))
    with pytest.raises(DataError), training_run(toy(tmp_path), False) as training:
        raise DataError("no data")
    assert logs == [training.log]


def test_a_further_training_needs_only_its_parts(tmp_path, capsys):
    result = train_toys(toy(tmp_path, max_epoch=2, log_format="json"), True)
    messages = capsys.readouterr().out
    assert "num. shared model params: 49" in messages
    assert "training on 1 device(s) (cpu); seven small batches" in messages
    stored = load_checkpoint(result.last_checkpoint).metadata
    assert stored["task"] == {"name": "toys"}
    assert stored["args"]["model"] == stored["model_config"] == {"p": 0.2}
    assert stored["args"]["trainer"]["max_epoch"] == 2
    assert "attention_backend" not in json.dumps(stored)
    assert result.exit_code == 0


def test_without_progress_nothing_is_printed_and_the_result_tells_all(tmp_path, capsys):
    log = tmp_path / "log"
    logging = {"log_format": "json", "log_interval": 2}
    first = train_toys(toy(tmp_path, max_update=5, **logging), False)
    assert first.num_updates == 5
    second = train_toys(toy(tmp_path, max_update=9, log_file=log, **logging), False)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    assert values(second.train, "num_updates") == [2, 4, 6, 8]
    assert second.ended == "9 updates are made (--max-update 9)"
    losses = values(second.valid["valid"], "loss")
    assert second.best_score == second.best["value"] == min(losses)
    assert second.best_checkpoint == tmp_path / "checkpoint_best.safetensors"
    assert json.loads((tmp_path / "results.json").read_text())["num_updates"] == 9
    # Files that were asked for are written all the same.
    assert '"num_updates": 8' in log.read_text()


def test_without_checkpoints_there_are_no_paths(tmp_path):
    train_toys(toy(tmp_path, max_update=1), False)
    result = train_toys(toy(tmp_path, max_update=1, no_save=True), False)
    assert result.best_checkpoint is result.last_checkpoint is None


def test_the_exit_code_is_that_of_the_signal(tmp_path):
    result = train_toys(toy(tmp_path, max_update=1), False)
    result.signal = 15
    assert result.exit_code == 143


def test_settings_are_checked_before_anything_is_read():
    with pytest.raises(ConfigError, match="did you mean max_update"):
        TranslationTrainingSettings.of(data="nowhere", max_tokens=3, max_updates=3)
    with pytest.raises(ConfigError, match="DATA is missing"):
        TranslationTrainingSettings.of(max_tokens=3)
    with pytest.raises(ConfigError, match="--eval-bleu-detok moses does nothing without"):
        TranslationTrainingSettings.of(data="nowhere", max_tokens=3, eval_bleu_detok="moses")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"num_epoch_checkpoints": 1, "num_update_checkpoints": 1},
            "--num-epoch-checkpoints 1 does nothing with --num-update-checkpoints",
        ),
        ({"checkpoint_upper_bound": 1}, "needs --num-epoch-checkpoints"),
        ({"num_epoch_checkpoints": 0}, "expected 1 or more"),
        ({"num_epoch_checkpoints": 1, "inputs": ("a", "b")}, "need one folder"),
        ({"output": None}, "--output"),
    ],
)
def test_contradicting_settings_of_an_average_are_errors(values, message):
    with pytest.raises(ConfigError, match=message):
        AverageSettings.of(**{"inputs": ("a",), "output": "b", **values})


@pytest.mark.parametrize(
    ("size", "advice"),
    [
        (64, "try --batch-size 48 instead of 64, with more --update-freq"),
        (
            1,
            "--batch-size is 1 already; take a smaller model or input, or --checkpoint-activations",
        ),
    ],
)
def test_what_to_do_about_images_that_do_not_fit_into_memory(size, advice):
    settings = ImageTrainingSettings.of(data="d", batch_size=size)
    assert smaller_batches(settings).startswith(advice)


def test_the_advice_names_no_number_that_the_user_did_not_give():
    settings = TranslationTrainingSettings.of(data="d", max_tokens="auto")
    assert smaller_batches(settings) == "give --max-tokens a number smaller than this batch"


def images(**changes):
    return ImageTrainingSettings.of(**{"data": "d", "image_size": 24, **changes})


def test_another_model_is_told_with_the_flags_that_make_it_so():
    before = images()
    after = images(image_size="24x18", tanh_layer=True)
    refused = "was trained with --image-size 24 --tanh-layer false, not --image-size 24x18 --tanh"
    with pytest.raises(CheckpointError, match=re.escape(refused)):
        refuse_other_model(Path("c"), to_dict(before.model), after.model, "")
    stored = json.loads(json.dumps(to_dict(before, stored_only=True)))
    note = change_note(stored, after, goes_on=False)
    assert "--image-size 24x18 (was 24), --tanh-layer true (was false)" in note
    refuse_other_model(Path("c"), to_dict(before.model), before.model, "")
    assert not change_note(stored, before, goes_on=True)


def test_an_image_model_with_another_attention_is_refused():
    stored = to_dict(images().model)
    refused = "was trained with --attention softmax, not --attention reluformer"
    with pytest.raises(CheckpointError, match=refused):
        refuse_other_model(Path("c"), stored, images(attention="reluformer").model, "")


def test_a_damaged_size_of_images_is_told():
    model = images().model
    stored = to_dict(model) | {"image_size": 1e308}
    with pytest.raises(CheckpointError, match=r"--image-size 1e\+308"):
        refuse_other_model(Path("c"), stored, model, "")

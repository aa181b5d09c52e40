"""The stored state of a step, and the changes allowed before it runs again."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from relu_nmt.applications.sweep.steps import DONE, FAILED, STARTED, Step, SweepModel, gpu_names
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import acquire_lock

OLD = ("python", "-m", "relu_nmt.cli.train", "data", "--max-update", "4000", "--seed", "1")
MODEL = SweepModel("softmax", 1, (128,))
TRAIN = "train"
EVALUATE = "evaluate"
NEW = ("python", "-m", "relu_nmt.cli.train", "data", "--max-update", "8000", "--seed", "1")


def make_step(folder, kind=TRAIN, command=NEW):
    length = None if kind == TRAIN else 128
    return Step(MODEL, length, Path(folder), (command,))


def test_a_state_survives_its_file(tmp_path):
    step = make_step(tmp_path)
    assert step.stored() == step
    values = {"status": DONE, "note": "note", "started": "2026", "seconds": 1.5}
    values |= {"peak_memory": 7, "exit_code": 0, "environment": {"torch": "2.13"}}
    done = dataclasses.replace(step, **values)
    done.write()
    assert step.stored() == done
    assert os.listdir(tmp_path) == ["train.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"status": "done"}', '{"commands": 1}'])
def test_a_damaged_state_is_an_error_that_names_the_remedy(tmp_path, text):
    (tmp_path / "train.json").write_text(text)
    with pytest.raises(DataError, match=r"train\.json: damaged .*; delete it to run the step"):
        make_step(tmp_path).stored()


@pytest.mark.parametrize("machine", [{"cpu": []}, {"gpus": "one"}, {"OMP_NUM_THREADS": {}}])
def test_a_machine_whose_description_is_damaged_is_an_error(tmp_path, machine):
    step = dataclasses.replace(make_step(tmp_path), environment=machine)
    step.write()
    with pytest.raises(DataError, match=r"train\.json: damaged .*; delete it to run the step"):
        step.stored()


def test_a_state_that_cannot_be_read_is_not_to_be_deleted(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"train\.json: cannot be read: Not a directory$"):
        make_step(tmp_path / "file").stored()


def earlier(step, status, command=OLD):
    """Write the state of an earlier run of a step."""
    dataclasses.replace(step, status=status, commands=(command,)).write()
    return step


@pytest.mark.parametrize("status", [DONE, STARTED])
@pytest.mark.parametrize("kind", [TRAIN, EVALUATE])
def test_another_command_is_an_error_that_names_the_difference(tmp_path, status, kind):
    step = earlier(make_step(tmp_path, kind), status)
    with pytest.raises(ConfigError, match="'--max-update 4000' where there is '--max-update 8000'"):
        step.finished()


@pytest.mark.parametrize(("kind", "advice"), [(TRAIN, ""), (EVALUATE, "/evaluate-128.json")])
def test_evaluating_again_does_not_require_deleting_the_model(tmp_path, kind, advice):
    step = earlier(make_step(tmp_path, kind), DONE)
    with pytest.raises(ConfigError, match=f"or delete {tmp_path}{advice} to run it again$"):
        step.finished()


def test_an_added_flag_is_named(tmp_path):
    step = earlier(make_step(tmp_path, command=(*OLD, "--bf16")), DONE)
    with pytest.raises(ConfigError, match="it has 'nothing' where there is '--bf16'"):
        step.finished()


def test_another_python_is_the_same_command(tmp_path):
    step = earlier(make_step(tmp_path), DONE, ("/other/python", *NEW[1:]))
    assert step.finished() == step.stored()


def test_a_variant_of_earlier_versions_has_no_tokenizer_and_goes_on(tmp_path):
    """Validation by BLEU took the language's own tokenizer in variants, whatever the sweep has."""
    tokenizer = ("--sacrebleu-tokenizer", "char")
    for kind in (TRAIN, EVALUATE):
        flags = (*NEW[:4], *tokenizer, *NEW[4:])
        step = earlier(make_step(tmp_path, kind, flags), DONE, NEW)
        if kind == TRAIN:
            assert step.finished() == step.stored()
            step = earlier(make_step(tmp_path, kind, (*flags, "--bf16")), DONE, NEW)
        with pytest.raises(ConfigError, match=r"it has '.*' where there is"):
            step.finished()


def test_a_failed_step_may_change_unless_it_left_a_checkpoint(tmp_path):
    step = earlier(make_step(tmp_path), FAILED)
    assert step.finished() is None
    step.checkpoints.mkdir()
    (step.checkpoints / "checkpoint_last.safetensors").touch()
    with pytest.raises(ConfigError, match=f"delete {tmp_path}"):
        step.finished()
    evaluation = earlier(dataclasses.replace(step, length=1), FAILED)
    assert evaluation.finished() is None


def test_a_command_keeps_the_lock_when_its_sweep_is_gone(tmp_path):
    path = tmp_path / "a.lock"
    first = acquire_lock(path)
    assert acquire_lock(path) is None
    command = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[first])
    os.close(first)
    assert acquire_lock(path) is None
    child.communicate(b"\n")
    again = acquire_lock(path)
    assert again is not None
    os.close(again)


def test_the_folder_is_made_or_its_lack_reported(tmp_path):
    os.close(acquire_lock(tmp_path / "new/a.lock"))
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"/file: cannot be made"):
        acquire_lock(tmp_path / "file/a.lock")


@pytest.mark.parametrize(
    ("lengths", "is_mixture", "name", "words"),
    [
        ((128,), False, "relu-L-L128-seed2", "relu/L length 128 seed 2"),
        ((1, 128), True, "relu-L-mix1+128-seed2", "relu/L mixture 1,128 seed 2"),
        ((), False, "relu-L-seed2", "relu/L seed 2"),
    ],
)
def test_the_name_of_a_model_has_its_lengths_if_any(lengths, is_mixture, name, words):
    model = SweepModel("relu/L", 2, lengths, is_mixture)
    assert (model.name, str(model)) == (name, words)


def test_gpus_that_cannot_be_listed_are_one_line(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'RuntimeError: no driver' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ConfigError, match=r"^the GPUs cannot be listed: RuntimeError: no driver$"):
        gpu_names()

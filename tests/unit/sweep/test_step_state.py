"""What is kept of a step, and what may change before it is run again."""

import dataclasses
from pathlib import Path

import pytest

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.sweep.plan import EVALUATE, TRAIN, Step, Training
from relu_nmt.sweep.step_state import (
    DONE,
    FAILED,
    STARTED,
    StepState,
    check_same_commands,
    read_state,
    write_state,
)

OLD = ("python", "-m", "relu_nmt.cli.train", "data", "--max-update", "4000", "--seed", "1")
NEW = ("python", "-m", "relu_nmt.cli.train", "data", "--max-update", "8000", "--seed", "1")


def make_step(folder, kind=TRAIN, command=NEW):
    length = None if kind == TRAIN else 128
    return Step(kind, Training("softmax", 1, (128,)), length, Path(folder), (command,))


def test_a_state_survives_its_file(tmp_path):
    step = make_step(tmp_path)
    assert read_state(step) is None
    state = StepState(DONE, step.commands, "note", "2026", 1.5, 7, 0, {"torch": "2.13"})
    write_state(step, state)
    assert read_state(step) == state
    assert [path.name for path in tmp_path.iterdir()] == ["train.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"status": "done"}', '{"commands": 1}'])
def test_a_damaged_state(tmp_path, text):
    (tmp_path / "train.json").write_text(text)
    with pytest.raises(DataError, match=r"train\.json: damaged .*; delete it to run the step"):
        read_state(make_step(tmp_path))


def test_a_state_that_cannot_be_read_is_not_to_be_deleted(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"train\.json: cannot be read: Not a directory$"):
        read_state(make_step(tmp_path / "file"))


@pytest.mark.parametrize("status", [DONE, STARTED])
@pytest.mark.parametrize("kind", [TRAIN, EVALUATE])
def test_another_command_is_an_error_that_names_the_difference(tmp_path, status, kind):
    with pytest.raises(ConfigError, match="'--max-update 4000' where there is '--max-update 8000'"):
        check_same_commands(make_step(tmp_path, kind), StepState(status, (OLD,)))


@pytest.mark.parametrize(("kind", "advice"), [(TRAIN, ""), (EVALUATE, "/evaluate-128.json")])
def test_to_evaluate_anew_nobody_has_to_delete_the_model(tmp_path, kind, advice):
    with pytest.raises(ConfigError, match=f"or delete {tmp_path}{advice} to run it anew$"):
        check_same_commands(make_step(tmp_path, kind), StepState(DONE, (OLD,)))


def test_an_added_flag_is_named(tmp_path):
    with pytest.raises(ConfigError, match="it has 'nothing' where there is '--bf16'"):
        check_same_commands(make_step(tmp_path, command=(*OLD, "--bf16")), StepState(DONE, (OLD,)))


def test_another_python_is_the_same_command(tmp_path):
    other = ("/other/python", *NEW[1:])
    check_same_commands(make_step(tmp_path), StepState(DONE, (other,)))


def test_a_failed_step_may_change_unless_it_left_a_checkpoint(tmp_path):
    step, failed = make_step(tmp_path), StepState(FAILED, (OLD,))
    check_same_commands(step, failed)
    step.checkpoints.mkdir()
    (step.checkpoints / "checkpoint_last.safetensors").touch()
    with pytest.raises(ConfigError, match=f"delete {tmp_path}"):
        check_same_commands(step, failed)
    check_same_commands(dataclasses.replace(step, kind=EVALUATE, length=1), failed)

"""A few of the kills that ``kills.py`` makes by the hundred, and one at each temporary file."""

import contextlib
import os
import random

import pytest
import torch

from relu_nmt.errors import ConfigError
from relu_nmt.jobs.convert.job import new_folder
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.save_dir import CheckpointFolder, TrainingResult
from tests.system import kills

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that it forks")


def test_what_a_kill_leaves_is_whole(tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    counts = kills.run(tmp_path, 5, random.Random(seed))
    assert counts["within a file"] + counts["between two"] == 5


def test_what_is_lost_or_damaged_is_found(tmp_path):
    from tests.unit.training.toy import Toy

    Toy(tmp_path, run={"max_update": 3}).trainer().train()
    assert kills.check(tmp_path, 4) == "between two"
    with pytest.raises(AssertionError, match="5 updates made, but 3 saved"):
        kills.check(tmp_path, 5)


def names_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_the_next_training_removes_whatever_a_kill_leaves_of_checkpoints(tmp_path):
    """Whatever names safetensors takes: 0.8.0 writes to .tmpXXXXXX."""
    checkpoint = Checkpoint({"w": torch.ones(1_000_000)}, {"args": {"lr": 0.5}})
    names = [
        "checkpoint1.safetensors",
        "checkpoint_best.safetensors",
        "checkpoint_last.safetensors",
    ]

    def folder_at(path):
        return CheckpointFolder(TrainerConfig(save_dir=path))

    def save(path):
        with folder_at(path).owned():
            folder_at(path).try_out(checkpoint)
            folder_at(path).write(checkpoint, names)
            TrainingResult(path).write()

    half = 0
    for path in kills.killed_at_each_file(tmp_path, save):
        half += any(name.endswith(".tmp") for name in names_in(path))
        with folder_at(path).owned():
            names_found = names_in(path) - {".lock"}
            assert names_found <= {*names, "results.json"}
            for name in names_found - {"results.json"}:
                load_checkpoint(path / name, with_training_state=True)
    assert half > 3
    assert names_found == {*names, "results.json"}


def write_onnx():
    pytest.importorskip("onnxscript")
    inputs = (torch.ones(1, 1),)
    program = torch.onnx.export(torch.nn.Linear(1, 1).eval(), inputs, dynamo=True, verbose=False)
    return lambda folder: program.save(folder / "model.onnx")


def write_ctranslate2():
    pytest.importorskip("ctranslate2")
    from relu_nmt.applications.conversion.exports import save_ctranslate2
    from relu_nmt.translation.building import load_model
    from tests.integration.test_wrong_paths import MODEL

    model, task, _ = load_model(MODEL)
    return lambda folder: save_ctranslate2(model, task, folder)


@pytest.mark.parametrize("library", [write_onnx, write_ctranslate2])
def test_a_model_for_another_library_is_whole_or_absent(library, tmp_path):
    write = library()

    def convert(path):
        with new_folder(path / "model") as folder:
            write(folder)

    for path in kills.killed_at_each_file(tmp_path, convert):
        with contextlib.suppress(ConfigError):  # it is there already
            convert(path)
        assert {name.partition("/")[0] for name in names_in(path)} <= {"model"}
        names = names_in(path / "model")
    for path in tmp_path.iterdir():
        assert names_in(path / "model") == names

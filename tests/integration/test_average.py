"""relu-nmt-average on untrained models."""

import pytest
import torch

from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.translator import Translator
from tests.commands import assert_refused
from tests.commands import run_here as run


def test_averaged_checkpoints_have_the_mean_of_the_weights(folder, tmp_path):
    output = tmp_path / "average.safetensors"
    run(
        "average",
        ["--inputs", folder, "--num-epoch-checkpoints", 2, "--checkpoint-upper-bound", 2],
        ["--output", output],
    )
    first = load_checkpoint(folder / "checkpoint1.safetensors")
    second = load_checkpoint(folder / "checkpoint2.safetensors")
    average = load_checkpoint(output)
    for name, value in average.model_tensors.items():
        expected = (first.model_tensors[name] + second.model_tensors[name]) / 2
        torch.testing.assert_close(value, expected)
    assert average.metadata["task"] == first.metadata["task"]
    assert average.metadata["averaged"] == ["checkpoint2.safetensors", "checkpoint1.safetensors"]
    assert "training_state" not in average.metadata
    assert Translator.from_checkpoint(output, "cpu").translate(["ein Haus"], max_len_b=5)[0]

    by_updates = tmp_path / "updates.safetensors"
    run("average", "--inputs", folder, "--num-update-checkpoints", 2, "--output", by_updates)
    names = load_checkpoint(by_updates).metadata["averaged"]
    assert names == ["checkpoint_1_300.safetensors", "checkpoint_1_200.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["FOLDER", "--num-epoch-checkpoints", "4"], "3 checkpoints saved by epochs, but 4"),
        (["checkpoint1.safetensors", "plain.safetensors"], "the source dictionary is"),
        (["checkpoint1.safetensors", "short.safetensors"], "the model setting "),
        (["nothing.safetensors"], "no such checkpoint"),
        (["checkpoint1.safetensors", "--checkpoint-upper-bound", "3"], "needs --num-epoch"),
    ],
)
def test_checkpoints_that_do_not_fit_cannot_be_averaged(folder, tmp_path, arguments, message):
    inputs = [folder if a == "FOLDER" else folder / a if "." in a else a for a in arguments]
    done = run("average", "--inputs", inputs, "--output", tmp_path / "a.safetensors", check=False)
    assert_refused(done, message)
    assert not list(tmp_path.iterdir())

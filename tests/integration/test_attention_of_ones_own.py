"""--user-module, --attention-stats and --print-attention, by the example that users copy."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relu_nmt.cli import generate
from tests.commands import assert_refused, run_here, with_commands
from tests.outputs import starting

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/own_attention"
pytestmark = pytest.mark.slow
SLOTS = ("encoder", "decoder", "cross")
SHORT = ["--cpu", "--beam", "2", "--max-len-b", "5", "--no-progress-bar"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, quick_python):
    """The folder that the example's script makes, and what it prints."""
    folder = tmp_path_factory.mktemp("own")
    done = subprocess.run(
        ["bash", EXAMPLE / "run.sh"],
        env={
            **with_commands(folder / "bin", quick_python),
            "OUT": str(folder),
            "DOCUMENTS": "20",
            "UPDATES": "3",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture
def registered():
    """The example's attention, forgotten again afterwards."""
    forget()  # another test may have registered it
    yield ["--user-module", str(EXAMPLE / "own_attention.py")]
    forget()


def forget():
    from relu_nmt.attention import attentions

    attentions._entries.pop("cosine_relu", None)
    for name in starting(sys.modules, "relu_nmt_user_own_attention"):
        del sys.modules[name]


def arguments_of(folder):
    checkpoint = folder / "checkpoints/checkpoint_last.safetensors"
    return [str(folder / "data-bin"), "--path", str(checkpoint), *SHORT]


def test_the_example_trains_and_translates(trained):
    folder, output = trained
    assert "attention cosine_relu:gamma=2" in output
    assert "BLEU = " in output.splitlines()[-1]
    report = json.loads((folder / "attention.json").read_text())
    assert report["attention"] == dict.fromkeys(SLOTS, "cosine_relu:gamma=2")
    names = map("".join, itertools.product(SLOTS, (".0", ".1")))
    assert report["modules"].keys() == set(names)
    assert 0 < report["overall"]["entropy"] < report["overall"]["mean_log_n"]
    assert abs(report["modules"]["decoder.0"]["by_visible_keys"]["1"]["entropy"]) < 1e-6
    sentences = (folder / "text/test.de").read_text().splitlines()
    assert report["sentences"] == len(sentences) - sentences.count("")


def test_weights_are_printed_for_every_sentence(trained, registered, capsys):
    folder, _ = trained
    flags = [*arguments_of(folder), *registered, "--print-attention"]
    assert generate.main(flags) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {}
    for kind in "SHA":
        rows[kind] = starting(lines, f"{kind}-")
    assert len(rows["S"]) == len(rows["H"]) == len(rows["A"]) > 0
    for source, hypothesis, attention in zip(*rows.values(), strict=True):
        number, record = attention.split("\t")
        assert number[2:] == source.split("\t")[0][2:]
        record = json.loads(record)
        assert (record["slot"], record["layer"], record["head"]) == ("cross", 1, None)
        assert record["keys"] == [*source.split("\t")[1].split(), "</s>"]
        assert record["queries"] == [*hypothesis.split("\t")[2].split(), "</s>"]
        shape = (2, len(record["queries"]), len(record["keys"]))
        assert np.shape(record["weights"]) == shape


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--print-attention", "cross.7"], "attention cross.7: the model's layers are cross.0 to"),
        (["--print-attention", "--print-alignment"], "both print A- lines"),
        (["--attention-stats", "{file}/x.json"], "--attention-stats"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_translated(trained, registered, flags, message):
    folder, _ = trained
    flags = [flag.format(file=folder / "attention.json") for flag in flags]
    done = run_here("generate", arguments_of(folder), registered, flags, check=False)
    assert_refused(done, message)
    assert not done.stdout


def test_a_model_whose_module_is_missing_says_so(trained):
    folder, _ = trained
    message = "checkpoint_last.safetensors: --attention: unknown attention 'cosine_relu'"
    done = run_here("generate", arguments_of(folder), check=False)
    assert_refused(done, message, "--user-module FILE")


def test_an_unknown_name_mentions_the_flag(trained, capsys):
    from relu_nmt.cli import train

    assert train.main([str(trained[0] / "data-bin"), "--attention", "cosine_relu"]) == 2
    assert "--user-module FILE" in capsys.readouterr().err

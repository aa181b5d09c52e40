"""A training goes on with the model that it began with; what else was changed is told."""

import json
import random

import pytest

from relu_nmt.corpus.preprocess_config import PreprocessConfig
from relu_nmt.recipes import preprocess
from tests.commands import run_here


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("going-on")
    rng = random.Random(0)
    for split in ("train", "valid"):
        lines = [" ".join(rng.choices("0123456789", k=5)) for _ in range(20)]
        for language in ("de", "en"):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    prefixes = {f"{split}pref": str(folder / split) for split in ("train", "valid")}
    config = PreprocessConfig(
        source_lang="de",
        target_lang="en",
        destdir=str(folder / "bin"),
        joined_dictionary=True,
        **prefixes,
    )
    preprocess.run(config, progress=False)
    return folder / "bin"


@pytest.fixture(scope="module")
def begun(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    train(data, folder, "--max-update", "1")
    return folder


def train(data, folder, *flags, check=True):
    common = "--arch transformer_tiny --cpu --batch-size 10 --log-format json --disable-validation"
    words = [*common.split(), "--no-epoch-checkpoints", "--save-dir", folder, *flags]
    return run_here("train", data, *words, check=check)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--source-lang en --target-lang de", "was trained on de-en, not en-de"),
        ("--attention rela", "--encoder-attention softmax"),
        ("--cross-attention rela", "--cross-attention softmax, not --cross-attention rela"),
        ("--decoder-positions learned", "--decoder-positions sinusoidal, not"),
        ("--encoder-layers 1", "--encoder-layers 2, not --encoder-layers 1"),
        ("--arch transformer_iwslt_de_en", "--encoder-embed-dim 64"),
        ("--activation-fn gelu", "--feed-forward relu, not --feed-forward gelu"),
    ],
)
def test_another_model_or_direction_is_refused(data, begun, flags, told):
    before = (begun / "checkpoint_last.safetensors").read_bytes()
    done = train(data, begun, "--max-update", "2", *flags.split(), check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert told in done.stderr and "--save-dir" in done.stderr
    assert (begun / "checkpoint_last.safetensors").read_bytes() == before


def test_its_weights_may_start_another(data, begun, tmp_path):
    start = ("--finetune-from-model", begun / "checkpoint_last.safetensors", "--max-update", "1")
    train(data, tmp_path, *start, "--source-lang", "en", "--target-lang", "de")


def test_the_same_model_in_other_words_goes_on(data, begun, tmp_path):
    (tmp_path / "checkpoint_last.safetensors").write_bytes(
        (begun / "checkpoint_last.safetensors").read_bytes()
    )
    flags = "--encoder-attention softmax --max-update 2 --save-interval 2 --log-interval 1"
    assert "note: " not in train(data, tmp_path, *flags.split()).stdout


def test_everything_else_is_told_in_one_note(data, begun, tmp_path):
    (tmp_path / "checkpoint_last.safetensors").write_bytes(
        (begun / "checkpoint_last.safetensors").read_bytes()
    )
    flags = "--lr 1e-3 --warmup-updates 5 --seed 3 --batch-size 7 --dropout 0.2 --max-update 2"
    lines = [json.loads(line) for line in train(data, tmp_path, *flags.split()).stdout.splitlines()]
    [note] = [one["message"] for one in lines if one.get("message", "").startswith("note: ")]
    for told in (
        "--lr 0.001 (was 0.0005)",
        "--warmup-updates 5 (was not given)",
        "--seed 3 (was 1)",
        "--batch-size 7 (was 10)",
        "--dropout 0.2 (was 0.1)",
    ):
        assert told in note
    assert note.count("(was") == 5

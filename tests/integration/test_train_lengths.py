"""Sentences longer than a model can take are found before the first update."""

import re

import pytest

from tests import outputs, tiny
from tests.outputs import json_lines
from tests.tiny import preprocessed, write_lines

LONG = {"source": 17, "target": 23}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sentences of three words. One long source in training and validation, and one long target."""
    folder = tmp_path_factory.mktemp("lengths")
    for split in ("train", "valid"):
        sources, targets = (["1 2 3"] * 40 for _ in range(2))
        sources[30] = " ".join("1" * (LONG["source"] - 1))
        targets[35] = " ".join("2" * (LONG["target"] - 1))
        write_lines(folder, split, sources, targets)
    return preprocessed(folder)


def train(data, folder, *flags, check=True):
    options = "--max-tokens 60 --max-epoch 1"
    return tiny.train(data, folder, options.split(), flags, check=check)


LEARNED = ("--positions", "learned")


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("positions", [LEARNED, ()])
def test_they_are_refused_before_the_first_update(data, tmp_path, side, positions):
    flag = f"--max-{side}-positions"
    done = train(data, tmp_path, positions, flag, LONG[side] - 1, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    sentence = {"source": 30, "target": 35}[side]
    message = rf"train\.de-en: sentence {sentence} has {LONG[side]} {side} tokens, but .*{flag}"
    assert re.search(message, done.stderr), done.stderr
    assert "num_updates" not in done.stdout
    train(data, tmp_path, positions, flag, LONG[side])


def test_an_attention_of_bounded_length_counts_too(data, tmp_path):
    flags = ("--encoder-attention", "linformer:length=16")
    done = train(data, tmp_path, flags, check=False)
    assert done.returncode == 2
    assert re.search("sentence 30 has 17 source tokens, but the model can take 16", done.stderr)


def test_they_are_left_out_on_request(data, tmp_path):
    limits = ("--max-source-positions", LONG["source"] - 1)
    limits += ("--max-target-positions", LONG["target"] - 1)
    skip = "--skip-invalid-size-inputs-valid-test"
    lines = json_lines(train(data, tmp_path, LEARNED, limits, skip, "--eval-bleu").stdout)
    left_out = outputs.containing(outputs.values(lines, "message"), "left out")
    assert len(left_out) == len(outputs.starting(left_out, "2 of them")) == 2
    assert sum(outputs.values(outputs.containing(lines, "wpb"), "bsz")) == 38
    assert outputs.containing(lines, "valid_bleu")

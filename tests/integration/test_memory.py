"""Before the first update the largest batch is tried. Memory that runs out is told with it."""

import json
import random

import numpy as np
import pytest
import torch
from safetensors import safe_open

from relu_nmt.config.command_line import to_yaml
from relu_nmt.config.shared import BatchingConfig, BatchLimits
from relu_nmt.data.batch_plan import BatchRules
from relu_nmt.data.indexed_dataset import IndexedDataset
from relu_nmt.data.split import Split
from relu_nmt.data.translation_batches import TranslationBatches
from relu_nmt.training import preflight
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from tests.commands import assert_refused
from tests.outputs import assert_same_tensors, containing, starting, tensors, values
from tests.tiny import dictionaries_of, digit_lines, preprocessed, train, write_lines


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sentences of one to nine words, and one of 24."""
    folder = tmp_path_factory.mktemp("memory")
    rng = random.Random(0)
    for split, count in (("train", 60), ("valid", 12)):
        lines = digit_lines(rng, count)
        lines[7] = " ".join("1" * 24)
        write_lines(folder, split, lines)
    return preprocessed(folder)


def messages(done):
    # Every line is JSON, those of the memory included.
    return values(map(json.loads, done.stdout.splitlines()), "message")


@pytest.fixture
def shapes(monkeypatch):
    """The source shapes that the model is given, in order. Memory ends at a call."""
    sizes = []
    forward = EncoderDecoder.forward

    def limited(self, src_tokens, prev_output_tokens):
        sizes.append(tuple(src_tokens.shape))
        if limited.calls is not None and len(sizes) > limited.calls:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(self, src_tokens, prev_output_tokens)

    limited.calls = None
    monkeypatch.setattr(EncoderDecoder, "forward", limited)
    return sizes, limited


@pytest.mark.parametrize("limits", [("--max-tokens", 60), ("--batch-size", 6)])
def test_the_largest_batch_comes_first(data, tmp_path, shapes, limits):
    sizes, _ = shapes
    done = train(data, tmp_path, limits, "--max-epoch", 1, "--disable-validation")
    first, *later = sizes
    assert first in later
    assert max(sizes, key=lambda size: size[0] * size[1] * (size[1] + 1024)) == first
    rows, width = first
    assert width == 25 or "--max-tokens" in limits  # a batch of the longest may have few rows
    [message] = starting(messages(done), "preflight")
    assert f"src_tokens {rows} x {width}, tgt_tokens {rows} x {width}" in message
    assert "predicted peak memory" in message
    before = len(sizes)
    off = train(data, tmp_path / "off", limits, "--max-epoch", 1, "--no-preflight")
    assert not containing(messages(off), "preflight")
    assert len(sizes) > before


def test_validation_and_its_translations_are_tried_on_the_longest(data, tmp_path, monkeypatch):
    from relu_nmt.translation.search.generator import Generator

    sources = []
    translate = Generator.translate

    def noted(self, sentences, *args, **kwargs):
        translations = translate(self, sentences, *args, **kwargs)
        written = max(len(best.ids) for best, *_ in translations)
        sources.append((sorted(len(sentence.ids) for sentence in sentences), written))
        return translations

    monkeypatch.setattr(Generator, "translate", noted)
    flags = ("--max-tokens", 60, "--max-update", 1, "--eval-bleu")
    train(data, tmp_path, flags)
    (shortest, _), (longest, written), (full, most_written) = sources
    assert len(shortest) == 2 and longest[-1] == 25 == full[-1]
    # An untrained model goes on to the limit. In the trial that is about the source's length.
    assert written <= 25 + 1 + 1 < most_written  # at least one word, and the end symbol
    sources.clear()
    train(data, tmp_path / "off", flags, "--no-preflight")
    assert len(sources) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-tokens", 60), "try --max-tokens 45 instead of 60"),
        (("--batch-size", 6), "try --batch-size 4 instead of 6"),
    ],
)
@pytest.mark.parametrize(("calls", "when"), [(0, "preflight"), (3, "update 3")])
def test_out_of_memory_is_one_line(data, tmp_path, shapes, flags, message, calls, when):
    sizes, limited = shapes
    limited.calls = calls
    flags = (*flags, "--disable-validation", "--save-interval-updates", 1)
    done = train(data, tmp_path, flags, check=False)
    rows, width = sizes[-1]
    batch = f"{when}: out of memory with a batch of src_tokens {rows} x {width}"
    assert_refused(done, batch, message)
    result = tmp_path / "results.json"
    assert not result.exists() or json.loads(result.read_text())["diverged"] is False
    limited.calls = None
    if calls:
        train(data, tmp_path, flags, "--max-update", 4)  # goes on after update 2


@pytest.mark.parametrize("documents", [(), (1, 30)])
def test_the_largest_is_the_one_that_costs_most(data, documents):
    sources = IndexedDataset(data / "train.de-en.de")
    targets = IndexedDataset(data / "train.de-en.en")
    split = Split(sources, targets, documents=np.full(12, 5))
    rules = BatchRules(BatchLimits(max_tokens=60), documents, is_training=True, seed=1)
    batches = TranslationBatches(split, rules)

    def cost(index):
        batch = batches.load(index)
        sides = (batch.src_tokens, batch.tgt_tokens)
        return sum(side.numel() * (side.shape[1] + 1024) for side in sides)

    for epoch in (1, 2):
        count = batches.begin_epoch(epoch)
        # Each side of joined sentences has one end instead of several.
        assert cost(batches.largest()) >= max(map(cost, range(count))) * (0.9 if documents else 1)


@pytest.fixture
def sized(monkeypatch):
    """A function that gives the process so much memory, of which a source token takes 1,000."""

    def peak_of(parts, batch):
        return 1000 * batch.src_tokens.numel()

    def make(memory_bytes):
        monkeypatch.setattr(preflight, "memory_of", lambda process: memory_bytes)
        monkeypatch.setattr(preflight, "peak_of", peak_of)
        monkeypatch.setattr(preflight, "num_trained", lambda learner: 0)

    return make


FITTED = ("--disable-validation", "--max-epoch", 2)


def arguments(folder):
    with safe_open(folder / "checkpoint_last.safetensors", framework="np") as file:
        args = json.loads(file.metadata()["args"])
    return args["batching"] | {"update_freq": args["trainer"]["update_freq"]}


def notes_of(done, start):
    return starting(messages(done), start)


def test_the_largest_batch_that_fits_is_told_stored_and_the_same_on_resume(data, tmp_path, sized):
    sized(420_000)
    flags = ("--max-tokens", "auto", *FITTED)
    [line] = notes_of(train(data, tmp_path, flags), "--max-tokens auto: ")
    tokens = arguments(tmp_path)["max_tokens"]
    assert line == f"--max-tokens auto: {tokens}" and 256 <= tokens <= 336
    # The training is the same as with the number.
    train(data, tmp_path / "typed", "--max-tokens", tokens, FITTED)
    assert_same_tensors(tensors(tmp_path), tensors(tmp_path / "typed"))
    # More memory, another machine: the number stays.
    sized(10**9)
    done = train(data, tmp_path, flags, "--max-epoch", 3)
    path = tmp_path / "checkpoint_last.safetensors"
    assert notes_of(done, "--max-tokens auto: ") == [f"--max-tokens auto: {tokens}, as in {path}"]
    assert not notes_of(done, "note: settings are changed")
    assert arguments(tmp_path)["max_tokens"] == tokens
    # Less memory: an error that names the remedy, which is taken.
    sized(200_000)
    refused = train(data, tmp_path, flags, "--max-epoch", 4, check=False)
    needed = f"the {tokens} tokens of the checkpoint need more of the 0.0 GB"
    assert_refused(refused, needed, "--max-tokens", "--update-freq")
    train(data, tmp_path, flags, "--max-epoch", 4, "--no-preflight")
    done = train(data, tmp_path, "--max-tokens", 40, FITTED, "--max-epoch", 5)
    assert notes_of(
        done, f"note: settings are changed since the checkpoint: --max-tokens 40 (was {tokens})"
    )


def test_updates_of_a_wanted_size_set_the_frequency(data, tmp_path, sized):
    sized(420_000)
    flags = ("--max-tokens", "auto", "--update-tokens", 600, *FITTED)
    [line] = notes_of(train(data, tmp_path, flags), "--max-tokens auto: ")
    assert arguments(tmp_path)["update_freq"] == [2]
    assert arguments(tmp_path)["max_tokens"] == 300
    assert line.endswith("300; --update-freq 2 for updates of 600 tokens")
    done = train(data, tmp_path, flags, "--max-epoch", 3)
    assert not notes_of(done, "note: settings are changed")
    # A typed number needs no trial.
    done = train(data, tmp_path / "typed", "--max-tokens", 190, flags[2:])
    assert notes_of(done, "--update-freq 3 for updates of 570 tokens")
    assert arguments(tmp_path / "typed")["update_freq"] == [3]


def test_the_longest_sentence_of_any_folder_fits(data, tmp_path, sized):
    write_lines(tmp_path, "train", [" ".join("1" * 329)])
    other = preprocessed(tmp_path, splits=("train",), **dictionaries_of(data))
    sized(420_000)
    train(f"{data}:{other}", tmp_path / "out", "--max-tokens", "auto", FITTED)
    assert arguments(tmp_path / "out")["max_tokens"] == 330


def test_the_number_that_was_chosen_limits_validation_too(data, tmp_path, sized, shapes):
    sized(325_000)
    sizes, _ = shapes
    flags = ("--max-epoch", 1, "--no-preflight")
    train(data, tmp_path, "--max-tokens", "auto", flags)
    tokens = arguments(tmp_path)["max_tokens"]
    chosen = sizes.copy()
    sizes.clear()
    train(data, tmp_path / "typed", "--max-tokens", tokens, flags)
    # Trials of the number come first. Validation has 300 padded tokens in one batch.
    assert tokens < 300 and chosen[-len(sizes) :] == sizes


def test_each_folder_is_checked_against_the_number_of_the_checkpoint(data, tmp_path, sized):
    sized(325_000)
    flags = ("--max-tokens", "auto", "--disable-validation", "--no-preflight")
    train(data, tmp_path / "out", flags, "--max-epoch", 1)
    tokens = arguments(tmp_path / "out")["max_tokens"]
    write_lines(tmp_path, "train", ["1 2", " ".join("1" * 399)])
    other = preprocessed(tmp_path, splits=("train",), **dictionaries_of(data))
    flags = (*flags, "--max-epoch", 3)
    refused = train(f"{data}:{other}", tmp_path / "out", flags, check=False)
    assert_refused(refused, f"sentence 1 has 400 tokens, but --max-tokens is {tokens}")
    skipping = "--skip-invalid-size-inputs-valid-test"
    done = train(f"{data}:{other}", tmp_path / "out", flags, skipping)
    assert notes_of(done, "1 of them are longer than --max-tokens")


def test_batches_that_fit_this_machine_are_trained_on(data, tmp_path):
    done = train(data, tmp_path, "--max-tokens", "auto", "--max-update", 1)
    assert notes_of(done, "--max-tokens auto: 4,096")
    assert notes_of(done, "training on 1 device(s) (cpu); max tokens per device = 4096")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--max-tokens much", "--max-tokens: 'much' is no number of tokens; expected a whole numb"),
        ("--max-tokens 0", "--max-tokens 0: expected 1 or more"),
        ("--max-tokens auto --update-tokens 0", "--update-tokens 0: expected 1 or more"),
        ("--batch-size 4 --update-tokens 9", "--update-tokens 9 does nothing without --max-tokens"),
        ("--max-tokens 60 --update-tokens 9 --update-freq 2", "--update-tokens sets --update-freq"),
    ],
)
def test_wrong_sizes_are_one_line(data, tmp_path, flags, expected):
    assert_refused(train(data, tmp_path, flags.split(), check=False), expected)


def test_a_dump_of_settings_says_auto(data, tmp_path):
    text = to_yaml(BatchingConfig(max_tokens="auto"))
    assert "max_tokens: auto\n" in text
    (tmp_path / "own.yaml").write_text(text)
    done = train(data, tmp_path / "run", "--config", tmp_path / "own.yaml", "--max-update", 1)
    assert notes_of(done, "--max-tokens auto: 4,096")

"""relu-nmt-train on documents of generated digits: lengths, mixtures, separators, resuming."""

import dataclasses
import fnmatch
import json
import random

import numpy as np
import pytest
import torch

from relu_nmt.cli import generate, train, translate_document
from relu_nmt.training.checkpoint import load_checkpoint, load_weights
from relu_nmt.translation.building import build_model, load_model, start_weights
from relu_nmt.translation.search.generator import Generator
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.commands import assert_refused, run_here
from tests.outputs import assert_same_tensors, containing, json_lines, starting, tensors, values
from tests.tiny import as_lists, digit_documents, preprocessed, write_documents

QUICK = "--arch reluformer_tiny --cpu --warmup-updates 20 --log-format json --log-interval 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents of one to six lines of digits, one line of 40. Data with and without boundaries."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "flat-text").mkdir()
    rng = random.Random(0)
    for split, count in (("train", 20), ("valid", 4)):
        documents = digit_documents(rng, count)
        documents[2][1] = " ".join("1234567890" * 4)
        write_documents(folder, split, documents)
        write_documents(folder / "flat-text", split, documents, between="\n")
    separated = {"document_separator": "blank", "joined_dictionary": True}
    preprocessed(folder, "data", **separated)
    preprocessed(folder / "flat-text", "../flat", joined_dictionary=True)
    return folder


def run(data, flags, capsys):
    """Run the command and return its exit code, its JSON lines and its messages."""
    code = train.main([str(data), *QUICK.split(), *flags.split()])
    out = capsys.readouterr().out
    lines = json_lines(out)
    return code, lines, values(lines, "message")


def test_lengths_are_printed_and_stored(folder, tmp_path, capsys):
    flags = f"--max-tokens 64 --max-doc-tokens 32 --max-update 2 --save-dir {tmp_path}"
    code, _, messages = run(folder / "data", flags, capsys)
    assert code == 0
    [groups] = starting(messages, "train: groups of up to 32")
    assert "1 longer sentence left out" in groups
    assert fnmatch.filter(messages, "valid: *kept whole")
    assert messages.index(groups) < messages.index(starting(messages, "training on")[0])
    stored = json.loads((tmp_path / "document_lengths.json").read_text())
    (lengths,) = stored["splits"]["train"]
    assert lengths["documents"] == 20
    assert lengths["sentences"] == (folder / "flat-text/train.de").read_text().count("\n")
    assert lengths["over_long_sentences"] == 1
    assert lengths["longest_tokens"] <= 32
    assert sum(lengths["groups_by_tokens"].values()) == lengths["groups"]


@pytest.mark.parametrize("mixture", ["--doc-mixture 1,16,48", "--max-doc-tokens 24"])
def test_stopping_and_going_on_changes_no_bit(folder, tmp_path, capsys, mixture):
    flags = f"--max-tokens 64 {mixture} --sentence-separator --no-epoch-checkpoints"
    run(folder / "data", f"{flags} --max-update 13 --save-dir {tmp_path}/whole", capsys)
    epochs = set()
    for last in (2, 9, 13):
        command = f"{flags} --max-update {last} --save-dir {tmp_path}/parts"
        _, lines, messages = run(folder / "data", command, capsys)
        epochs |= set(values(containing(lines, "update"), "epoch"))
        assert not containing(messages, "carried over")
    assert len(epochs) > 1
    assert_same_tensors(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))


def test_validation_translates_groups_and_scores_documents(folder, tmp_path, capsys, monkeypatch):
    task = TranslationTask.from_data_folder(folder / "data").with_sentence_separator()
    counts = []
    translate = Generator.translate

    def count(self, sources, *arguments):
        translations = translate(self, sources, *arguments)
        for source, (best, *_) in zip(sources, translations, strict=True):
            in_source = np.count_nonzero(source.ids == task.separators[0])
            counts.append((in_source, np.count_nonzero(best.ids == task.separators[1])))
        return translations

    monkeypatch.setattr(Generator, "translate", count)
    flags = "--max-tokens 64 --max-doc-tokens 32 --sentence-separator --max-update 2 --eval-bleu"
    flags += f" --best-checkpoint-metric bleu --eval-bleu-print-samples --save-dir {tmp_path}"
    code, lines, messages = run(folder / "data", flags, capsys)
    assert code == 0
    assert containing(starting(messages, "4 documents: d-BLEU = "), "signature")
    assert containing(lines, "valid_bleu")
    assert not containing(starting(messages, "example"), "<sep>")
    in_sources, in_targets = zip(*counts, strict=True)
    assert in_sources == in_targets and max(in_sources) > 1


def test_a_model_with_separators_translates_sentences(folder, tmp_path, capsys):
    flags = "--max-tokens 64 --doc-mixture 1,32 --sentence-separator --max-update 2"
    assert run(folder / "data", f"{flags} --save-dir {tmp_path}", capsys)[0] == 0
    path = tmp_path / "checkpoint_last.safetensors"
    translator = Translator.from_checkpoint(path, "cpu")
    assert translator.sources.sentence("1 2").tokens == ["1", "2", "<sep>"]
    translations = translator.translate(["1 2 3", ""], beam=2, max_len_b=4)
    assert translations[1] == ""
    assert "<sep>" not in translations[0]
    command = [str(folder / "flat"), "--gen-subset", "valid", "--path", str(path), "--cpu"]
    assert generate.main([*command, "--quiet", "--max-len-b", "3"]) == 0
    assert "BLEU = " in capsys.readouterr().out


def test_a_model_of_sentences_goes_on_with_documents(folder, tmp_path, capsys):
    first = f"--max-tokens 64 --max-update 1 --save-dir {tmp_path}"
    assert run(folder / "flat", first, capsys)[0] == 0
    start = f"--finetune-from-model {tmp_path}/checkpoint_last.safetensors"
    flags = f"--max-tokens 64 --max-doc-tokens 48 --max-update 1 --sentence-separator {start}"
    assert run(folder / "data", f"{flags} --save-dir {tmp_path}/more", capsys)[0] == 0
    # The way back is not open: the model knows a symbol that the data lacks.
    back = f"--max-tokens 64 --max-update 2 --save-dir {tmp_path}/more"
    assert train.main([str(folder / "data"), *QUICK.split(), *back.split()]) == 2
    assert "trained with --sentence-separator" in capsys.readouterr().err


ALIGNED = "--document-attention aligned --global-layers 1 --sentence-separator --max-tokens 64"


def test_aligned_attention_from_sentences_to_translated_documents(folder, tmp_path, capsys):
    first = f"--max-tokens 64 --max-update 1 --save-dir {tmp_path}/sentences"
    assert run(folder / "flat", first, capsys)[0] == 0
    start = f"--finetune-from-model {tmp_path}/sentences/checkpoint_last.safetensors"
    flags = f"{ALIGNED} --doc-mixture 1,16,48 --save-dir {tmp_path}/documents"
    _, lines, _ = run(folder / "data", f"{flags} {start} --max-update 3 --eval-bleu", capsys)
    assert containing(lines, "valid_d_bleu") or containing(lines, "valid_bleu")
    code, lines, _ = run(folder / "data", f"{flags} --max-update 5", capsys)  # goes on
    assert code == 0 and values(lines, "num_updates")[-1] == 5
    path = tmp_path / "documents" / "checkpoint_last.safetensors"
    model = ["--path", str(path), "--cpu", "--max-len-b", "5"]
    documents = tmp_path / "in.de"
    command = [str(folder / "data"), "--gen-subset", "valid", "--max-doc-tokens", "48", *model]
    for paths in ([], ["--path", f"{path}:{path}"]):
        assert generate.main([*command, *paths, "--print-alignment"]) == 0
        assert "d-BLEU = " in capsys.readouterr().out
    documents.write_text("1 2 3\n4 5\n\n6 7\n")
    assert translate_document.main([str(documents), *model]) == 0
    assert capsys.readouterr().out.count("\n") == 4


def test_a_document_model_starts_as_the_sentence_model(folder, tmp_path, capsys):
    command = f"--max-tokens 64 --max-update 2 --save-dir {tmp_path}"
    assert run(folder / "flat", command, capsys)[0] == 0
    path = tmp_path / "checkpoint_last.safetensors"
    sentences, earlier, _ = load_model(path)
    checkpoint = load_checkpoint(path)
    task = earlier.with_sentence_separator(earlier)
    separator = task.separators.target
    words = as_lists(map(earlier.encode_source, ("1 2 3", "4 5", "6")))
    document = []
    for ids in words:
        document += [*ids[:-1], separator]
    document.append(2)
    for layers in (0, 2):
        config = dataclasses.replace(
            sentences.config, document_attention="aligned", global_layers=layers
        )
        model = build_model(config, task).eval()
        load_weights(model, start_weights(model, checkpoint), path)
        read = torch.tensor([[2, *document[:-1]]])
        states = model(torch.tensor([document]), read)[0]
        logits = model.logits(states)
        assert torch.equal(logits[:, separator], logits[:, 2])
        alone = [torch.tensor([ids]) for ids in words]
        full = torch.cat([sentences(ids, torch.tensor([[2, *ids[0, :-1]]]))[0] for ids in alone])
        if layers == 0:
            torch.testing.assert_close(states[: len(full)], full)
        else:
            assert (states[: len(full)] - full).abs().mean() < 0.2 * full.abs().mean()
        first = model(alone[0], torch.tensor([[2, *words[0][:-1]]]))[0]
        torch.testing.assert_close(first, full[: len(first)])


@pytest.mark.parametrize(
    ("data", "flags", "message"),
    [
        ("flat", "--max-tokens 64 --max-doc-tokens 32", "train.de-en.documents: no such file"),
        ("flat", "--max-tokens 64 --doc-mixture 1,32", "--doc-mixture needs the document bound"),
        ("data", "--max-tokens 64 --max-doc-tokens 65", "raise --max-tokens to 65 or more"),
        ("data", "--max-tokens 30 --doc-mixture 1,16", "has 41 tokens, but --max-tokens is 30"),
        ("data", "--max-tokens 64 --sentence-separator", "give --max-doc-tokens"),
        ("data", "--max-tokens 64 --max-doc-tokens 0", "expected 1 or more"),
        ("data", "--max-tokens 64 --document-attention aligned", "needs --sentence-separator"),
        ("data", "--max-tokens 64 --global-layers 1", "--document-attention aligned"),
        (
            "data",
            "--max-tokens 64 --max-doc-tokens 2 --sentence-separator",
            "every sentence is longer than 2 tokens; raise --max-doc-tokens",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_2(folder, tmp_path, data, flags, message):
    flags = f"{QUICK} {flags} --max-update 1 --save-dir {tmp_path}"
    assert_refused(run_here("train", folder / data, flags.split(), check=False), message)

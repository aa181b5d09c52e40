"""relu-nmt-train on documents of generated digits: lengths, mixtures, separators, resuming."""

import json
import random

import pytest
import torch

from relu_nmt.cli import generate, train
from relu_nmt.corpus.preprocess_config import PreprocessConfig
from relu_nmt.corpus.translation import TranslationTask
from relu_nmt.decoding.generator import Generator
from relu_nmt.recipes import preprocess
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.translator import Translator

QUICK = "--arch reluformer_tiny --cpu --warmup-updates 20 --log-format json --log-interval 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents of one to six lines of digits, one line of 40; data with and without boundaries."""
    folder = tmp_path_factory.mktemp("documents")
    rng = random.Random(0)
    for split, count in (("train", 20), ("valid", 4)):
        documents = [
            [" ".join(rng.choices("0123456789", k=rng.randint(1, 9))) for _ in range(1 + i % 6)]
            for i in range(count)
        ]
        documents[2][1] = " ".join("1234567890" * 4)
        for language in ("de", "en"):
            text = "\n\n".join("\n".join(document) for document in documents)
            (folder / f"{split}.{language}").write_text(text + "\n")
            flat = text.replace("\n\n", "\n")
            (folder / f"{split}-flat.{language}").write_text(flat + "\n")
    for name, ending, separator in (("data", "", "blank"), ("flat", "-flat", "none")):
        preprocess.run(
            PreprocessConfig(
                source_lang="de",
                target_lang="en",
                trainpref=str(folder / f"train{ending}"),
                validpref=str(folder / f"valid{ending}"),
                destdir=str(folder / name),
                document_separator=separator,
                joined_dictionary=True,
            ),
            progress=False,
        )
    return folder


def run(data, flags, capsys):
    """Run the command; return its exit code, its JSON lines and its messages."""
    code = train.main([str(data), *QUICK.split(), *flags.split()])
    out = capsys.readouterr().out
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return code, lines, [line["message"] for line in lines if "message" in line]


def weights(folder):
    checkpoint = load_checkpoint(folder / "checkpoint_last.safetensors", with_training_state=True)
    return {**checkpoint.model_tensors, **checkpoint.training_tensors}


def test_lengths_are_printed_and_stored(folder, tmp_path, capsys):
    flags = f"--max-tokens 64 --max-doc-tokens 32 --max-update 2 --save-dir {tmp_path}"
    code, _, messages = run(folder / "data", flags, capsys)
    assert code == 0
    told = next(i for i, m in enumerate(messages) if m.startswith("train: groups of up to 32"))
    assert "1 longer sentences are left out" in messages[told]
    assert any(m.startswith("valid: ") and m.endswith("kept whole") for m in messages)
    assert told < next(i for i, m in enumerate(messages) if m.startswith("training on"))
    stored = json.loads((tmp_path / "document_lengths.json").read_text())
    (lengths,) = stored["splits"]["train"]
    assert lengths["documents"] == 20
    assert lengths["sentences"] == (folder / "train-flat.de").read_text().count("\n")
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
        epochs |= {line["epoch"] for line in lines if "update" in line}
        assert not any("carried over" in message for message in messages)
    assert len(epochs) > 1
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for name in whole:
        assert torch.equal(whole[name], parts[name]), name


def test_validation_translates_groups_and_scores_documents(folder, tmp_path, capsys, monkeypatch):
    task = TranslationTask.from_data_folder(folder / "data").with_sentence_separator()
    counts, translate = [], Generator.translate

    def count(self, sources, *arguments):
        found = translate(self, sources, *arguments)
        for source, (best, *_) in zip(sources, found, strict=True):
            sides = zip((source.ids, best.tokens), task.separators, strict=True)
            counts.append([int((ids == separator).sum()) for ids, separator in sides])
        return found

    monkeypatch.setattr(Generator, "translate", count)
    flags = "--max-tokens 64 --max-doc-tokens 32 --sentence-separator --max-update 2 --eval-bleu"
    flags += f" --best-checkpoint-metric bleu --eval-bleu-print-samples --save-dir {tmp_path}"
    code, lines, messages = run(folder / "data", flags, capsys)
    assert code == 0
    assert any(m.startswith("4 documents: d-BLEU = ") and "signature" in m for m in messages)
    assert any("valid_bleu" in line for line in lines)
    assert not any("<sep>" in m for m in messages if m.startswith("example"))
    assert all(source == target for source, target in counts)
    assert max(source for source, _ in counts) > 1


def test_a_model_with_separators_translates_sentences(folder, tmp_path, capsys):
    flags = "--max-tokens 64 --doc-mixture 1,32 --sentence-separator --max-update 2"
    assert run(folder / "data", f"{flags} --save-dir {tmp_path}", capsys)[0] == 0
    path = tmp_path / "checkpoint_last.safetensors"
    translator = Translator.from_checkpoint(path, "cpu")
    assert translator.encode("1 2").tokens == ["1", "2", "<sep>"]
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


@pytest.mark.parametrize(
    ("data", "flags", "message"),
    [
        ("flat", "--max-tokens 64 --max-doc-tokens 32", "train.de-en.documents: no such file"),
        ("flat", "--max-tokens 64 --doc-mixture 1,32", "--doc-mixture needs the document bound"),
        ("data", "--max-tokens 64 --max-doc-tokens 65", "raise --max-tokens to 65 or more"),
        ("data", "--max-tokens 30 --doc-mixture 1,16", "has 41 tokens, but --max-tokens is 30"),
        ("data", "--max-tokens 64 --sentence-separator", "give --max-doc-tokens"),
        ("data", "--max-tokens 64 --max-doc-tokens 0", "expected 1 or more"),
        (
            "data",
            "--max-tokens 64 --max-doc-tokens 2 --sentence-separator",
            "every sentence is longer than 2 tokens; raise --max-doc-tokens",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_2(folder, tmp_path, capsys, data, flags, message):
    flags = f"{QUICK} {flags} --max-update 1 --save-dir {tmp_path}"
    assert train.main([str(folder / data), *flags.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("relu-nmt-train: error: ")
    assert error.count("\n") == 1
    assert message in error

"""Document boundaries and word alignments in data folders."""

import gzip
import json
import struct

import pytest

from relu_nmt.cli.preprocess import main
from relu_nmt.data import binarize as binarize_module
from relu_nmt.data.indexed_dataset import AlignmentDataset
from relu_nmt.translation.task import TranslationTask
from tests.integration.spoken_digits import fail_after, run
from tests.outputs import containing, contents


@pytest.mark.parametrize("separator", ["blank", "tag"])
def test_document_boundaries_are_stored(corpus, separator):
    for split in ("train", "valid"):
        for language in ("de", "en"):
            path = corpus / f"{split}.{language}"
            documents = path.read_text("utf-8").strip("\n").split("\n\n")
            plain = "\n".join(documents)
            (corpus / f"plain{split}.{language}").write_text(plain, encoding="utf-8")
            if separator == "tag":
                path.write_text("<d>\n" + "\n<d>\n".join(documents), encoding="utf-8")
            else:
                path.write_text("\n\n\n".join(documents) + "\n\n", encoding="utf-8")
    sizes = [document.count("\n") + 1 for document in documents]
    flags = ["--document-separator", separator, "--tokenizer", "moses"]
    assert run(corpus, flags, splits=("train", "valid")) == 0
    task = TranslationTask.from_data_folder(corpus / "data")
    assert task.load_split("valid").documents.tolist() == sizes
    manifest = json.loads((corpus / "data/manifest.json").read_text("utf-8"))
    assert manifest["splits"]["valid"]["documents"] == len(sizes)
    plain = ["--trainpref", f"{corpus}/plaintrain", "--validpref", f"{corpus}/plainvalid"]
    assert run(corpus, "--tokenizer", "moses", plain, dest="plain", splits=()) == 0
    assert contents(corpus / "plain").items() <= contents(corpus / "data").items()


def write_alignments(corpus, split, separator="none"):
    """Align each word with the one at its place. The source has the same lines."""
    lines = (corpus / f"{split}.de").read_text("utf-8").split("\n")
    is_apart = {"none": lambda line: False, "blank": lambda line: not line, "tag": "<d>".__eq__}
    texts = []
    pairs = []
    for line in lines:
        count = 0 if line.strip() == "<d>" else len(line.split())
        texts.append(" ".join(f"{i}-{i}" for i in range(count)))
        if not is_apart[separator](line):
            pairs.append([(i, i) for i in range(count)])
    (corpus / f"{split}.align").write_text("\n".join(texts))
    return pairs


@pytest.mark.parametrize("workers", ["1", "3"])
def test_alignments_equal_those_of_fairseq(corpus, workers, capsys):
    (corpus / "train.de").write_text("a b c\n\nd e\n")
    (corpus / "train.en").write_text("C B A\n\nD E\n")
    (corpus / "train.align").write_text("0-2 1-1  2-0\n\n1-0\n")
    flags = ["--align-suffix", "align", "--workers", workers]
    assert run(corpus, flags, splits=("train", "valid")) == 0
    printed = capsys.readouterr().out
    assert f"[alignments] {corpus}/train.align: 3 sents, 4 pairs\n" in printed
    assert f"[alignments] {corpus}/valid.align: no such file, so that valid has none\n" in printed
    data = corpus / "data"
    assert (data / "train.align.de-en.bin").read_bytes() == struct.pack(
        "<8I", *(0, 2, 1, 1, 2, 0), *(1, 0)
    )
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQ", 1, 9, 3)
    assert (data / "train.align.de-en.idx").read_bytes() == header + struct.pack(
        "<3i3q", *(6, 0, 2), *(0, 24, 24)
    )
    manifest = json.loads((data / "manifest.json").read_text("utf-8"))
    assert manifest["splits"]["train"]["alignments"]["pairs"] == 4
    assert manifest["files"]["train.align.de-en.bin"]["bytes"] == 32
    assert "alignments" not in manifest["splits"]["valid"]
    assert run(corpus, flags, splits=("train", "valid")) == 0
    assert "complete already" in capsys.readouterr().out
    assert run(corpus, splits=("train", "valid")) == 2
    assert run(corpus, "--overwrite", splits=("train", "valid")) == 0
    assert not list(data.glob("*.align.*"))


@pytest.mark.parametrize("separator", ["none", "blank", "tag"])
def test_alignments_follow_the_lines_of_the_source(corpus, separator):
    if separator == "tag":
        for path in corpus.glob("*.*"):
            path.write_text("<d>\n" + path.read_text("utf-8").replace("\n\n", "\n<d>\n"))
    expected = {split: write_alignments(corpus, split, separator) for split in ("train", "valid")}
    with open(corpus / "train.align", "rb") as file:
        (corpus / "train.align.gz").write_bytes(gzip.compress(file.read()))
    (corpus / "train.align").unlink()
    flags = ["--document-separator", separator, "--align-suffix", "align", "--lowercase"]
    assert run(corpus, flags, splits=("train", "valid")) == 0
    for split, pairs in expected.items():
        alignments = AlignmentDataset(corpus / f"data/{split}.align.de-en")
        assert [list(map(tuple, alignments[i])) for i in range(len(alignments))] == pairs
        swapped = AlignmentDataset(corpus / f"data/{split}.align.de-en", swapped=True)
        assert (swapped[0] == alignments[0][:, ::-1]).all()


def test_interrupted_alignments_are_continued(corpus, monkeypatch):
    for split in ("train", "valid"):
        write_alignments(corpus, split)
    flags = ["--align-suffix", "align", "--workers", "1"]
    assert run(corpus, flags, dest="whole") == 0
    with monkeypatch.context() as patch:
        parse = fail_after(4, binarize_module._parse_chunk)
        patch.setattr(binarize_module, "_parse_chunk", parse)
        assert run(corpus, flags) == 130
    assert not list((corpus / "data").glob("*.tmp"))
    assert run(corpus, flags) == 0
    assert contents(corpus / "data") == contents(corpus / "whole")


def test_blank_lines_that_become_sentences_are_reported_first(tmp_path, capsys):
    for language, text in (("de", "eins\n\nzwei\n \ndrei\n"), ("en", "one\n\ntwo\n\nthree\n")):
        (tmp_path / f"train.{language}").write_text(text)
        (tmp_path / f"valid.{language}").write_text("eins\n")
    texts = ["--trainpref", str(tmp_path / "train"), "--validpref", str(tmp_path / "valid")]
    words = ["--source-lang", "de", "--target-lang", "en", *texts]
    words += ["--destdir", str(tmp_path / "data")]
    assert main(words) == 0
    first, *later = capsys.readouterr().out.splitlines()
    assert first.startswith(f"NOTE: {tmp_path / 'train.de'}: 2 blank lines become sentences")
    assert "--document-separator blank" in first
    assert not containing(later, "NOTE")
    words[words.index(str(tmp_path / "data"))] = str(tmp_path / "documents")
    assert main([*words, "--document-separator", "blank"]) == 0
    assert "NOTE" not in capsys.readouterr().out

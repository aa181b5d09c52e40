"""Files with both sides give the same folder as two plain files of the same lines."""

import json

import pytest

from relu_nmt.cli.preprocess import main
from relu_nmt.data import pair_files
from relu_nmt.translation.task import TranslationTask
from tests.commands import command_line
from tests.integration.spoken_digits import sentences_of, write_corpus
from tests.outputs import contents, names_in, starting

TEXT_STEPS = ["--tokenizer", "moses", "--subword", "subword-nmt", "--subword-size", "20"]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Plain files without empty lines, of 7 lines a document, and the same in other formats."""
    monkeypatch.setattr(
        pair_files.text_lines, "CHUNK_BYTES", 500
    )  # so that a file has several chunks
    for split, count, seed in (("train", 90, 1), ("valid", 30, 2)):
        write_corpus(tmp_path, "raw", count, seed)
        raw = [(tmp_path / f"raw.{la}").read_text("utf-8").split("\n") for la in ("de", "en")]
        pairs = [pair for pair in zip(*raw, strict=True) if pair[0]]
        documents = [pairs[n : n + 7] for n in range(0, len(pairs), 7)]
        write_formats(tmp_path, split, documents)
    return tmp_path


def write_formats(folder, split, documents):
    for side, language in enumerate(("de", "en")):
        texts = []
        for document in documents:
            texts.append("\n".join(pair[side] for pair in document))
        for name, between in ((split, "\n"), (f"{split}-documents", "\n\n")):
            (folder / f"{name}.{language}").write_text(between.join(texts) + "\n", "utf-8")
    units = []
    rows = []
    for number, document in enumerate(documents):
        for position, (source, target) in enumerate(document):
            units.append(
                f'<tu><prop type="x-document">{number}</prop><tuv xml:lang="EN_us"><seg>{target}'
                f'</seg></tuv><tuv xml:lang="de-AT"><seg>\n{source}\n</seg></tuv></tu>'
            )
            rows.append(f"{number}\t{position}\t{source}\t{target}\n")
    units.append('<tu><tuv xml:lang="de"><seg>allein</seg></tuv></tu>')
    text = f'<tmx version="1.4"><header/><body>{"".join(units)}</body></tmx>'
    (folder / f"{split}.tmx").write_bytes(text.encode("utf-16"))
    (folder / f"{split}.tsv").write_text("".join(rows), "utf-8")


def run(corpus, ending, dest, *flags):
    arguments = command_line(["-s", "de", "-t", "en", "--destdir", corpus / dest, flags])
    for split in ("train", "valid"):
        arguments += [f"--{split}pref", f"{corpus}/{split}{ending}"]
    return main(arguments)


@pytest.mark.parametrize("ending", [".tmx", ".tsv"])
@pytest.mark.parametrize(
    "flags", [[], ["--workers", "2", *TEXT_STEPS], ["--joined-dictionary", *TEXT_STEPS]]
)
def test_sentences_of_a_pair_file_equal_those_of_two_files(corpus, ending, flags, capsys):
    assert run(corpus, ending, "data", flags) == 0
    printed = capsys.readouterr().out
    assert ("1 pairs left out, as a side is missing or empty" in printed) == (ending == ".tmx")
    assert run(corpus, "", "plain", flags) == 0
    assert contents(corpus / "data") == contents(corpus / "plain")
    assert run(corpus, ending, "data", flags) == 0
    assert "complete already" in capsys.readouterr().out


@pytest.mark.parametrize("ending", [".tmx", ".tsv"])
@pytest.mark.parametrize("separator", ["blank", "tag"])
def test_documents_of_a_pair_file_equal_those_of_two_files(corpus, ending, separator):
    flags = [*TEXT_STEPS, "--document-separator"]
    assert run(corpus, ending, "data", flags, separator) == 0
    assert run(corpus, "-documents", "plain", flags, "blank") == 0
    assert contents(corpus / "data") == contents(corpus / "plain")
    sizes = TranslationTask.from_data_folder(corpus / "data").load_split("valid").documents
    assert sizes.tolist() == [7, 7, 7, 7]
    manifest = json.loads((corpus / "data/manifest.json").read_text("utf-8"))
    assert manifest["splits"]["train"]["sides"]["de"]["input"] == f"{corpus}/train{ending}"


@pytest.mark.parametrize("ending", [".tmx", ".tsv"])
def test_each_pair_file_is_parsed_once(corpus, ending, monkeypatch):
    parsed = []

    def read_pairs(path, *arguments):
        parsed.append(path)
        return original(path, *arguments)

    original = pair_files.read_pairs
    monkeypatch.setattr(pair_files, "read_pairs", read_pairs)
    assert run(corpus, ending, "data", TEXT_STEPS, "--workers", "2") == 0
    assert parsed == [f"{corpus}/train{ending}", f"{corpus}/valid{ending}"]
    assert not starting(names_in(corpus), ("tmp", "."))


def test_the_source_side_alone_can_be_read(corpus):
    flags = ["-s", "de", "--only-source", "--trainpref"]
    assert main([*flags, f"{corpus}/train.tmx", "--destdir", f"{corpus}/data"]) == 0
    assert main([*flags, f"{corpus}/train", "--destdir", f"{corpus}/plain"]) == 0
    lines = sentences_of(corpus / "data/train.de-None.de")
    plain = sentences_of(corpus / "plain/train.de-None.de")
    assert len(lines) == len(plain) + 1  # the unit without a target


def test_plain_files_beside_it_come_first(corpus):
    for language in ("de", "en"):
        (corpus / f"train.tmx.{language}").write_text("eins\n", "utf-8")
        (corpus / f"valid.tmx.{language}").write_text("eins\n", "utf-8")
    assert run(corpus, ".tmx", "data") == 0
    assert len(TranslationTask.from_data_folder(corpus / "data").load_split("train")) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<tmx><body><tu>", "train.tmx:1: damaged or cut short: no element found"),
        (b'<!DOCTYPE tmx [<!ENTITY a "b">]><tmx/>', "train.tmx:1: declares the entity 'a'"),
        (b"<tmx/>", "train.tmx: no pair of 'de' and 'en' in it"),
        (None, "train.tmx: no such file"),
    ],
)
def test_unreadable_memories_are_errors(corpus, capsys, content, message):
    (corpus / "train.tmx").unlink()
    if content is not None:
        (corpus / "train.tmx").write_bytes(content)
    assert run(corpus, ".tmx", "data") == 2
    assert f"error: {corpus}/{message}" in capsys.readouterr().err.splitlines()[-1]
    assert not (corpus / "data").exists()

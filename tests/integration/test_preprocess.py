"""relu-nmt-preprocess on generated digits, from text files to a data folder that can be used."""

import bz2
import gzip
import hashlib
import itertools
import json
import lzma
from collections import Counter

import pytest
import sentencepiece

from relu_nmt.cli.preprocess import main
from relu_nmt.translation.task import TranslationTask
from tests.integration.spoken_digits import run, sentences_of
from tests.outputs import column, containing, contents, names_in

GIVEN = ("de", "en")


def test_prepared_text_gives_the_files_of_fairseq(corpus, capsys):
    assert run(corpus) == 0
    output = capsys.readouterr()
    assert "[de] Dictionary: 16 types" in output.out
    assert f"[en] {corpus}/test.en: 20 sents" in output.out
    assert "scan: 100%" in output.err
    for language in ("de", "en"):
        counts = Counter((corpus / f"train.{language}").read_text("utf-8").split())
        words = sorted(counts, key=lambda word: (-counts[word], word))
        dictionary = (corpus / f"data/dict.{language}.txt").read_text("utf-8").splitlines()
        assert dictionary[-2:] == ["madeupword0000 0", "madeupword0001 0"]
        assert dictionary[:-2] == [f"{word} {counts[word]}" for word in words]
        numbers = dict(zip(words, range(4, len(words) + 4), strict=True))
        for split in ("train", "valid", "test"):
            lines = (corpus / f"{split}.{language}").read_text("utf-8").split("\n")
            expected_ids = []
            for line in lines:
                expected_ids.append([*(numbers[word] for word in line.split()), 2])
            assert sentences_of(corpus / f"data/{split}.de-en.{language}") == expected_ids
    task = TranslationTask.from_data_folder(corpus / "data")
    assert task.load_split("valid").raw_source == (
        (corpus / "valid.de").read_text("utf-8").split("\n")
    )


def test_text_comes_back_and_old_folders_keep_their_words(corpus, capsys):
    line = "»Eins« um 10:30"
    words = ["»", "eins", "«", "um", "10", ":", "30"]
    for language in ("de", "en"):
        lines = f"{line}\n" * 10 + "zwei @@ @@ -1,3 @@\n"
        (corpus / f"train.{language}").write_text(lines, "utf-8")
    flags = ["--tokenizer", "moses", "--lowercase", "--subword", "subword-nmt"]
    assert run(corpus, flags, splits=["train"]) == 0
    printed = capsys.readouterr().out
    for language in ("de", "en"):
        assert (
            f"[{language}] 11 of 11 sampled lines (100.0%) come back from their tokens" in printed
        )
    assert "sentencepiece" not in printed
    path = corpus / "data/manifest.json"
    text = TranslationTask.from_data_folder(corpus / "data").target_text
    assert text.decode(text.encode(line)) == line.lower()
    manifest = json.loads(path.read_text("utf-8"))
    for language in ("de", "en"):
        del manifest["text"][language]["tokenizer_version"]  # as earlier releases wrote it
    path.write_text(json.dumps(manifest), "utf-8")
    text = TranslationTask.from_data_folder(corpus / "data").target_text
    assert text.join_words(text.encode(line)) == words  # of Moses' own script
    assert run(corpus, dest="prepared", splits=["train"]) == 0
    assert "come back" not in capsys.readouterr().out


def test_workers_do_not_change_the_result(corpus, monkeypatch):
    monkeypatch.setattr("relu_nmt.jobs.preprocess.inputs.available_cores", lambda: 3)
    flags = ["--joined-dictionary", "--tokenizer", "moses", "--lowercase"]
    flags += ["--subword", "subword-nmt", "--subword-size", "20"]
    for workers in ("1", "0"):  # 0 stands for one per core
        assert run(corpus, flags, "--workers", workers, dest=workers) == 0
    assert contents(corpus / "1") == contents(corpus / "0")


@pytest.mark.parametrize("subword", ["subword-nmt", "sentencepiece"])
@pytest.mark.parametrize("joined", [True, False])
def test_raw_text_is_encoded_and_decoded(corpus, subword, joined):
    flags = ["--subword", subword, "--subword-size", "45", "--tokenizer", "moses"]
    flags += ["--joined-dictionary"] if joined else []
    assert run(corpus, flags) == 0
    task = TranslationTask.from_data_folder(corpus / "data")
    assert task.joined_dictionary == joined
    for split in ("train", "valid", "test"):
        pairs = task.load_split(split)
        english = (corpus / f"{split}.en").read_text("utf-8").split("\n")
        german = (corpus / f"{split}.de").read_text("utf-8").split("\n")
        assert len(pairs) == len(english) == len(german)
        for i in range(len(pairs)):
            source, target = pairs.pair(i)
            assert task.decode_target(target) == english[i]
            assert source.tolist() == task.encode_source(german[i]).tolist()
    manifest = json.loads((corpus / "data/manifest.json").read_text("utf-8"))
    models = set(column(manifest["text"].values(), "subword_file"))
    assert len(models) == (1 if joined else 2)
    for name in models:
        record = manifest["files"][name]
        assert hashlib.sha256((corpus / "data" / name).read_bytes()).hexdigest() == record["sha256"]


@pytest.mark.parametrize("subword", ["subword-nmt", "sentencepiece"])
def test_a_text_that_gives_fewer_subwords_than_asked_for_is_told(corpus, capsys, subword):
    flags = ["--subword", subword, "--joined-dictionary", "--subword-size"]
    assert run(corpus, flags, "5000", splits=["train"]) == 0
    notes = containing(capsys.readouterr().out.split("\n"), "--subword-size")
    [model] = [*(corpus / "data").glob("*.codes"), *(corpus / "data").glob("*.model")]
    if subword == "subword-nmt":
        num_learned = len(model.read_text("utf-8").splitlines()) - 1
    else:
        num_learned = len(sentencepiece.SentencePieceProcessor(model_file=str(model)))
    assert notes == [
        f"NOTE: {model.name} has {num_learned} subwords instead of 5000 (--subword-size): "
        "the training text gives no more"
    ]
    assert run(corpus, flags, "30", splits=["train"], dest="fewer") == 0
    assert "--subword-size" not in capsys.readouterr().out


def test_given_model_gives_the_same_data(corpus):
    flags = ["--joined-dictionary", "--subword", "sentencepiece"]
    assert run(corpus, flags, "--subword-size", "40") == 0
    model = str(corpus / "data/sentencepiece.model")
    assert run(corpus, flags, "--subword-model", model, dest="again") == 0
    assert contents(corpus / "again") == contents(corpus / "data")


def test_given_dictionaries_are_used(corpus):
    assert run(corpus) == 0
    dictionaries = ["--srcdict", str(corpus / "data/dict.de.txt")]
    dictionaries += ["--tgtdict", str(corpus / "data/dict.en.txt")]
    assert run(corpus, dictionaries, dest="test", splits=("test",)) == 0
    for name in ("test.de-en.de.bin", "test.de-en.en.idx", "dict.de.txt"):
        assert (corpus / "test" / name).read_bytes() == (corpus / "data" / name).read_bytes()
    joined = ["--joined-dictionary", "--tgtdict", str(corpus / "data/dict.en.txt")]
    assert run(corpus, joined, dest="joined", splits=("test",)) == 0
    assert (corpus / "joined/dict.de.txt").read_bytes() == (
        (corpus / "data/dict.en.txt").read_bytes()
    )


def test_several_validation_sets_are_numbered(corpus):
    several = f"{corpus}/valid,{corpus}/more"
    assert run(corpus, "--validpref", several, splits=("train",)) == 0
    task = TranslationTask.from_data_folder(corpus / "data")
    assert len(task.load_split("valid")) == 30
    assert len(task.load_split("valid1")) == len(task.load_split("valid1").raw_target) == 10


def test_source_only_data_has_no_target_files(corpus):
    arguments = ["-s", "de", "--only-source", "--trainpref", str(corpus / "train")]
    assert main([*arguments, "--destdir", str(corpus / "data")]) == 0
    names = names_in(corpus / "data")
    assert names == ["dict.de.txt", "manifest.json", "train.de-None.de.bin", "train.de-None.de.idx"]


def test_fairseqs_other_flags_are_accepted(corpus):
    assert run(corpus, "--task", "translation", "--dataset-impl", "mmap", "--seed", "5") == 0


def zst(data):
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize(
    "flags",
    [(), ("--tokenizer", "moses", "--subword", "subword-nmt", "--subword-size", "20")],
    ids=["prepared", "raw"],
)
def test_compressed_text_gives_the_same_files(corpus, flags, workers, capsys):
    assert run(corpus, flags, dest="plain") == 0
    compressors = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zst}
    names = itertools.product(("train", "valid", "test"), GIVEN)
    paths = [corpus / f"{split}.{language}" for split, language in names]
    # Each side in another format: the texts are parallel all the same.
    for path, (ending, compress) in zip(paths, 2 * list(compressors.items()), strict=False):
        path.with_name(path.name + ending).write_bytes(compress(path.read_bytes()))
        path.unlink()
    assert run(corpus, flags, "--workers", workers, dest="packed") == 0
    assert contents(corpus / "packed") == contents(corpus / "plain")
    assert f"[de] {corpus}/train.de.gz: 300 sents" in capsys.readouterr().out
    plain = json.loads((corpus / "plain/manifest.json").read_text())
    packed = json.loads((corpus / "packed/manifest.json").read_text())
    # The same text, so the same job, whatever the form of its files.
    assert plain["key"] == packed["key"]
    assert packed["splits"]["train"]["sides"]["de"]["input"].endswith("train.de.gz")


def test_a_truncated_compressed_text_is_an_error(corpus, capsys):
    path = corpus / "train.de"
    (corpus / "train.de.gz").write_bytes(gzip.compress(path.read_bytes())[:-9])
    path.unlink()
    assert run(corpus) == 2
    assert "train.de.gz: cannot read the text: the compressed file is" in capsys.readouterr().err
    assert not (corpus / "data" / "manifest.json").exists()


LETTERS = '''
from relu_nmt.tokenization.base import SubwordModel, subword_models


@subword_models.register("letters")
class Letters(SubwordModel):
    """The most frequent words stay whole, the others become letters."""

    file_name = "letters.txt"

    @classmethod
    def learn(cls, text, size, seed):
        counts = text.word_counts()
        assert sum(len(line.split()) for line in text.sentences()) == sum(counts.values())
        words = sorted(counts, key=lambda word: (-counts[word], word))[:size]
        return "\\n".join(words).encode()

    def split(self, words):
        whole = self.content.decode().split("\\n")
        return [p for w in words for p in ([w + "_"] if w in whole else [*w[:-1], w[-1] + "_"])]

    def join(self, pieces):
        return "".join(pieces).replace("_", " ").split()
'''


def test_a_subword_model_of_the_user_is_learned(corpus, capsys):
    module = corpus / "letters.py"
    module.write_text(LETTERS)
    flags = ["--subword", "letters", "--subword-size", "3", "--user-module", str(module)]
    assert run(corpus, flags, "--workers", "2") == 0
    names = set(names_in(corpus / "data"))
    assert {"letters.de.txt", "letters.en.txt"} <= names
    assert len((corpus / "data" / "letters.de.txt").read_text().split()) == 3
    task = TranslationTask.from_data_folder(corpus / "data")
    stored = TranslationTask.from_state(json.loads(json.dumps(task.to_state())))
    for line in (corpus / "test.de").read_text("utf-8").split("\n"):
        tokens = task.source_text.encode(line)
        assert len(tokens) >= len(line.split())
        assert task.source_text.decode(tokens) == line
        assert stored.source_text.encode(line) == tokens
    options = ["--subword", "letters", "--user-module", str(module)]
    options += ["--subword-model", str(corpus / "data" / "letters.de.txt")]
    assert run(corpus, options, dest="given") == 0
    assert (corpus / "given" / "letters.txt").exists()


def test_an_unknown_subword_model_is_an_error(corpus, capsys):
    assert run(corpus, "--subword", "sentencepeace") == 2
    error = capsys.readouterr().err
    assert "sentencepiece" in error
    assert "\n" not in error.strip()

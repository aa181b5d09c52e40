"""relu-nmt-preprocess on generated digits, from text files to a data folder that can be used."""

import bz2
import gzip
import hashlib
import json
import lzma
import random
import struct
from collections import Counter

import pytest

from relu_nmt.cli.preprocess import main
from relu_nmt.data import binarize as binarize_module
from relu_nmt.data.indexed_dataset import AlignmentDataset
from relu_nmt.io import text_lines
from relu_nmt.io.work import Cluster
from relu_nmt.recipes import preprocess as recipe
from relu_nmt.recipes import preprocess_text
from relu_nmt.translation.task import TranslationTask

GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
GIVEN = ("de", "en")
ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def write_corpus(folder, prefix, count, seed, ends="\n"):
    """Numbers spoken digit by digit, in both languages, some lines blank."""
    generator = random.Random(seed)
    lines = {"de": [], "en": []}
    for i in range(count):
        digits = [generator.randrange(10) for _ in range(generator.randint(1, 9))]
        if i % 11 == 10:
            digits = []
        lines["de"].append(" ".join(GERMAN[d] for d in digits))
        lines["en"].append(" ".join(ENGLISH[d] for d in digits))
    for language, of_language in lines.items():
        text = ends.join(of_language)
        (folder / f"{prefix}.{language}").write_bytes(text.encode())


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    write_corpus(tmp_path, "train", 300, 1)
    write_corpus(tmp_path, "valid", 30, 2, "\r\n")
    write_corpus(tmp_path, "test", 20, 3)
    write_corpus(tmp_path, "more", 10, 4)
    # Small pieces, so that every file has several.
    monkeypatch.setattr(text_lines.scan_text, "__defaults__", (1000,))
    return tmp_path


def run(corpus, *flags, dest="data", splits=("train", "valid", "test")):
    arguments = ["-s", "de", "-t", "en", "--destdir", str(corpus / dest)]
    for split in splits:
        arguments += [f"--{split}pref", str(corpus / split)]
    return main([*arguments, *flags])


def contents(folder):
    """Checksums of all files but the manifest, which names the folder."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }


def sentences_of(prefix):
    """The sentences of a binarised file, read independently of the package."""
    index = prefix.with_name(prefix.name + ".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, count = struct.unpack_from("<QBQ", index, 9)
    assert (version, code) == (1, 8)
    sizes = struct.unpack_from(f"<{count}i", index, 26)
    starts = struct.unpack_from(f"<{count}q", index, 26 + 4 * count)
    assert len(index) == 26 + 12 * count
    data = prefix.with_name(prefix.name + ".bin").read_bytes()
    return [
        list(struct.unpack_from(f"<{size}H", data, start))
        for size, start in zip(sizes, starts, strict=True)
    ]


def test_prepared_text_gives_the_files_of_fairseq(corpus, capsys):
    assert run(corpus) == 0
    output = capsys.readouterr()
    assert "[de] Dictionary: 16 types" in output.out
    assert f"[en] {corpus}/test.en: 20 sents" in output.out
    assert "scan: 100%" in output.err
    for language in ("de", "en"):
        counts = Counter((corpus / f"train.{language}").read_text("utf-8").split())
        words = sorted(counts, key=lambda word: (-counts[word], word))
        expected = [f"{word} {counts[word]}\n" for word in words]
        expected += ["madeupword0000 0\n", "madeupword0001 0\n"]
        dictionary = (corpus / f"data/dict.{language}.txt").read_text("utf-8")
        assert dictionary == "".join(expected)
        numbers = {word: i for i, word in enumerate(words, 4)}
        for split in ("train", "valid", "test"):
            lines = (corpus / f"{split}.{language}").read_text("utf-8").split("\n")
            expected_ids = [[numbers[word] for word in line.split()] + [2] for line in lines]
            assert sentences_of(corpus / f"data/{split}.de-en.{language}") == expected_ids
    task = TranslationTask.from_data_folder(corpus / "data")
    assert task.load_split("valid").raw_source == (
        (corpus / "valid.de").read_text("utf-8").split("\n")
    )


def test_text_comes_back_and_old_folders_keep_their_words(corpus, capsys):
    line, words = "»Eins« um 10:30", ["»", "eins", "«", "um", "10", ":", "30"]
    for language in ("de", "en"):
        lines = f"{line}\n" * 10 + "zwei @@ @@ -1,3 @@\n"
        (corpus / f"train.{language}").write_text(lines, "utf-8")
    flags = ["--tokenizer", "moses", "--lowercase", "--subword", "subword-nmt"]
    assert run(corpus, *flags, splits=["train"]) == 0
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


def test_workers_do_not_change_the_result(corpus):
    flags = ["--joined-dictionary", "--tokenizer", "moses", "--lowercase"]
    flags += ["--subword", "subword-nmt", "--subword-size", "20"]
    for workers in ("1", "3"):
        assert run(corpus, *flags, "--workers", workers, dest=workers) == 0
    assert contents(corpus / "1") == contents(corpus / "3")


@pytest.mark.parametrize("subword", ["subword-nmt", "sentencepiece"])
@pytest.mark.parametrize("joined", [True, False])
def test_raw_text_is_encoded_and_decoded(corpus, subword, joined):
    flags = ["--subword", subword, "--subword-size", "45", "--tokenizer", "moses"]
    flags += ["--joined-dictionary"] if joined else []
    assert run(corpus, *flags) == 0
    task = TranslationTask.from_data_folder(corpus / "data")
    assert task.joined_dictionary == joined
    for split in ("train", "valid", "test"):
        pairs = task.load_split(split)
        english = (corpus / f"{split}.en").read_text("utf-8").split("\n")
        german = (corpus / f"{split}.de").read_text("utf-8").split("\n")
        assert [task.decode_target(pairs.pair(i)[1]) for i in range(len(pairs))] == english
        assert [pairs.pair(i)[0].tolist() for i in range(len(pairs))] == (
            [task.encode_source(line).tolist() for line in german]
        )
    manifest = json.loads((corpus / "data/manifest.json").read_text("utf-8"))
    models = {manifest["text"][language]["subword_file"] for language in ("de", "en")}
    assert len(models) == (1 if joined else 2)
    for name in models:
        record = manifest["files"][name]
        assert hashlib.sha256((corpus / "data" / name).read_bytes()).hexdigest() == record["sha256"]


def test_given_model_gives_the_same_data(corpus):
    flags = ["--joined-dictionary", "--subword", "sentencepiece"]
    assert run(corpus, *flags, "--subword-size", "40") == 0
    model = str(corpus / "data/sentencepiece.model")
    assert run(corpus, *flags, "--subword-model", model, dest="again") == 0
    assert contents(corpus / "again") == contents(corpus / "data")


def test_given_dictionaries_are_used(corpus):
    assert run(corpus) == 0
    dictionaries = ["--srcdict", str(corpus / "data/dict.de.txt")]
    dictionaries += ["--tgtdict", str(corpus / "data/dict.en.txt")]
    assert run(corpus, *dictionaries, dest="test", splits=("test",)) == 0
    for name in ("test.de-en.de.bin", "test.de-en.en.idx", "dict.de.txt"):
        assert (corpus / "test" / name).read_bytes() == (corpus / "data" / name).read_bytes()
    joined = ["--joined-dictionary", "--tgtdict", str(corpus / "data/dict.en.txt")]
    assert run(corpus, *joined, dest="joined", splits=("test",)) == 0
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
    names = sorted(path.name for path in (corpus / "data").iterdir())
    assert names == [
        "dict.de.txt",
        "manifest.json",
        "train.de-None.de.bin",
        "train.de-None.de.idx",
    ]


def test_a_run_after_dict_only_makes_the_rest(corpus):
    assert run(corpus, "--dict-only") == 0
    assert sorted(p.name for p in (corpus / "data").iterdir()) == ["dict.de.txt", "dict.en.txt"]
    data = corpus / "data"
    given = ["--srcdict", f"{data}/dict.de.txt", "--tgtdict", f"{data}/dict.en.txt"]
    assert run(corpus, *given) == 0
    assert run(corpus, dest="direct") == 0
    assert contents(data) == contents(corpus / "direct")


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
    assert run(corpus, *flags, splits=("train", "valid")) == 0
    task = TranslationTask.from_data_folder(corpus / "data")
    assert task.load_split("valid").documents.tolist() == sizes
    manifest = json.loads((corpus / "data/manifest.json").read_text("utf-8"))
    assert manifest["splits"]["valid"]["documents"] == len(sizes)
    plain = ["--trainpref", f"{corpus}/plaintrain", "--validpref", f"{corpus}/plainvalid"]
    assert run(corpus, "--tokenizer", "moses", *plain, dest="plain", splits=()) == 0
    assert contents(corpus / "plain").items() <= contents(corpus / "data").items()


def write_alignments(corpus, split, separator="none"):
    """Align each word with the one at its place; its line stands beside that of the source."""
    lines = (corpus / f"{split}.de").read_text("utf-8").split("\n")
    counts = [0 if line.strip() == "<d>" else len(line.split()) for line in lines]
    pairs = [[f"{i}-{i}" for i in range(count)] for count in counts]
    (corpus / f"{split}.align").write_text("\n".join(" ".join(own) for own in pairs))
    is_apart = {"none": lambda line: False, "blank": lambda line: not line, "tag": "<d>".__eq__}
    return [
        [(i, i) for i in range(count)]
        for line, count in zip(lines, counts, strict=True)
        if not is_apart[separator](line)
    ]


@pytest.mark.parametrize("workers", ["1", "3"])
def test_alignments_equal_those_of_fairseq(corpus, workers, capsys):
    (corpus / "train.de").write_text("a b c\n\nd e\n")
    (corpus / "train.en").write_text("C B A\n\nD E\n")
    (corpus / "train.align").write_text("0-2 1-1  2-0\n\n1-0\n")
    flags = ["--align-suffix", "align", "--workers", workers]
    assert run(corpus, *flags, splits=("train", "valid")) == 0
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
    assert run(corpus, *flags, splits=("train", "valid")) == 0
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
    assert run(corpus, *flags, splits=("train", "valid")) == 0
    for split, pairs in expected.items():
        found = AlignmentDataset(corpus / f"data/{split}.align.de-en")
        assert [list(map(tuple, found[i])) for i in range(len(found))] == pairs
        swapped = AlignmentDataset(corpus / f"data/{split}.align.de-en", swapped=True)
        assert (swapped[0] == found[0][:, ::-1]).all()


def test_interrupted_alignments_are_continued(corpus, monkeypatch):
    for split in ("train", "valid"):
        write_alignments(corpus, split)
    flags = ["--align-suffix", "align", "--workers", "1"]
    assert run(corpus, *flags, dest="whole") == 0
    with monkeypatch.context() as patch:
        parse = fail_after(4, binarize_module._parse_chunk)
        patch.setattr(binarize_module, "_parse_chunk", parse)
        assert run(corpus, *flags) == 130
    assert not list((corpus / "data").glob("*.tmp"))
    assert run(corpus, *flags) == 0
    assert contents(corpus / "data") == contents(corpus / "whole")


@pytest.mark.parametrize("at", ["learn", "convert", "dictionary", "binarize"])
def test_an_interrupted_run_is_continued(corpus, monkeypatch, capsys, at):
    flags = ["--joined-dictionary", "--subword", "subword-nmt", "--subword-size", "20"]
    flags += ["--tokenizer", "moses", "--workers", "1"]
    assert run(corpus, *flags, dest="whole") == 0

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if at == "learn":
            patch.setattr(preprocess_text.TextSteps, "_learn_one", interrupted)
        elif at == "convert":
            patch.setattr(preprocess_text.TextSteps, "_check_sides", interrupted)
        elif at == "dictionary":
            patch.setattr(recipe, "count_words", interrupted)
        else:
            patch.setattr(
                binarize_module, "_binarize_chunk", fail_after(25, binarize_module._binarize_chunk)
            )
        assert run(corpus, *flags) == 130
    assert not (corpus / "data/manifest.json").exists()
    names = [path.name for path in (corpus / "data").iterdir()]
    assert not [name for name in names if name.endswith(".tmp")]
    finished = {name for name in names if name.endswith(".bin")}
    assert bool(finished) == (at == "binarize")
    times = {name: (corpus / "data" / name).stat().st_mtime_ns for name in finished}

    assert run(corpus, *flags) == 0
    assert contents(corpus / "data") == contents(corpus / "whole")
    for name, time in times.items():
        assert (corpus / "data" / name).stat().st_mtime_ns == time


def fail_after(calls, function):
    """Return a function that is interrupted after some calls."""
    left = [calls]

    def wrapper(task):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return function(task)

    return wrapper


def test_a_complete_folder_is_not_changed(corpus, capsys):
    assert run(corpus) == 0
    before = {p.name: p.stat().st_mtime_ns for p in (corpus / "data").iterdir()}
    capsys.readouterr()
    assert run(corpus, "--workers", "1") == 0
    assert "complete already, nothing to do" in capsys.readouterr().out
    assert {p.name: p.stat().st_mtime_ns for p in (corpus / "data").iterdir()} == before


def test_a_damaged_folder_is_made_again(corpus):
    assert run(corpus) == 0
    whole = contents(corpus / "data")
    (corpus / "data/train.de-en.de.bin").write_bytes(b"")
    assert run(corpus) == 0
    assert contents(corpus / "data") == whole


@pytest.mark.parametrize("whole", [True, False])
def test_other_settings_need_overwrite(corpus, capsys, whole):
    assert run(corpus) == 0
    if not whole:
        (corpus / "data/valid.de-en.en.raw").unlink()
    assert run(corpus, "--lowercase", "--thresholdsrc", "2", splits=("train",)) == 2
    assert "holds data made from other text or settings" in capsys.readouterr().err
    assert run(corpus, "--thresholdsrc", "2", "--overwrite", splits=("train",)) == 0
    assert run(corpus, "--thresholdsrc", "2", dest="direct", splits=("train",)) == 0
    # Nothing of the old data stays.
    assert contents(corpus / "data") == contents(corpus / "direct")


def test_another_kind_of_manifest_is_not_replaced(corpus, capsys):
    (corpus / "data").mkdir()
    other = corpus / "data/manifest.json"
    other.write_text('{"name": "a web page"}')
    assert run(corpus) == 2
    assert "not the manifest of a data folder; give another --destdir" in capsys.readouterr().err
    assert other.read_text() == '{"name": "a web page"}'
    assert [path.name for path in (corpus / "data").iterdir()] == ["manifest.json"]
    assert run(corpus, "--overwrite") == 0


def test_overwrite_keeps_the_given_files(corpus):
    assert run(corpus) == 0
    given = ["--srcdict", str(corpus / "data/dict.de.txt"), "--overwrite"]
    assert run(corpus, *given, "--thresholdtgt", "2", splits=("train",)) == 0
    assert sorted(path.name for path in (corpus / "data").glob("*.bin")) == [
        "train.de-en.de.bin",
        "train.de-en.en.bin",
    ]


def test_a_folder_of_fairseq_is_not_replaced(corpus, capsys):
    (corpus / "data").mkdir()
    (corpus / "data/dict.de.txt").write_text("word 1\n")
    assert run(corpus) == 2
    assert "dict.de.txt: exists already" in capsys.readouterr().err
    assert (corpus / "data/dict.de.txt").read_text() == "word 1\n"
    assert run(corpus, "--overwrite") == 0


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
    assert run(corpus, *flags, dest="plain") == 0
    compressors = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zst}
    paths = [corpus / f"{split}.{lang}" for split in ("train", "valid", "test") for lang in GIVEN]
    # Each side in another format: the texts are parallel all the same.
    for path, (ending, compress) in zip(paths, 2 * list(compressors.items()), strict=False):
        path.with_name(path.name + ending).write_bytes(compress(path.read_bytes()))
        path.unlink()
    assert run(corpus, *flags, "--workers", workers, dest="packed") == 0
    assert contents(corpus / "packed") == contents(corpus / "plain")
    assert f"[de] {corpus}/train.de.gz: 300 sents" in capsys.readouterr().out
    plain, packed = (
        json.loads((corpus / name / "manifest.json").read_text()) for name in ("plain", "packed")
    )
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


def test_a_subword_model_of_the_user_is_learnt(corpus, capsys):
    module = corpus / "letters.py"
    module.write_text(LETTERS)
    flags = ["--subword", "letters", "--subword-size", "3", "--user-module", str(module)]
    assert run(corpus, *flags, "--workers", "2") == 0
    names = {path.name for path in (corpus / "data").iterdir()}
    assert {"letters.de.txt", "letters.en.txt"} <= names
    assert len((corpus / "data" / "letters.de.txt").read_text().split()) == 3
    task = TranslationTask.from_data_folder(corpus / "data")
    stored = TranslationTask.from_state(json.loads(json.dumps(task.to_state())))
    for line in (corpus / "test.de").read_text("utf-8").split("\n"):
        tokens = task.source_text.encode(line)
        assert len(tokens) >= len(line.split())
        assert task.source_text.decode(tokens) == line
        assert stored.source_text.encode(line) == tokens
    given = ["--subword", "letters", "--user-module", str(module)]
    given += ["--subword-model", str(corpus / "data" / "letters.de.txt")]
    assert run(corpus, *given, dest="given") == 0
    assert (corpus / "given" / "letters.txt").exists()


def test_an_unknown_subword_model_is_an_error(corpus, capsys):
    assert run(corpus, "--subword", "sentencepeace") == 2
    error = capsys.readouterr().err
    assert "sentencepiece" in error
    assert "\n" not in error.strip()


SHARDED = ("--joined-dictionary", "--tokenizer", "moses", "--subword", "subword-nmt")


def test_shards_share_the_dictionary_and_subwords_of_the_first(corpus, monkeypatch, capsys):
    texts = [str(corpus / name) for name in ("train", "more")]
    flags = ["-s", "de", "-t", "en", "--trainpref", ",".join(texts), *SHARDED]
    flags += ["--validpref", str(corpus / "valid"), "--subword-size", "20", "--destdir"]
    assert main([*flags, str(corpus / "here")]) == 0
    monkeypatch.setattr(recipe, "Cluster", lambda _, *rest: Cluster("debug", *rest))
    assert main([*flags, str(corpus / "jobs"), "--cluster", "local"]) == 0
    assert "shard1: made by job " in capsys.readouterr().out
    for shard in ("shard0", "shard1"):
        assert contents(corpus / "here" / shard) == contents(corpus / "jobs" / shard)
    one, two = (contents(corpus / f"here/shard{i}") for i in range(2))
    assert "valid.de-en.de.bin" in one and "valid.de-en.de.bin" not in two
    shared = [name for name in one if name in two and not name.startswith("train")]
    assert len(shared) == 3 and all(one[name] == two[name] for name in shared)
    # It is what a user makes by hand.
    by_hand = ["--srcdict", str(corpus / "here/shard0/dict.de.txt"), *SHARDED]
    by_hand += ["--subword-model", str(next((corpus / "here/shard0").glob("*code*")))]
    by_hand += ["--trainpref", texts[1], "--destdir", str(corpus / "hand")]
    assert main([*flags[:4], *by_hand]) == 0
    assert contents(corpus / "hand") == two


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("a,b", "--dict-only", "--dict-only: give one --trainpref"),
        ("a,b", "--subword sentencepiece", "of several --trainpref: add --joined-dictionary"),
        ("a", "--cluster slurm", "--cluster: shards of the training text are its jobs"),
        ("a,b", "--cluster slurm --cluster-parameters gpus", "'gpus': expected NAME=VALUE"),
        ("a,b", "--cluster-parameters timeout_min=3", "does nothing without --cluster"),
    ],
)
def test_mistakes_with_shards_are_refused(tmp_path, capsys, text, flags, message):
    words = ["-s", "de", "-t", "en", "--trainpref", text, "--destdir", str(tmp_path)]
    assert main([*words, *flags.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("subword", ["subword-nmt", "sentencepiece"])
def test_training_text_is_split_at_random(corpus, subword):
    splits = ("train", "valid")
    common = ["--joined-dictionary", "--subword", subword, "--subword-size", "60", "--workers"]
    sampled = ["--subword-sampling", "0.2"]
    assert run(corpus, *common, "1", dest="usual", splits=splits) == 0
    assert run(corpus, *common, "1", *sampled, dest="one", splits=splits) == 0
    assert run(corpus, *common, "3", *sampled, dest="two", splits=splits) == 0
    usual, one, two = (contents(corpus / name) for name in ("usual", "one", "two"))
    assert one == two
    [model] = [name for name in one if name.startswith(("subword.", "sentencepiece."))]
    assert usual[model] == one[model]
    assert usual["train.de-en.de.bin"] != one["train.de-en.de.bin"]
    given = ["--subword-model", corpus / "one" / model, "--srcdict", corpus / "one" / "dict.de.txt"]
    flags = [*common[:3], *map(str, given), *sampled, "--seed", "2"]
    assert run(corpus, *flags, dest="other", splits=splits) == 0
    other = contents(corpus / "other")
    assert other["train.de-en.de.bin"] != one["train.de-en.de.bin"]
    assert other["valid.de-en.de.bin"] == one["valid.de-en.de.bin"]
    assert other["dict.de.txt"] == one["dict.de.txt"]
    texts = []
    for name in ("usual", "one", "other"):
        task = TranslationTask.from_data_folder(corpus / name)
        train = task.load_split("train")
        texts.append([task.decode_target(ids) for ids in train.targets()])
    assert texts[0] == texts[1] == texts[2]  # in other pieces


def test_each_shard_of_one_text_has_its_own_random_split(corpus):
    text = ",".join([str(corpus / "train")] * 3)
    words = ["-s", "de", "-t", "en", "--trainpref", text, "--destdir", str(corpus / "samples")]
    flags = ["--joined-dictionary", "--subword", "subword-nmt", "--subword-size", "60"]
    assert main([*words, *flags, "--subword-sampling", "0.2"]) == 0
    folders = [corpus / f"samples/shard{i}" for i in range(3)]
    found = [contents(folder) for folder in folders]
    for language in ("de", "en"):
        assert len({own[f"train.de-en.{language}.bin"] for own in found}) == 3
    assert len({own["dict.de.txt"] for own in found}) == 1
    tasks = list(map(TranslationTask.from_data_folder, folders))
    first, *others = [
        [task.decode_target(ids) for ids in task.load_split("train").targets()] for task in tasks
    ]
    assert all(own == first for own in others)
    # Without draws the folders are the same, whatever their number.
    words[-1] = str(corpus / "usual-shards")
    assert main([*words, *flags]) == 0
    usual = [contents(corpus / f"usual-shards/shard{i}") for i in range(2)]
    name = "train.de-en.de.bin"
    assert usual[0][name] == usual[1][name] != found[0][name]


def test_blank_lines_that_become_sentences_are_reported_first(tmp_path, capsys):
    for language, text in (("de", "eins\n\nzwei\n \ndrei\n"), ("en", "one\n\ntwo\n\nthree\n")):
        (tmp_path / f"train.{language}").write_text(text)
        (tmp_path / f"valid.{language}").write_text("eins\n")
    texts = ["--trainpref", str(tmp_path / "train"), "--validpref", str(tmp_path / "valid")]
    words = ["--source-lang", "de", "--target-lang", "en", *texts]
    words += ["--destdir", str(tmp_path / "data")]
    assert main(words) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(f"NOTE: {tmp_path / 'train.de'}: 2 blank lines become sentences")
    assert "--document-separator blank" in first
    assert not any("NOTE" in line for line in others)
    words[words.index(str(tmp_path / "data"))] = str(tmp_path / "documents")
    assert main([*words, "--document-separator", "blank"]) == 0
    assert "NOTE" not in capsys.readouterr().out

"""Several data folders in one training: weights, tags, and sentences beside documents."""

import re

import pytest

from relu_nmt.data.dictionary import Dictionary
from tests.commands import assert_refused, run_here
from tests.outputs import containing, json_lines, values
from tests.tiny import as_text

REAL = {"de": ["eins zwei", "drei", "", "vier fünf", "sechs"]}
REAL["en"] = ["one two", "three", "", "four five", "six"]
BACK = {"de": ["zwei zwei", "drei drei", "vier vier"], "en": ["two two", "three three", "four"]}


def write(folder, name, texts):
    for language, lines in texts.items():
        (folder / f"{name}.{language}").write_text(as_text(lines), "utf-8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a folder of documents, and one of sentences with its dictionaries."""
    folder = tmp_path_factory.mktemp("corpora")
    write(folder, "real", REAL)
    write(folder, "back", BACK)
    words = ["-s", "de", "-t", "en", "--validpref", folder / "real"]
    real, back = folder / "real-bin", folder / "back-bin"
    files = ["--trainpref", folder / "real", "--document-separator", "blank", "--destdir", real]
    run_here("preprocess", words, files, "--padding-factor", "16")
    files = ["--trainpref", folder / "back", "--validpref", folder / "back", "--destdir", back]
    dictionaries = ["--srcdict", real / "dict.de.txt", "--tgtdict", real / "dict.en.txt"]
    run_here("preprocess", words, files, dictionaries)
    return real, back


def train(folders, save_dir, *flags, check=True):
    real, back = folders
    words = f"{real} --extra-data {back} --arch transformer_tiny --cpu --max-tokens 200 --no-save"
    logged = "--log-format json --log-interval 1"
    done = run_here("train", words.split(), logged.split(), flags, check=check)
    lines = json_lines(done.stdout)
    return done, values(containing(lines, "update"), "bsz"), lines


def test_weights_say_how_often_an_epoch_reads_a_corpus(folders, tmp_path):
    _, sizes, _ = train(folders, tmp_path, "--max-epoch", "1")
    assert sum(sizes) == 4 + 3
    _, sizes, _ = train(folders, tmp_path, "--max-epoch", "1", "--corpus-weights", "2,3")
    assert sum(sizes) == 2 * 4 + 3 * 3


def test_sentences_beside_documents(folders, tmp_path):
    flags = ["--max-epoch", "1", "--max-doc-tokens", "20"]
    flags += ["--sentence-separator", "--tag-extra-data"]
    _, sizes, lines = train(folders, tmp_path, flags)
    assert sum(sizes) == 2 + 3  # groups: two documents, three sentences
    messages = " ".join(values(lines, "message"))
    assert "back-bin/train.de-en: no document boundaries, so that each sentence is one" in messages


def test_a_dictionary_without_room_for_tags_is_told_how_to_get_it(folders, tmp_path):
    words = ["-s", "de", "-t", "en", "--trainpref", folders[0].parent / "real"]
    words += ["--validpref", folders[0].parent / "real", "--joined-dictionary"]
    words += ["--destdir", tmp_path / "bin", "--overwrite", "--padding-factor"]
    run_here("preprocess", words, "1")
    full = tmp_path / "bin", tmp_path / "bin"
    done, _, _ = train(full, tmp_path, "--tag-extra-data", check=False)
    advice = re.search(
        r"has 0 unused entries for 1 tags; preprocess with (.*) ([0-9]+)$", done.stderr
    )
    assert done.returncode == 2 and advice and advice[1] == "--padding-factor"
    run_here("preprocess", words, advice[2])
    assert len(Dictionary.load(tmp_path / "bin" / "dict.de.txt").fillers) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--corpus-weights", "1"], "1 numbers, but there are 2 data folders"),
        (["--corpus-weights", "1,0"], "expected more than 0"),
    ],
)
def test_wrong_weights_are_told(folders, tmp_path, flags, message):
    done, *_ = train(folders, tmp_path, flags, check=False)
    assert_refused(done, message)


def test_a_folder_with_other_dictionaries_is_refused(folders, tmp_path):
    real, back = folders
    (tmp_path / "other").mkdir()
    for file in back.iterdir():
        if file.name != "manifest.json":
            (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    Dictionary(["zwei"]).save(tmp_path / "other" / "dict.de.txt")
    done, *_ = train((real, tmp_path / "other"), tmp_path, "--max-epoch", "1", check=False)
    assert_refused(done, f"other/dict.de.txt: not the dictionary of {real}; preprocess with")

r"""One rule for the ends of lines, from preprocessing to scores: \n, and \r\n as one."""

import json
import random
import re
import subprocess
import sys
import warnings

import pytest

from relu_nmt.data.indexed_dataset import IndexedDataset
from relu_nmt.errors import DataError
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.commands import assert_refused, run_here
from tests.outputs import column, starting
from tests.tiny import preprocessed, save_tiny_model

NUM_LINES = 300
# White space for Python's str.split, and ends of lines for its str.splitlines.
WITHIN_LINES = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
WORDS = ["Haus", "Hund", "rot", "gross", "isst", "Brot", "ein", "."]


def numbered_lines(word, seed):
    rng = random.Random(seed)
    return [f"{word}{i} {' '.join(rng.choices(WORDS, k=6))}" for i in range(NUM_LINES)]


def with_mark(lines, number, mark):
    """Return the lines with a mark inside the line of this number, from 1."""
    first, last = lines[number - 1].split(" ", 1)
    return [*lines[: number - 1], f"{first} {mark} {last}", *lines[number:]]


def write(path, lines, end="\n"):
    path.write_bytes((end.join(lines) + end).encode())


def write_sides(folder, split, mark, end="\n"):
    """Write 300 lines a side, with a mark in the source line 10 and the target line 200."""
    german = numbered_lines("de", 1)
    english = numbered_lines("en", 1)
    write(folder / f"{split}.de", with_mark(german, 10, mark), end)
    write(folder / f"{split}.en", with_mark(english, 200, mark))
    return german, english


def prepared(folder, **settings):
    """Preprocess, and return the tokens of both sides of the training pairs."""
    preprocessed(folder, splits=("train",), **settings)
    task = TranslationTask.from_data_folder(folder / "bin")
    dictionaries = (task.source_dictionary, task.target_dictionary)
    sides = []
    for language, dictionary in zip(("de", "en"), dictionaries, strict=True):
        dataset = IndexedDataset(folder / f"bin/train.de-en.{language}")
        sides.append([dictionary.symbols_of(ids[:-1]) for ids in dataset])
    return sides


@pytest.mark.parametrize("mark", WITHIN_LINES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_mark_within_a_line_shifts_no_pair(tmp_path, mark, end):
    german, english = write_sides(tmp_path, "train", mark, end)
    sources, targets = prepared(tmp_path)
    assert sources == list(map(str.split, german))
    assert targets == list(map(str.split, english))


@pytest.mark.parametrize("tokenizer", ["none", "moses"])
def test_documents_and_held_out_text_keep_their_lines(tmp_path, tokenizer):
    for split in ("train", "valid"):
        write_sides(tmp_path, split, "\r")
    valid = with_mark(numbered_lines("de", 1), 300, "\x85")
    valid[4] += "\r"
    write(tmp_path / "valid.de", valid, "\r\n")
    prepared(tmp_path, validpref=str(tmp_path / "valid"), tokenizer=tokenizer)
    task = TranslationTask.from_data_folder(tmp_path / "bin")
    split = task.load_split("valid")
    assert split.raw_source == valid
    assert split.raw_target == with_mark(numbered_lines("en", 1), 200, "\r")
    assert len(split) == NUM_LINES


def test_separators_and_alignments_count_the_same_lines(tmp_path):
    write(tmp_path / "train.de", ["a \r b", "", "c"])
    write(tmp_path / "train.en", ["x \x0c y", "", "z"])
    write(tmp_path / "train.align", ["0-0 1-1", "", "0-0"], "\r\n")
    prepared(tmp_path, document_separator="blank", align_suffix="align")
    assert (tmp_path / "bin/train.de-en.documents").read_text().split() == ["1", "1"]
    write(tmp_path / "train.align", ["0-0 \r 1-1", "", "0-0 1"])
    with pytest.raises(DataError, match=r"train\.align:3: '1' is no pair"):
        prepared(tmp_path, document_separator="blank", align_suffix="align", overwrite=True)


def sacrebleu(*words):
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *map(str, words), "-b", "-w", "4"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


@pytest.mark.parametrize("mark", WITHIN_LINES)
def test_bleu_equals_that_of_sacrebleu(tmp_path, mark):
    reference = numbered_lines("en", 1)
    write(tmp_path / "ref", with_mark(reference, 200, mark))
    write(tmp_path / "sys", with_mark(reference, 10, mark), "\r\n")
    flags = ("--sys", tmp_path / "sys", "--ref", tmp_path / "ref", "--format", "json")
    [score] = json.loads(run_here("score", flags).stdout)
    assert score["score"] == pytest.approx(100.0)
    if mark != "\r":  # the command takes half a second
        return
    other = [line.replace("Brot", "rot") for line in reference]
    write(tmp_path / "sys", with_mark(other, 10, mark))
    entries = json.loads(run_here("score", flags, "--metrics", "bleu,chrf").stdout)
    for name, entry in zip(("bleu", "chrf"), entries, strict=True):
        expected = sacrebleu(tmp_path / "ref", "-i", tmp_path / "sys", "-m", name)
        assert entry["score"] == pytest.approx(expected, abs=1e-3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("line_ends")
    write_sides(folder, "train", "\r")
    write(folder / "test.de", ["Haus \r Hund", "rot \u2028 .", "ein Brot"], "\r\n")
    write(folder / "test.en", ["Haus \x85 Hund", "rot .", "ein \r Brot"])
    prepared(folder, testpref=str(folder / "test"), joined_dictionary=True)
    task = TranslationTask.from_data_folder(folder / "bin")
    save_tiny_model(folder / "model.safetensors", task, attention="reluformer")
    return folder


def translated(model, name, *words, stdin=""):
    flags = ("--path", model / "model.safetensors", "--max-len-b", 5, "--cpu")
    return run_here(name, words, flags, stdin=stdin).stdout


@pytest.mark.parametrize("mark", WITHIN_LINES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_typed_line_has_one_translation(model, mark, end):
    text = f"Haus {mark} Hund{end}rot .{end}"
    output = translated(model, "interactive", stdin=text)
    assert output.count("\n") == 2 and not re.search(f"[{''.join(WITHIN_LINES)}]", output)
    assert output == translated(model, "interactive", stdin="Haus Hund\nrot .\n")
    printed = translated(model, "interactive", "--format", "json", stdin=text)
    assert column(map(json.loads, printed.rstrip("\n").split("\n")), "id") == [0, 1]
    document = translated(model, "translate_document", "-", stdin=text)
    assert document.count("\n") == 2


def test_a_line_given_in_python_has_one_line_as_translation(model):
    translator = Translator.from_checkpoint(model / "model.safetensors", device="cpu")
    lines = [f"Haus{mark}Hund{mark}" for mark in ("\n", *WITHIN_LINES)]
    with warnings.catch_warnings(action="ignore"):
        translations = translator.translate([*lines, "Haus Hund"], max_len_b=5)
    assert translations == [translations[-1]] * (len(lines) + 1) and translations[-1].isprintable()


def test_files_beside_the_input_have_the_same_lines(model, tmp_path):
    write(tmp_path / "prefixes", ["Brot \r rot", ""])
    text = "Haus Hund\nrot .\n"
    output = translated(model, "interactive", "--prefixes", tmp_path / "prefixes", stdin=text)
    assert output.count("\n") == 2 and output.startswith("Brot rot")
    write(tmp_path / "banned", ["Brot \x0b rot", "ein"])
    output = translated(model, "interactive", "--banned-terms", tmp_path / "banned", stdin=text)
    assert output.count("\n") == 2


def test_results_and_split_have_the_same_number_of_lines(model, tmp_path):
    words = (model / "bin", "--results-path", tmp_path, "--gen-subset", "test")
    translated(model, "generate", words)
    lines = (tmp_path / "generate-test.txt").read_bytes().decode().split("\n")
    for kind in "STHDP":
        assert len(starting(lines, f"{kind}-")) == 3


def test_a_message_counts_the_same_lines(tmp_path):
    (tmp_path / "x").write_bytes(b"a\rb\nc\x0cd\r\n\xe2\x80\xa8\n\xff\n")
    done = run_here("score", "--sys", tmp_path / "x", "--ref", tmp_path / "x", check=False)
    assert_refused(done, "x:4: not UTF-8")

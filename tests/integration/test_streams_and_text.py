"""Locale, byte-order marks, carriage returns, closed and full streams: what a shell may do."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from relu_nmt.applications.sweep.settings import read_published
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import DataError
from relu_nmt.io.progress import progress_bar
from relu_nmt.io.text_lines import read_lines
from relu_nmt.jobs.analyze.curves import read_curves
from tests.commands import assert_refused, command_line, run_here
from tests.tiny import preprocessed, save_tiny_model, tiny_task

ROOT = Path(__file__).parents[2]
BOM = b"\xef\xbb\xbf"
GERMAN = "Größe\nStraße\n"


def score(*flags, **settings):
    """Run relu-nmt-score, which is quick, as a separate program."""
    environment = {**os.environ, **settings.pop("variables", {})}
    words = command_line([sys.executable, "-m", "relu_nmt.cli.score", flags])
    return subprocess.run(words, cwd=ROOT, env=environment, check=False, **settings)


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "größe.out").write_text(GERMAN, "utf-8")
    return "--sys", tmp_path / "größe.out", "--ref", tmp_path / "größe.out"


def test_output_is_utf_8_whatever_the_locale_says(tmp_path):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    missing = tmp_path / "größe"
    done = score("--sys", missing, "--ref", missing, variables=ascii_only, capture_output=True)
    assert done.returncode == 2 and "größe" in done.stderr.decode("utf-8")


def test_a_full_disk_under_standard_output_is_one_line(texts):
    with open("/dev/full", "w") as full:
        done = score(texts, stdout=full, stderr=subprocess.PIPE, text=True)
    assert_refused(done, "No space left")


def test_a_reader_that_has_left_is_no_success(texts):
    read, write = os.pipe()
    os.close(read)
    done = score(texts, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_closed_standard_output_is_one_line(texts):
    command = [sys.executable, "-m", "relu_nmt.cli.score", *map(str, texts)]
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(shell, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert_refused(done, "standard output is closed")


def test_closed_standard_error_stops_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)

    def body(_):
        with progress_bar("count", 1) as advance:
            advance(1)
        print("done")

    assert run_command(make_parser("count", ""), body, []) == 0
    assert capsys.readouterr().out == "done\n"


def test_a_full_disk_under_standard_error_is_a_users_error(tmp_path):
    with open("/dev/full", "w") as full:
        done = score("--sys", tmp_path / "none", "--ref", tmp_path / "none", stderr=full)
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("interactive", ["--path", "x"]),
        ("translate_document", ["-", "--path", "x"]),
        ("score", ["--ref", __file__]),
    ],
)
def test_closed_standard_input_is_one_line(command, words, monkeypatch, capsys):
    from importlib import import_module

    monkeypatch.setattr(sys, "stdin", None)
    assert import_module(f"relu_nmt.cli.{command}").main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "standard input is closed" in error


def prepare(folder, german, english):
    (folder / "train.de").write_bytes(german)
    (folder / "train.en").write_bytes(english)
    return Dictionary.load(preprocessed(folder, splits=("train",)) / "dict.de.txt")


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    words = prepare(tmp_path, BOM + b"ein Haus\nein Hund\n", b"a house\na dog\n")
    assert "ein" in words and "\ufeffein" not in words
    assert read_lines(tmp_path / "train.de")[0] == "ein Haus"
    path = tmp_path / "bin/dict.de.txt"
    path.write_bytes(BOM + path.read_bytes())
    assert Dictionary.load(path) == words
    (tmp_path / "own.yaml").write_bytes(BOM + b"metrics: chrf\n")
    done = run_here("score", "--config", tmp_path / "own.yaml", "--dump-config", check=False)
    assert "unknown option" not in done.stderr


def test_a_byte_order_mark_is_no_part_of_a_log_or_a_table(tmp_path):
    file = tmp_path / "file"
    file.write_text('{"epoch": 1, "update": 1, "loss": 2.5, "num_updates": 9}\n', "utf-8-sig")
    assert read_curves(file) == {("train", "loss"): {9: 2.5}}
    table = {"title": "A", "source": "B", "columns": {"d_bleu": "C"}, "rows": {"softmax": [1.5]}}
    file.write_text(json.dumps(table), "utf-8-sig")
    assert read_published(str(file))["title"] == "A"


def test_a_lone_carriage_return_stays_within_its_line(tmp_path):
    words = prepare(tmp_path, b"ein\rHaus\nein \rHund\r\n", b"a house\na dog\n")
    assert words.to_text().startswith("ein 2\nHaus 1\nHund 1\n")
    with pytest.raises(DataError, match=r"train\.de: 3 lines, but .*train\.en has 2"):
        prepare(tmp_path, b"ein\r\nHaus\r\nHund\r\n", b"a house\na dog\n")


@pytest.mark.parametrize("end", ["", ".gz"])
def test_carriage_returns_are_the_line_ends_of_a_text_without_others(tmp_path, end):
    text = b"ein Haus\rein Hund\r"
    words = prepare(tmp_path, text, b"a house\na dog\n")
    assert words.to_text().startswith("ein 2\nHaus 1\nHund 1\n")
    path = tmp_path / f"text{end}"
    path.write_bytes(gzip.compress(text) if end else text)
    save_tiny_model(tmp_path / "model.safetensors", tiny_task(["ein", "Haus"]))
    model = ["--path", tmp_path / "model.safetensors", "--cpu", "--beam", 1, "--max-len-b", 2]
    typed = run_here("interactive", model, stdin="ein Haus\rein Hund")
    done = run_here("interactive", model, "--input", path)
    assert done.stdout == typed.stdout and done.stdout.count("\n") == 2
    assert run_here("translate_document", path, model).stdout == done.stdout

"""Mistakes of the user: one line that says what is wrong, and exit code 2."""

import os
import signal
import subprocess
import sys
import time

import pytest

from relu_nmt.cli.preprocess import main
from relu_nmt.io.safe_write import folder_locked, remove_abandoned
from tests.commands import command_line
from tests.outputs import containing


@pytest.fixture
def corpus(tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"train.{language}").write_text("ein Satz\nnoch einer\n" * 5)
        (tmp_path / f"valid.{language}").write_text("ein Satz\n")
    return tmp_path


def error_of(corpus, capsys, *flags):
    arguments = ["-s", "de", "-t", "en", "--destdir", corpus / "data"]
    arguments += ["--trainpref", corpus / "train", "--validpref", corpus / "valid"]
    assert main(command_line([arguments, flags])) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("relu-nmt-preprocess: error: ")
    assert len(containing(lines, "error")) == 1
    assert not (corpus / "data/manifest.json").exists()
    return lines[-1].removeprefix("relu-nmt-preprocess: error: ")


def test_sides_that_are_not_parallel_are_an_error(corpus, capsys):
    with open(corpus / "valid.en", "a") as file:
        file.write("one more\n")
    error = error_of(corpus, capsys)
    assert error == (
        f"{corpus}/valid.de: 1 lines, but {corpus}/valid.en has 2; both sides must be parallel, "
        "line by line"
    )


def test_a_missing_file_is_an_error(corpus, capsys):
    (corpus / "train.en").unlink()
    error = error_of(corpus, capsys)
    assert error.startswith(f"{corpus}/train.en: no such file; its name is that of --trainpref")


@pytest.mark.parametrize("name", ["train.de", "valid.en"])
def test_an_empty_file_is_an_error(corpus, capsys, name):
    (corpus / name).write_text("")
    assert error_of(corpus, capsys) == (
        f"{corpus}/{name}: the file is empty; give text, or leave the split out"
    )


def test_text_of_blank_lines_is_an_error(corpus, capsys):
    (corpus / "train.de").write_text("\n" * 10)
    assert error_of(corpus, capsys) == f"{corpus}/train.de: no words in the text"


def test_a_threshold_that_leaves_no_words_is_an_error(corpus, capsys):
    error = error_of(corpus, capsys, "--thresholdtgt", "100")
    assert "train.en: --thresholdtgt 100 and --nwordstgt -1 leave no word of the text" in error


def test_text_that_is_not_utf8_is_an_error(corpus, capsys):
    with open(corpus / "train.de", "ab") as file:
        file.write(b"caf\xe9\n")
    error = error_of(corpus, capsys)
    assert error.startswith(f"{corpus}/train.de:11: not UTF-8 (byte 0xe9); convert the file")


@pytest.mark.parametrize(
    ("number", "line", "message"),
    [
        (3, "0-0 1_1", ":3: '1_1' is no pair of positions; a line is like 0-0 1-2 2-1"),
        (1, "0-0 -1-1", ":1: '-1-1' is no pair of positions"),
        (1, "0-0 1-1\u0662", ":1: '1-1\u0662' is no pair of positions"),
        (2, "0-0 2-1", ":2: pair 2-1, but the source sentence has 2 tokens, counted from 0"),
        (10, "0-0 1-2", ":10: pair 1-2, but the target sentence has 2 tokens, counted from 0"),
        (4, "<d>", ":4: <d>, but no document begins at this line of the source text"),
        (10, "0-0\n0-0", " has 11; both sides must be parallel, line by line"),
    ],
)
def test_a_wrong_alignment_is_an_error(corpus, capsys, number, line, message):
    lines = ["0-0 1-1"] * 10
    lines[number - 1] = line
    (corpus / "train.align").write_text("\n".join(lines), encoding="utf-8")
    workers = ["--workers", number % 2 + 1]
    error = error_of(corpus, capsys, "--align-suffix", "align", workers)
    assert f"{corpus}/train.align{message}" in error
    assert not list((corpus / "data").glob("*.align.*"))


def test_an_alignment_between_documents_is_an_error(corpus, capsys):
    for name in ("train.de", "train.en"):
        (corpus / name).write_text("ein Satz\n\nnoch einer\n")
    (corpus / "train.align").write_text("0-0\n1-1\n\n")
    error = error_of(corpus, capsys, "--align-suffix", "align", "--document-separator", "blank")
    assert error.startswith(f"{corpus}/train.align:2: aligned tokens, but this line of the source")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "train.align: no such file; it is to hold the word alignments (--align-suffix align)"),
        ("--tokenizer moses", "which --tokenizer moses would change; split the text"),
        ("--subword subword-nmt", "which --subword subword-nmt would change"),
        ("--dict-only", "--align-suffix align does nothing with --dict-only"),
        ("--only-source", "--align-suffix align does nothing with --only-source"),
        ("--align-suffix de", "--align-suffix 'de': expected another ending than those of the"),
    ],
)
def test_impossible_alignments_are_errors(corpus, capsys, flags, message):
    assert message in error_of(corpus, capsys, "--align-suffix", "align", flags.split())


def test_sides_with_different_documents_are_an_error(corpus, capsys):
    for language, cut in (("de", 4), ("en", 6)):
        path = corpus / f"train.{language}"
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:cut], "", *lines[cut:]]))
    error = error_of(corpus, capsys, "--document-separator", "blank")
    assert error.startswith(
        f"{corpus}/train.de:5: document 2 begins after 4 sentences, but at {corpus}/train.en:7"
    )


def test_a_missing_sentence_is_an_error_if_documents_agree(corpus, capsys):
    (corpus / "train.de").write_text("a\nb\n\nc\nd\n")
    (corpus / "train.en").write_text("a\nb\n\nc\n")
    error = error_of(corpus, capsys, "--document-separator", "blank")
    assert f"{corpus}/train.de: 4 sentences, but {corpus}/train.en has 3" in error


def test_text_without_the_expected_tags_is_an_error(corpus, capsys):
    error = error_of(corpus, capsys, "--document-separator", "tag")
    assert error == (
        f"{corpus}/train.de: no line <d> in it, but --document-separator tag expects one before "
        "each document; add them, or take another separator"
    )


def test_text_of_separators_is_an_error(corpus, capsys):
    for language in ("de", "en"):
        path = corpus / f"train.{language}"
        path.write_text("<d>\n" + path.read_text())
    (corpus / "valid.de").write_text("<d>\n<d>\n")
    error = error_of(corpus, capsys, "--document-separator", "tag")
    assert error == f"{corpus}/valid.de: no sentences in it, only document separators; give text"


@pytest.mark.parametrize("subword", ["subword-nmt", "sentencepiece"])
def test_a_foreign_subword_model_is_an_error(corpus, capsys, subword):
    flags = ["--subword", subword, "--subword-model"]
    (corpus / "text").write_text("drei Worte hier\n")
    error = error_of(corpus, capsys, flags, str(corpus / "text"))
    assert f"text: not a model of {subword}" in error
    (corpus / "model").write_bytes(b"\xff\xfe")
    error = error_of(corpus, capsys, flags, str(corpus / "model"))
    assert f"model: not a model of {subword}" in error
    error = error_of(corpus, capsys, flags, str(corpus / "none"))
    assert error == f"{corpus}/none: no such file (--subword-model)"
    assert (
        error_of(corpus, capsys, "--srcdict", str(corpus)) == f"{corpus}: is a folder (--srcdict)"
    )


def test_text_too_small_for_subwords_is_an_error(corpus, capsys):
    flags = ["--subword", "sentencepiece", "--subword-size", "3"]
    assert "--subword-size 3: SentencePiece refuses it" in error_of(corpus, capsys, flags)
    flags[-1] = "10000001"
    assert "--subword-size 10000001: expected 1 to 10000000" in error_of(corpus, capsys, flags)


def test_a_damaged_dictionary_is_an_error(corpus, capsys):
    (corpus / "dict").write_text("ein 3\nSatz\n")
    error = error_of(corpus, capsys, "--srcdict", str(corpus / "dict"))
    assert error.startswith(f"{corpus}/dict:2: expected '<symbol> <count>', found 'Satz'")


def test_missing_flags_are_an_error(corpus, capsys):
    assert main(["--trainpref", "x"]) == 2
    assert "--source-lang is missing" in capsys.readouterr().err


def test_a_file_as_destination_is_an_error(corpus, capsys):
    (corpus / "data").write_text("x")
    arguments = ["-s", "de", "-t", "en", "--trainpref", str(corpus / "train")]
    assert main([*arguments, "--destdir", str(corpus / "data")]) == 2
    assert f"{corpus}/data: cannot write: File exists" in capsys.readouterr().err


def test_a_folder_that_another_process_writes_to_is_an_error(corpus, capsys):
    (corpus / "data").mkdir()
    with folder_locked(corpus / "data") as is_free:
        assert is_free
        assert "data: another relu-nmt-preprocess is writing" in error_of(corpus, capsys)
    assert list((corpus / "data").iterdir()) == []


def test_a_closed_standard_output_is_no_fault_of_the_folder(corpus, monkeypatch):
    def leave(*_, file=None, **__):
        if file is None:  # standard output
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("builtins.print", leave)
    arguments = ["-s", "de", "-t", "en", "--trainpref", str(corpus / "train")]
    assert main([*arguments, "--destdir", str(corpus / "data")]) == 141


def test_help_needs_no_heavy_packages():
    code = (
        "import sys\n"
        "from relu_nmt.cli.preprocess import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'torch', 'sentencepiece', 'sacremoses', 'subword_nmt'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "--document-separator" in result.stdout


def test_an_interrupt_from_the_keyboard_ends_the_command(corpus):
    """Ctrl-C in the middle of the work: one line, exit code 130, no manifest, no temporary file."""
    for language in ("de", "en"):
        path = corpus / f"train.{language}"
        path.write_text("noch ein Satz, der Zeit kostet.\n" * 300_000)
    command = [sys.executable, "-m", "relu_nmt.cli.preprocess", "-s", "de", "-t", "en"]
    command += ["--trainpref", str(corpus / "train"), "--destdir", str(corpus / "data")]
    command += ["--tokenizer", "moses", "--workers", "2"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Programs that a shell starts in the background ignore Ctrl-C, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not list(corpus.glob("data/*/.train.de.tokens.0.tmp")):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # To all processes, as the terminal does.
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert error.splitlines()[-1] == "relu-nmt-preprocess: interrupted"
    assert "Traceback" not in error
    # Ctrl-C at the very moment in which a folder is made may leave it, unlocked: the first step of
    # the next run removes it.
    for folder in (corpus / "data").iterdir():
        remove_abandoned(folder)
    assert not list(corpus.glob("data/**/*.tmp"))
    assert not (corpus / "data/manifest.json").exists()

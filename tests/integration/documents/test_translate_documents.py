"""relu-nmt-translate-document, and translate_documents of Python, on documents of digits.

The models are untrained, so that hardly a group has as many sentences as it should. Where the
translations matter, the search is replaced by one that copies.
"""

import io
import sys

import pytest

from relu_nmt.cli import interactive, translate_document
from relu_nmt.errors import MissingExtraError, counted
from relu_nmt.jobs.translate import documents as translate_documents
from relu_nmt.tokenization.sentences import SentenceSplitter
from relu_nmt.translator import Translator
from tests.commands import assert_refused, run_here
from tests.integration.documents.document_models import run, translate
from tests.tiny import as_text


def test_a_note_says_that_interactive_does_not_join_lines(folder, capsys, copying):
    (folder / "two").write_text("1\n2\n")
    path = ["--input", folder / "two", "--cpu", "--path"]
    run(interactive, path, folder / "sep.safetensors")
    out, err = capsys.readouterr()
    assert out == "1\n2\n" and err.count("each line is translated on its own") == 1
    assert "up to 24 tokens; relu-nmt-translate-document" in err
    run(interactive, path, folder / "sentences.safetensors")
    assert capsys.readouterr().err == ""


TEXTS = {
    "usual": "1 2 3\n4 5\n\n6\n7 8 9 0 1\n",
    "blank lines anywhere": "\n\n1 2\n \n\n3\n4\n\n\n",
    "one line": "1 2 3\n",
    "no last newline": "1 2\n3 4",
    "windows newlines": "1 2\r\n\r\n3 4\r\n5\r\n",
    "nothing": "",
    "only blank lines": "\n\n",
    "a long line": " ".join("1234567890" * 5) + "\n1\n",
    "looks like a separator": "1 <sep> 2\n3 <sep>\n<sep>\n",
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("flags", [[], ["--max-doc-tokens", 8, "--window-overlap", 2]])
def test_every_line_gives_one_line_and_blank_lines_stay(folder, capsys, name, flags):
    out, err = translate(folder, capsys, TEXTS[name], flags)
    lines = TEXTS[name].splitlines()
    translated = out.split("\n")[:-1]
    assert len(translated) == len(lines)
    assert not any(text for text, line in zip(translated, lines, strict=True) if not line.strip())
    assert "<sep>" not in out
    documents = "".join("x" if line.strip() else " " for line in lines).split()
    lines = counted(sum(map(len, documents)), "line")
    assert f"{lines} of {counted(len(documents), 'document')} in " in err
    assert "Traceback" not in err


@pytest.mark.parametrize("flags", [[], ["--max-doc-tokens", 7, "--window-overlap", 1]])
def test_lines_stand_beside_their_own_translations(folder, capsys, copying, flags):
    for text in TEXTS.values():
        if "sep" not in text:
            out, _ = translate(folder, capsys, text, flags)
            assert out == as_text(map(str.strip, text.replace("3", "4").splitlines()))


def test_mismatches_are_repaired_and_reported(folder, capsys):
    text = "1 2\n3\n4 5 6\n7\n\n8\n"
    out, err = translate(folder, capsys, text, "--free-sentence-count")
    assert out.count("\n") == 6
    assert "1 of 2 (50.00%) groups had another number of sentences than lines" in err
    assert "translated again in halves" in err


@pytest.mark.filterwarnings("ignore:.*reached the longest output")
def test_python_gives_the_same_documents_as_the_command(folder, capsys):
    text = "1 2\n3\n4 5 6\n7\n\n8\n"
    for flags, settings in (
        ([], {}),
        (["--max-doc-tokens", 1], {"max_doc_tokens": 1}),
        (
            ["--max-doc-tokens", 10, "--window-overlap", 1],
            {"max_doc_tokens": 10, "window_overlap": 1},
        ),
    ):
        out, _ = translate(folder, capsys, text, flags)
        translator = Translator.from_checkpoint(folder / "sep.safetensors", "cpu")
        documents = [["1 2", "3", "4 5 6", "7"], ["8"]]
        search = {"beam": 2, "max_len_a": 0.5, "max_len_b": 4}
        translations = translator.translate_documents(documents, **settings, **search)
        assert "\n\n".join(map("\n".join, translations)) + "\n" == out


def test_python_gets_the_counts_that_the_command_reports(folder, capsys, recwarn):
    documents = [["1 2", "3", "4 5 6", "7"], ["8"]]
    text = "\n\n".join(map("\n".join, documents))
    for flags, search in (([], {}), (["--max-len-b", 60], {"max_len_b": 60})):
        recwarn.clear()
        _, err = translate(folder, capsys, text, flags)
        translator = Translator.from_checkpoint(folder / "sep.safetensors", "cpu")
        search = {"beam": 2, "max_len_a": 0.5, "max_len_b": 4, **search}
        result = translator.translate_documents(documents, **search)
        assert list(map(len, result)) == [4, 1]
        assert result == list(map(list, result))
        assert (result.num_groups, result.num_undivided) == (2, 0)
        assert f"{result.num_mismatched} of 2 ({result.mismatch_rate:.2%}) groups had" in err
        assert f"{result.num_repeated} translated again in halves" in err
        messages = [str(warning.message) for warning in recwarn]
        assert len(messages) == bool(result.num_at_limit)
        note = f"NOTE: {result.num_at_limit} translations reached the longest output"
        assert (note in err) == bool(messages)
        assert all(warning.filename == __file__ for warning in recwarn)
        if not flags:
            number = f"{result.num_at_limit} of {len(result.windows)}"
            assert messages[0].startswith(f"{number} translations reached the longest output")
            assert "0.5 * source + 4 tokens" in messages[0]


def test_the_mismatch_rate_is_none_without_separators(folder, copying):
    translator = Translator.from_checkpoint(folder / "joined.safetensors", "cpu")
    result = translator.translate_documents([["1 2", "3"], ["4"], []])
    assert result == [["1 2 4"], ["4"], []]
    assert (result.mismatch_rate, result.num_undivided, result.num_groups) == (None, 1, 2)
    alone = translator.translate_documents([["1 2", "3"]], max_doc_tokens=1)
    assert (alone.mismatch_rate, alone.num_groups, alone.num_at_limit) == (0, 2, 0)
    assert translator.translate_documents([]).mismatch_rate == 0


def test_models_without_separators_give_a_line_for_each_group(folder, capsys, copying):
    text = "1 2\n3\n4 5 6\n\n7\n\n"
    out, err = translate(folder, capsys, text, model="joined")
    assert out == "1 2 4 4 5 6\n\n7\n\n"
    assert "1 of 2 (50.00%) groups of several lines became one line each" in err
    out, err = translate(folder, capsys, text, "--max-doc-tokens", 1, model="joined")
    assert out == text.replace("3", "4")
    assert "became one line" not in err


def test_the_default_length_is_that_of_training(folder, capsys, copying):
    text = "1 2\n3\n" * 7
    assert " in 1 group of up to 24 tokens" in translate(folder, capsys, text, model="joined").err
    assert " in 2 groups of up to 24 tokens" in translate(folder, capsys, text).err  # with <sep>
    out, err = translate(folder, capsys, text, model="sentences")
    assert " in 14 groups of one" in err
    assert out == text.replace("3", "4")
    err = translate(folder, capsys, text, "--max-doc-tokens", 40).err
    assert "NOTE: --max-doc-tokens 40, but the model was trained on up to 24 tokens" in err
    err = translate(folder, capsys, text, "--max-doc-tokens", 40, model="sentences").err
    assert "but the model was trained on single sentences" in err


def test_standard_input_and_the_longest_output(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1 2 3\n\n4\n")))
    run(translate_document, "-", "--path", folder / "sep.safetensors", "--cpu", "--max-len-b", 1)
    out, err = capsys.readouterr()
    assert out.count("\n") == 3
    assert "translations reached the longest output (1.5 * source + 1 tokens" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.txt"], "nothing.txt: cannot read the text"),
        (["latin1.txt"], "latin1.txt:2: not UTF-8"),
        (["test.de", "--max-doc-tokens", "0"], "--max-doc-tokens 0: expected 1 or more"),
        (["test.de", "--window-overlap", "-1"], "--window-overlap -1: expected 0 or more"),
        (["test.de", "--prefix-size", "1"], "needs references"),
        (["test.de", "--nbest", "2"], "--nbest: each line has one translation"),
        (["test.de", "--max-doc-tokens", "1", "--window-overlap", "1"], "single sentences"),
        (["test.de", "--path", "joined.safetensors", "--window-overlap", "1"], "--sentence-sep"),
        (["test.de", "--path", "sentences.safetensors", "--window-overlap", "1"], "give more"),
        (["test.de", "--path", "short.safetensors"], "the model can read 20"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(folder, arguments, message):
    (folder / "latin1.txt").write_bytes("1\nHäuser\n".encode("latin-1"))
    paths = [str(folder / a) if "." in a else a for a in arguments]
    if "--path" not in paths:
        paths += ["--path", str(folder / "sep.safetensors")]
    assert_refused(run_here("translate_document", paths, "--cpu", check=False), message)


TERMS = "1 2\t7 8\n3\n\n4 5\t9\t9 1\n6\t0\n"


@pytest.mark.parametrize("flags", [[], ["--window-overlap", 1], ["--max-doc-tokens", 1]])
def test_each_line_has_its_prefix_and_the_terms_behind_its_tabs(folder, capsys, flags):
    (folder / "prefixes").write_text("\n8 8\n\n\n5\n")
    (folder / "banned").write_text("2\n3 3\n")
    flags = ["--prefixes", folder / "prefixes", "--banned-terms", folder / "banned", *flags]
    for constraints in (["--constraints"], ["--constraints", "unordered"]):
        out, err = translate(folder, capsys, TERMS, flags, constraints)
        first, second, blank, third, fourth = out.split("\n")[:-1]
        assert "7 8" in first and second.startswith("8 8") and not blank
        assert "9 1" in third and third.count("9") >= 2 and "2" not in out and "3 3" not in out
        assert fourth.startswith("5") and "0" in fourth
        assert "4 lines of 2 documents" in err


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("1\n\t5\n2\n", ["--constraints"], "input.txt:2: the line is blank, and so is its"),
        ("1\n\n2\n", ["--prefixes", "{folder}/three"], "input.txt:2: the line is blank"),
        ("1\n", ["--prefixes", "{folder}/three"], "three: 3 lines, but the text has 1; give one"),
        ("1\n\n2\n1\tx y\n", ["--constraints"], "line 4: the term 'x y' cannot be forced"),
        ("1\t2\n", ["--constraints", "--sampling"], "--sampling: terms can be forced in plain"),
        ("1\t2\n", ["--constraints", "--split-sentences"], "--constraints: with --split-sent"),
        ("1\t2\n", ["--constraints", "--free-sentence-count"], "may write any number of them"),
        ("1\t2\n", ["--constraints", "--path", "{folder}/joined.safetensors"], "trained without"),
    ],
)
def test_wrong_prefixes_and_terms_are_one_line_and_exit_2(folder, capsys, text, flags, message):
    (folder / "three").write_text("1\n1\n1\n")
    (folder / "input.txt").write_text(text)
    flags = [flag.format(folder=folder) for flag in flags]
    if "--path" not in flags:
        flags += ["--path", folder / "sep.safetensors"]
    run(translate_document, folder / "input.txt", flags, "--cpu", expect=2)
    error = capsys.readouterr().err.replace("NOTE", "").splitlines()
    assert len(error) == 1 and message in error[0]


@pytest.mark.parametrize("limit", [1, 12])
def test_paragraphs_are_cut_into_sentences_and_joined_again(
    folder, capsys, copying, monkeypatch, limit
):
    languages = []

    def splitter(language):
        languages.append(language)
        return lambda paragraph: list(map(str.strip, paragraph.split("9")))

    monkeypatch.setattr(translate_documents, "SentenceSplitter", splitter)
    text = "1 2 9 3 9 5 6\n7\n\n8 9 1\n"
    out, err = translate(folder, capsys, text, "--max-doc-tokens", limit, "--split-sentences")
    assert out == "1 2 4 5 6\n7\n\n8 1\n"
    assert languages == ["de"]
    assert "6 lines of 2 documents" in err


def test_paragraphs_are_split_by_the_rules_of_their_language():
    pytest.importorskip("sentencex")
    split = SentenceSplitter("de")
    expected = ["Das ist z. B. ein Haus.", "Wo ist Dr. Müller?", "Er kam am 3. Oktober."]
    assert split(" ".join(expected)) == expected
    assert split("  ") == []


def test_a_missing_sentence_splitter_is_an_error_with_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(MissingExtraError, match=r"pip install .relu-nmt\[sentences\]"):
        SentenceSplitter("de")


def test_sentences_of_a_chinese_paragraph_are_joined_without_spaces():
    numbers = [4, 4, 5]
    lines = ["我来。", "你好。", "好！"]
    assert translate_documents._joined(lines, numbers, "zh") == ["我来。你好。", "好！"]
    assert translate_documents._joined(["Ja.", "Gut.", ""], numbers, "de") == ["Ja. Gut.", ""]


def test_a_note_on_tabs_comes_before_the_translations(folder, capsys, copying):
    (folder / "tabs").write_text("1 2\n3\t4\n5\t6\n")
    path = ["--path", folder / "sentences.safetensors", "--cpu"]
    for command, words in ((interactive, ["--input"]), (translate_document, [])):
        run(command, words, folder / "tabs", path)
        first = capsys.readouterr().err.splitlines()[0]
        assert first.startswith("NOTE: lines 2, 3: what stands behind a tab is translated as text")
        run(command, words, folder / "tabs", path, "--constraints")
        assert "behind a tab" not in capsys.readouterr().err

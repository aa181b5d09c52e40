"""Flags of relu-nmt-translate-document that belong to one kind of file."""

import pytest

from relu_nmt.cli.translate_document import main
from relu_nmt.jobs.translate import files
from relu_nmt.translator import TranslationRequest
from tests.unit.applications.serving.served_models import make_translator


@pytest.mark.parametrize(
    ("file", "flags", "message"),
    [
        ("talk.de", ("--glossary", "terms"), "--glossary belongs to files with markup"),
        ("page.html", ("--prefixes", "terms"), "--prefixes belongs to lines of plain text"),
        ("page.html", ("--constraints",), "--constraints belongs to lines of plain text"),
        ("page.html", ("--truncate-source",), "--truncate-source belong to plain text"),
        ("page.html", ("--max-source-length", "9"), "--max-source-length and"),
        ("page.html", ("--split-sentences",), "--split-sentences belongs to plain text"),
        ("page.html", ("--no-split-sentences",), "--no-split-sentences belongs to plain text"),
        ("talk.de", ("--column", "2"), "--column 2 does nothing for the file format text"),
        ("talk.srt", ("--retranslate",), "does nothing for the file format subtitles"),
        ("a.tsv", ("--line-width", "20"), "--line-width 20 does nothing for the file format table"),
    ],
)
def test_a_flag_without_effect_is_refused(file, flags, message, capsys):
    assert main([file, "--path", "absent.safetensors", *flags]) == 2
    assert message in capsys.readouterr().err


def test_terms_inside_words_count_in_files_with_markup(tmp_path, monkeypatch):
    requests = []
    monkeypatch.setattr(files, "load_translator", lambda _: make_translator())
    monkeypatch.setattr(files, "translate_file", lambda *parts: requests.append(parts[2].template))
    (tmp_path / "banned").write_text("big\n")
    words = [str(tmp_path / "page.html"), "--path", "any", "--inside-words"]
    assert main([*words, "--banned-terms", str(tmp_path / "banned")]) == 0
    assert requests == [TranslationRequest((), banned=["big"], inside_words=True)]


# ------------------------------------------------------------------------- several files


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command in a folder, and returns exit code and errors."""
    loaded = []

    def load(options):
        loaded.append(options)
        return make_translator()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "load_translator", load)

    def run_command(*words):
        code = main([*words, "--path", "any", "--beam", "1"])
        return code, capsys.readouterr().err

    run_command.loaded = loaded
    return run_command


def write(folder, *names, content="<p>das Haus"):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_and_folders_are_translated_with_one_model(run, tmp_path):
    write(tmp_path, "a.html", "in/b.html", "in/x/c.htm", "in/x/d.png", "in/.git/e.html")
    write(tmp_path, "in/x/f.txt", content="das Haus\n\nein Garten\n")
    words = ("a.html", "in", "--output-dir", "in/out")
    code, errors = run(*words)
    assert code == 0 and len(run.loaded) == 1
    assert names_in(tmp_path / "in/out") == ["a.html", "b.html", "x/c.htm", "x/f.txt"]
    assert "1 file of no known format left out" in errors
    assert "translations: 4 files in in/out" in errors
    # Each file is translated as it is alone.
    assert run("a.html", "--output", "alone.html")[0] == 0
    assert (tmp_path / "alone.html").read_text() == (tmp_path / "in/out/a.html").read_text()
    # Translations that are there stay, and no model is loaded for them.
    write(tmp_path, "in/out/b.html", content="by hand")
    run.loaded.clear()
    code, errors = run(*words)
    assert code == 0 and run.loaded == []
    assert "4 translations in in/out stayed" in errors
    assert (tmp_path / "in/out/b.html").read_text() == "by hand"


def test_a_damaged_file_does_not_end_the_others(run, tmp_path):
    write(tmp_path, "a.html", "b.docx", "c.html", "d.pdf")
    code, errors = run("a.html", "b.docx", "c.html", "d.pdf", "e.html", "--output-dir", "out")
    assert code == 2
    assert names_in(tmp_path / "out") == ["a.html", "c.html"]
    for message in ("error: b.docx: it is damaged", "error: d.pdf: files of this", "error: e.html"):
        assert message in errors
    assert errors.endswith("error: 3 of 5 files not translated\n")


def test_an_interrupted_command_goes_on(run, tmp_path, monkeypatch):
    write(tmp_path, "in/a.html", "in/b.html", "in/c.html")
    translate_file = files.translate_file

    def interrupted(path, *arguments):
        if path.name == "b.html":
            raise KeyboardInterrupt
        translate_file(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(files, "translate_file", interrupted)
        assert run("in", "--output-dir", "out")[0] == 130
    assert names_in(tmp_path / "out") == ["a.html"]
    code, errors = run("in", "--output-dir", "out")
    assert code == 0 and "1 translation in out stayed" in errors
    assert names_in(tmp_path / "out") == ["a.html", "b.html", "c.html"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a.html", "in"), "several files need --output-dir"),
        (("in",), "in: is a folder, which needs --output-dir"),
        (("a.html", "--output", "x", "--output-dir", "out"), "exclude each other"),
        (("a.html", "in/a.html", "--output-dir", "out"), "both become out/a.html"),
        (("in/a.html", "--output-dir", "in"), "in/a.html is to be translated"),
        (("in", "--output-dir", "in"), "give two files"),
        (("empty", "--output-dir", "out"), "empty: has no file of a known format"),
        (("-", "--output-dir", "out"), "standard input"),
        (("a.html", "--output-dir", "out", "--column", "2"), "--column 2 does nothing"),
        (("a.html", "--output-dir", "out", "--prefixes", "terms"), "--prefixes belongs"),
    ],
)
def test_files_that_cannot_go_together_are_refused(run, tmp_path, words, message):
    write(tmp_path, "a.html", "in/a.html", "empty/x.bin")
    code, errors = run(*words)
    assert code == 2 and run.loaded == []
    assert message in errors and errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_options_of_a_format_apply_to_the_files_that_read_them(run, tmp_path):
    write(tmp_path, "a.html")
    write(tmp_path, "b.tsv", content="1\tdas Haus\n")
    words = ("a.html", "b.tsv", "--output-dir", "out", "--column", "2")
    assert run(*words)[0] == 0
    assert (tmp_path / "out/b.tsv").read_text().startswith("1\t")
    # They may be done when the command goes on.
    (tmp_path / "out/a.html").unlink()
    assert run(*words)[0] == 0


def test_notes_on_the_lines_of_a_text_name_its_file(run, tmp_path):
    write(tmp_path, "in/a.txt", "in/b.txt", content="das\tHaus\n")
    code, errors = run("in", "--output-dir", "out")
    assert code == 0
    for name in ("in/a.txt", "in/b.txt"):
        assert errors.count(f"{name}: NOTE: line 1: what stands behind a tab") == 1

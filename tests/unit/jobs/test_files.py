"""Flags of relu-nmt-translate-document that belong to one kind of file."""

import pytest

from relu_nmt.cli.translate_document import main
from relu_nmt.jobs.translate import files
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
        (
            "talk.srt",
            ("--retranslate",),
            "does nothing for the file format subtitles",
        ),
        ("a.tsv", ("--line-width", "20"), "--line-width 20 does nothing for the file format table"),
    ],
)
def test_a_flag_without_effect_is_refused(file, flags, message, capsys):
    assert main([file, "--path", "absent.safetensors", *flags]) == 2
    assert message in capsys.readouterr().err


def test_terms_inside_words_count_in_files_with_markup(tmp_path, monkeypatch):
    requests = []
    monkeypatch.setattr(files, "load_translator", lambda _: make_translator())
    monkeypatch.setattr(files, "translate_file", lambda *parts: requests.append(parts[2].terms))
    (tmp_path / "banned").write_text("big\n")
    words = [str(tmp_path / "page.html"), "--path", "any", "--inside-words"]
    assert main([*words, "--banned-terms", str(tmp_path / "banned")]) == 0
    assert requests == [{"banned": ["big"], "match_case": False, "inside_words": True}]

"""Flags of relu-nmt-translate-document that belong to one kind of file."""

import pytest

from relu_nmt.cli.translate_document import main


@pytest.mark.parametrize(
    ("file", "flags", "message"),
    [
        ("talk.de", ("--glossary", "terms"), "--glossary belongs to files with markup"),
        ("page.html", ("--prefixes", "terms"), "--prefixes belongs to lines of plain text"),
        ("page.html", ("--constraints",), "--constraints belongs to lines of plain text"),
        ("page.html", ("--truncate-source",), "--truncate-source belong to plain text"),
        ("page.html", ("--max-source-length", "9"), "--max-source-length and"),
    ],
)
def test_a_flag_without_effect_is_refused(file, flags, message, capsys):
    assert main([file, "--path", "absent.safetensors", *flags]) == 2
    assert message in capsys.readouterr().err

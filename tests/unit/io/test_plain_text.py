import gzip
import io
import json
import zipfile

import pytest

from relu_nmt.applications.files import formats
from relu_nmt.errors import DataError
from relu_nmt.io.plain_text import FORMATS, markup_kind, refuse_markup
from relu_nmt.io.text_lines import iterate_lines, read_lines, scan_text

SRT = ["1", "00:00:01,000 --> 00:00:02,500", "Hello.", "", "2", "00:00:03,000 --> 00:00:04,000"]
CATALOG = ["# German", 'msgid ""', 'msgstr ""', '"Language: de"', "", 'msgid "Open"', 'msgstr ""']
MESSAGES = {"greeting": "Hello", "count": 1, "bye": ["See", "you"], "inner": {"yes": 'a "b"'}}
LONG = {f"key {number}": f"text {number}, and {number}" for number in range(500)}
MARKUP = {
    "subtitles": [
        SRT,
        SRT[1:3],
        ["WEBVTT"],
        ["WEBVTT - Title", "", "00:01.000 --> 00:04.000 align:start", "Hello."],
        ["0:00:01.000,0:00:04.000", "Hello."],
        ["[Script Info]", "Title: x"],
        ["{1}{25}Hello.", "{30}{50}You."],
        ["[ar:Somebody]", "[00:12.00]Hello", "[00:13.50]you"],
    ],
    "PO": [CATALOG, ['msgid "Open"', 'msgstr[0] "Öffnen"'], [*CATALOG, 'msgid "last"']],
    "XML": [
        ["<!DOCTYPE html>", "<html>", "<p>Hello</p>", "</html>"],
        ["<html><body><p>Hello</p></body></html>"],
        ["", "  <html lang='en'>", "Hello", "</html>"],
        ["<p>Hello</p>", "<p>you</p>"],
        ["<p class='first'>Hello", "you</p>"],
        ['<?xml version="1.0"?>', "<note>Hello</note>"],
        ['<tmx version="1.4">', "<tu>Hello</tu>", "</tmx>"],
        ["<note>", "<to>you</to>", "Hello", "</note>"],
        ["<!-- a page -->", "<div>", "Hello", "</div>"],
    ],
    "JSON": [
        json.dumps(MESSAGES, indent=2).split("\n"),
        [json.dumps(MESSAGES)],
        [json.dumps(MESSAGES)] * 3,
        [json.dumps(["Hello", "you"])],
        json.dumps(["Hello", "you"], indent=1).split("\n"),
        json.dumps(LONG, indent=2).split("\n"),
    ],
    "LaTeX": [["% a paper", "\\documentclass[a4paper]{article}", "Hello."]],
}
PLAIN = [
    [],
    ["", " "],
    ["1", "2"],
    ["[1] A note.", "[2] Another."],
    ["[1]"],
    ["<b>Hello</b> you."],
    ["<b>Hello</b>", "<i>you</i>", "<a href='x'>there</a>"],
    ['<g id="1">Hello</g>', "<x/>you"],
    ["<s> hello </s>", "<s> you </s>", "<s> there </s>"],
    ["<2de> Hello.", "<2de> You."],
    ["<d>", "Hello.", "<d>", "You."],
    ["<https://example.org>", "is an address."],
    ["<p> is a tag for paragraphs.", "It begins one.", "Another ends it.", "That is all."],
    ["<!DOCTYPE html> is the first line of a page.", "The page follows.", "It is long.", "Yes."],
    ["{Hello} you."],
    ['{"Hello"} he said.'],
    ['{"a": "x"} is an object.', "It has a key."],
    ['{"a": "x"}', "This is an object. It has a key."],
    ['"Hello," he said.', '"You: there!"'],
    ["WEBVTT is a format.", "It has times."],
    ["Subtitles have times:", "a number,", SRT[1]],
    ["msgid is a keyword", 'msgid "x" is an entry'],
    ["\\documentclass begins a document."],
    ["1:02.5", "2:03.1"],
]


def document(name):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, "<w:t>Hello</w:t>")
    return content.getvalue()


BINARY = {
    "a document of Word.*pandoc": document("word/document.xml"),
    "an old Office": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 504,
    "a PDF.*pdftotext": b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj\n",
    "PDF, not": b"%PDF-1.4\nonly letters\n",
    "RTF": b"{\\rtf1\\ansi Hello.\\par }\n",
    "compressed by gzip.*text.gz": gzip.compress(b"Hello.\n"),
    "a PNG picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "a JPEG picture": b"\xff\xd8\xff\xe0\0\x10JFIF",
    "no text, but binary data": b"\x7fELF\x02\x01\x01\0\xff" + b"\0" * 9,
    "looks like UTF-16LE.*iconv -f UTF-16LE -t UTF-8": "Hello.\nYou.\n".encode("utf-16-le"),
    "looks like UTF-16BE": "Hello.\r\nYou.\r\n".encode("utf-16-be"),
    "UTF-16LE": "Straße und Größe\n".encode("utf-16-le"),
    "like UTF-16LE": "Привет мир, как дела сегодня\n".encode("utf-16-le"),
    "UTF-16.*iconv -f UTF-16 -t": "Hello.\n".encode("utf-16"),
    "binary": "Hello.\n".encode("utf-32-le"),
}


@pytest.mark.parametrize("kind", MARKUP)
def test_text_with_markup_is_recognized(kind):
    for lines in MARKUP[kind]:
        assert kind in str(markup_kind(lines)), lines


@pytest.mark.parametrize("lines", PLAIN)
def test_plain_text_that_mentions_markup_is_plain(lines):
    assert markup_kind(lines) is None


@pytest.mark.parametrize("expected", BINARY)
def test_a_file_of_another_kind_is_refused_with_the_way_to_plain_text(tmp_path, expected):
    for path in (tmp_path / "text.de", tmp_path / "text.de.gz"):
        data = BINARY[expected]
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        for reader in (read_lines, lambda p: scan_text(str(p)), lambda p: list(iterate_lines(p))):
            with pytest.raises(DataError, match=f"^{path}: .*{expected}"):
                reader(path)


def test_a_single_null_character_does_not_make_a_text_binary(tmp_path):
    (tmp_path / "x").write_bytes(b"a long line with \0 in it, as some corpora have\n")
    assert len(read_lines(tmp_path / "x")) == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("<p>ein Haus</p>", "html"),
        ("1\n00:00:01,000 --> 00:00:02,500\nHaus", "subtitles"),
        ('msgid "Haus"\nmsgstr ""', "po"),
    ],
)
def test_what_reads_markup_is_named(text, name):
    assert name in FORMATS.values() and name in formats.names()
    with pytest.raises(DataError, match=f"relu-nmt-translate-document --format {name} translates"):
        refuse_markup(text.split("\n"), "the text")

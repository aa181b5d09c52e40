import time
from contextlib import suppress

import pytest

from relu_nmt.errors import DataError
from tests.unit.applications.files.translators import backward, dropping, translate

COUNT = 20_000
NESTED = "x " + "".join(f"<a{number} translate=no>" for number in range(1_500)) + "\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("markdown", "[" * COUNT),
        ("markdown", "x [" + "![x](y)" * COUNT),
        ("markdown", "x " + "*a " * COUNT),
        ("markdown", "x " + "**" * COUNT),
        ("markdown", "x " + "`a ``" * COUNT),
        ("markdown", "> " * 500 + "x"),
        ("markdown", "$$a\n" * COUNT),
        ("markdown", "!!! a" + " a" * COUNT),
        ("markdown", "!!! a" + " " * COUNT + "!"),
        ("markdown", "---\ntitle: a" + " " * COUNT + "b #\n---\n"),
        ("markdown", "a\nb " + "](x)(x " * 10_000),
        ("html", "x" + "</b>" * 1900),
        ("html", "x " + "<b>y</b> " * 1900),
        ("html", "<" * COUNT),
        ("html", '<a "' * COUNT),
        ("html", "<p " + "a" * COUNT + ">x"),
        ("html", "<a" * COUNT),
        ("html", "<" + "a" * COUNT),
        ("html", "<!--" * COUNT),
        ("html", "<script>" * COUNT),
        ("text", "a" * 90_000),
        ("text", "a." * 40_000 + "@"),
        ("text", "{{" * 40_000),
        ("text", " ".join(f"{{a{number}}}" for number in range(10_000)) + " Wort"),
        ("text", "http://" + "." * COUNT),
        ("table", '"x,' * COUNT),
        ("table", '""' * COUNT),
        ("table", ',"a""' * COUNT),
        ("table", "<a" + ' x=""' * COUNT + " <"),
        ("table", "x " + "<!-- -- " * COUNT),
        ("table", "x " + "<code>" * COUNT),
        ("table", "x " + "<a translate=" * COUNT),
        ("table", "x <" + "a" * 90_000),
        ("table", NESTED * 5),
        ("po", 'msgid "' + '"\n"' * COUNT),
        ("po", 'msgid "a' + "<" * COUNT + '"\nmsgstr ""\n'),
        ("subtitles", "0:00:01,0 --> 0:00:02,0\n" + "<i>" * COUNT),
        ("subtitles", "0:00:01,0 --> 0:00:02,0\n" * COUNT),
    ],
)
def test_a_hostile_text_is_translated_or_refused_within_seconds(name, text):
    began = time.process_time()
    for translator in (backward, dropping):
        with suppress(DataError):  # which is as good
            translate(text, name, translator)
    assert time.process_time() - began < 8

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.applications.files import FileOptions, translated
from relu_nmt.applications.files.aligned_words import AlignedText, Word, word_spans
from relu_nmt.applications.files.subtitles import divided, wrapped
from relu_nmt.errors import DataError
from tests.unit.applications.files.translators import backward, identity, translate, upper

SRT = """1
00:00:01,000 --> 00:00:02,500
{\\an8}<i>Das ist ein sehr</i>
langer Satz, der

2
00:00:03,000 --> 00:00:04,000
weiter geht
und <b>hier</b>

3
00:00:05,000 --> 00:00:06,000
endet.

4
00:00:07,000 --> 00:00:08,000
- Wer ist da?
- Ich.

5
00:00:09,000 --> 00:00:10,000
♪
"""
VTT = """WEBVTT - Titel

NOTE kein Text

STYLE
::cue { color: red }

eins
00:01.000 --> 00:02.000 align:start
<v Anna>Hallo, <c.rot>du</c>!

00:03.000 --> 00:04.000
<00:03.500>Tom &amp; Eva
"""


@pytest.mark.parametrize("source", [SRT, VTT, SRT.replace("\n", "\r\n"), VTT.rstrip()])
def test_the_identity_keeps_every_byte(source):
    assert translate(source, "subtitles", identity) == source


def test_a_sentence_is_translated_whole_and_divided_over_its_cues():
    texts = []

    def translator(segments):
        texts.extend(segment.text for segment in segments)
        return list(map(upper_of, segments))

    written = translate(SRT, "subtitles", translator)
    assert texts == [
        "Das ist ein sehr langer Satz, der weiter geht und hier endet.",
        "Wer ist da?",
        "Ich.",
    ]
    assert written == (
        SRT.replace(
            "Das ist ein sehr</i>\nlanger Satz, der", "DAS IST EIN SEHR</i> LANGER SATZ, DER"
        )
        .replace("weiter geht\nund <b>hier</b>", "WEITER GEHT UND <b>HIER</b>")
        .replace("endet.", "ENDET.")
        .replace("Wer ist da?", "WER IST DA?")
        .replace("Ich.", "ICH.")
    )


def upper_of(segment):
    spans = word_spans(segment.text)
    return AlignedText(segment.text.upper(), list(zip(spans, spans, strict=True)))


def test_times_settings_and_notes_of_webvtt_stay():
    written = translate(VTT, "subtitles", lambda s: [*map(upper_of, s)])
    assert written == VTT.replace("Hallo", "HALLO").replace("du<", "DU<").replace(
        "Tom &amp; Eva", "TOM &amp; EVA"
    )


def test_lines_have_at_most_the_width():
    source = "1\n00:00:01,000 --> 00:00:02,000\n" + "Wort " * 14 + "\n"
    written = translate(source, "subtitles", lambda s: [*map(upper_of, s)], line_width=20)
    lines = list(filter(None, written.split("\n")[2:]))
    assert max(map(len, lines)) <= 20
    assert " ".join(lines).split() == ["WORT"] * 14


@given(st.lists(st.integers(0, 8) | st.none(), max_size=20), st.integers(1, 4))
def test_a_translation_is_divided_into_runs_that_fill_all_cues(sources, count):
    words = [Word(" ", "wort", source) for source in sources]
    cuts = divided(words, [0, 2, 5, 7][:count], 84)
    assert len(cuts) == count + 1
    assert cuts[0] == 0 and cuts[-1] == len(words)
    assert cuts == sorted(cuts)
    if len(words) >= count:
        assert len(set(cuts)) == len(cuts)


@given(st.text(alphabet="ab <>/i字", max_size=60), st.integers(5, 20))
def test_wrapped_lines_have_all_letters_of_the_text(text, width):
    assert re.sub(r"\s", "", "".join(wrapped(text, width))) == re.sub(r"\s", "", text)


def test_a_file_without_times_is_refused():
    with pytest.raises(DataError, match="no subtitle times"):
        translate("Hallo\n", "subtitles")


def test_a_line_before_the_first_speaker_is_translated():
    source = "1\n00:00:01,000 --> 00:00:02,000\nEr sagt\n- Hallo du\n"
    assert translate(source, "subtitles").endswith("\nER SAGT\n- HALLO DU\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<i>- Eins da</i>\n<i>- Zwei da</i>\n", "<i>- DA EINS</i>\n<i>- DA ZWEI</i>\n"),
        ("{\\an8}<i>- Eins da\n- Zwei da</i>\n", "{\\an8}<i>- DA EINS\n- DA ZWEI</i>\n"),
        ("<v Anna>Eins da\n<v.laut Bob>Zwei da\n", "<v Anna>DA EINS\n<v.laut Bob>DA ZWEI\n"),
        ("<v A>Eins da</v> <v B>Zwei da</v>\n", "<v A>DA EINS</v> <v B>DA ZWEI</v>\n"),
    ],
)
def test_each_speaker_of_a_cue_keeps_a_line_with_tags(text, expected):
    times = "1\n00:00:01,000 --> 00:00:02,000\n"
    assert translate(times + text, "subtitles", backward) == times + expected
    assert translate(times + text, "subtitles", identity) == times + text


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            "- Ich komme\n- Ich nicht",
            "- Warum nicht\n- Darum",
            ["- KOMME ICH\n- NICHT ICH", "- NICHT WARUM\n- DARUM"],
        ),
        ("<v Ann>Ich komme", "<v Bob>Ich nicht", ["<v Ann>KOMME ICH", "<v Bob>NICHT ICH"]),
        ("<v Ann>Ich komme", "<v Ann>morgen an", ["<v Ann>AN", "<v Ann>MORGEN KOMME ICH"]),
        ("- Ich komme", "morgen an", ["- AN", "MORGEN KOMME ICH"]),
    ],
)
def test_a_sentence_over_several_cues_has_one_speaker(first, second, expected):
    cues = "1\n00:00:01,000 --> 00:00:02,000\n{}\n\n2\n00:00:03,000 --> 00:00:04,000\n{}\n"
    source = cues.format(first, second)
    assert translate(source, "subtitles", identity) == source
    assert translate(source, "subtitles", backward) == cues.format(*expected)


def test_a_cue_of_many_words_does_not_take_long():
    source = "1\n00:00:01,000 --> 00:00:02,000\n" + "ab " * 20_000 + "\n"
    assert translate(source, "subtitles").count("AB") == 20_000


def test_a_cue_may_follow_without_a_blank_line():
    times = "0:0:7.2 --> 0:0:9"
    source = f"WEBVTT\n\n{times}\neins da\n{times} align:start\nzwei\n2\n{times}\ndrei\n"
    written = translate(source, "subtitles")
    assert written == source.replace("eins da", "EINS DA").replace("zwei", "ZWEI").replace(
        "drei", "DREI"
    )


def test_a_file_without_cues_stays():
    assert translate("WEBVTT\n\nNOTE nichts\n", "subtitles") == "WEBVTT\n\nNOTE nichts\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_byte_order_marks_tell_the_encoding(encoding):
    content = SRT.encode(encoding)
    assert translated(content, "subtitles", identity, FileOptions()) == content
    assert "WER IST DA?" in translated(content, "subtitles", upper, FileOptions()).decode(encoding)

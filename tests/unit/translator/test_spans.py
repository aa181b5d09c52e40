import io
import re
import time

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.tokenization.subwords import SentencePiece, SubwordNmt
from relu_nmt.translator.spans import folded, token_spans
from tests.unit.translator.models import cut

CODES = b"#version: 0.2\nH a\nHa u\nHau s</w>\nb o\n& a\nT -\n"
TOKENIZERS = ("none", "moses", "moses-aggressive")


def sentence_pieces(**settings):
    model = io.BytesIO()
    lines = ["das Haus ist groß und klein €", "Ein Hausboot ﬁ ① don't T-Shirt"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        minloglevel=2,
        hard_vocab_limit=False,
        **settings,
    )
    return SentencePiece(model.getvalue())


SUBWORDS = {
    "whole": None,
    "subword-nmt": SubwordNmt(CODES),
    "sentencepiece": sentence_pieces(vocab_size=60, normalization_rule_name="identity"),
    "bytes": sentence_pieces(
        vocab_size=320, byte_fallback=True, normalization_rule_name="nmt_nfkc_cf"
    ),
}


def pipeline_of(tokenizer="none", subword="whole", **settings):
    if SUBWORDS[subword] is not None:
        settings["subword"] = SUBWORDS[subword]
    return TextPipeline("en", tokenizer, **settings)


def span_texts(text, pipeline, tokens=None):
    tokens = pipeline.encode(text) if tokens is None else tokens
    return cut(text, token_spans(text, tokens, pipeline))


@pytest.mark.parametrize(
    ("text", "settings", "tokens", "expected"),
    [
        ("Hau Haus", {"subword": "subword-nmt"}, ["Ha@@", "u", "Haus"], ["Ha", "u", "Haus"]),
        ("a@@ @@ b", {"subword": "subword-nmt"}, None, ["a", "@", "@", "@", "@", "b"]),
        ("a@@ &amp; amp; ▁b", {}, None, ["a@@", "&amp;", "amp;", "▁b"]),
        (
            "it's <b> & so",
            {"tokenizer": "moses"},
            ["it", "&apos;s", "&lt;", "b", "&gt;", "&amp;", "so"],
            ["it", "'s", "<", "b", ">", "&", "so"],
        ),
        ("&amp;", {"tokenizer": "moses"}, ["&amp;", "amp", ";"], ["&", "amp", ";"]),
        ("T-Shirt", {"tokenizer": "moses-aggressive"}, ["T", "@-@", "Shirt"], ["T", "-", "Shirt"]),
        # Moses leaves the control character out.
        ("a\x01b c", {"tokenizer": "moses"}, ["ab", "c"], ["a\x01b", "c"]),
        ("das Xaver Haus", {}, ["das", "<unk>", "Haus"], ["das", "Xaver", "Haus"]),
        ("İstanbul'da", {"lowercase": True}, ["i̇stanbul'da"], ["İstanbul'da"]),
        ("a\u200b \u200b b", {}, ["a\u200b", "\u200b", "b"], ["a", "\u200b \u200b", "b"]),
        # Four bytes of one character. A ligature in two pieces. A form that is composed.
        (
            "🙂 ﬁ",
            {"subword": "bytes"},
            ["▁", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁", "f", "i"],
            ["", "🙂", "🙂", "🙂", "🙂", "", "ﬁ", "ﬁ"],
        ),
        ("e\u0301", {"subword": "bytes"}, ["▁", "<0xC3>", "<0xA9>"], ["", "e\u0301", "e\u0301"]),
        (
            "das ein",
            {"sentence_separator": "<sep>", "first_symbol": ">>x<<"},
            [">>x<<", "das", "ein", "<sep>"],
            ["", "das", "ein", ""],
        ),
        ("<sep> >>x<<", {"sentence_separator": "<sep>"}, None, ["<sep>", ">>x<<", ""]),
        ("", {"sentence_separator": "<sep>"}, [], []),
    ],
)
def test_tokens_are_found_in_their_text(text, settings, tokens, expected):
    assert span_texts(text, pipeline_of(**settings), tokens) == expected


SPECIAL = st.text("aHuT- @▁&;'\"<>.x0İßﬁ\u0301\u200b\x01🙂日\ufdfa", max_size=40)
MARKS = re.compile("[@_]|&#")
LINES = st.one_of(st.text(max_size=40), SPECIAL)


def plain(text):
    return "".join(map(folded, text))


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("subword", SUBWORDS)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(line=LINES)
def test_spans_are_in_order_and_hold_the_letters_of_their_tokens(
    tokenizer, subword, lowercase, line
):
    pipeline = pipeline_of(tokenizer, subword, lowercase=lowercase)
    tokens = pipeline.encode(line)
    spans = token_spans(line, tokens, pipeline)
    assert len(spans) == len(tokens)
    assert all(0 <= begin <= end <= len(line) for begin, end in spans)
    begins = [begin for begin, _ in spans]
    assert begins == sorted(begins)
    ends = [end for begin, end in spans if begin < end]
    assert ends == sorted(ends)
    # Marks of unusual spaces, escapes of their letters, and stand-ins for ▁ are not in the text.
    words = " ".join(pipeline._tokenizer.split(line))
    is_plain = MARKS.search(words) is None and not set("▁\ufdd0\ufdd1") & set(line)
    for token, piece, (begin, end) in zip(
        tokens, pipeline.characters_of_tokens(tokens), spans, strict=True
    ):
        if is_plain:
            written = "".join(pipeline.characters_of_text(line)[begin:end])
            assert plain(piece or "") in plain(written), token


@given(LINES)
def test_spans_of_whole_words_are_exact(line):
    pipeline = pipeline_of()
    expected = [match.span() for match in re.finditer(r"\S+", " ".join(line.split()))]
    spans = token_spans(" ".join(line.split()), line.split(), pipeline)
    invisible = [not plain(word) for word in line.split()]
    if not any(invisible):
        assert spans == expected


@given(SPECIAL)
def test_spans_agree_with_sentencepieces_offsets(line):
    pipeline = pipeline_of(subword="bytes")
    line = " ".join(line.split())
    processor = SUBWORDS["bytes"]._processor
    normal, offsets = processor.normalize(line, with_offsets=True)
    tokens = pipeline.encode(line)
    spans = token_spans(line, tokens, pipeline)
    if "▁" in line or "<0x" in " ".join(tokens):  # marks and bytes have no letters of the text
        tokens = spans = []
    position = 0
    for token, (begin, end) in zip(tokens, spans, strict=True):
        assert normal[position : position + len(token)] == token
        first = position + (token[0] == "▁")
        position += len(token)
        if first < position:
            assert begin <= offsets[first] and end > offsets[position - 1]


@pytest.mark.parametrize("subword", SUBWORDS)
@pytest.mark.parametrize("line", ["T-Shirt " * 500, "'" * 4000, "İ" * 4000, "\x01a" * 2000])
def test_spans_of_a_long_line_are_fast(subword, line):
    pipeline = pipeline_of("moses-aggressive", subword, lowercase=True)
    tokens = pipeline.encode(line)
    begin = time.process_time()
    spans = token_spans(line, tokens, pipeline)
    # A comparison of all with all took minutes.
    assert time.process_time() - begin < 5
    assert spans[-1][1] >= len(line) - 2


def test_spans_of_tokens_from_another_text_are_fast():
    begin = time.process_time()
    spans = token_spans("ab" * 2000, ["cd" * 1000] * 2, pipeline_of())
    assert time.process_time() - begin < 5
    assert spans == [(0, 4000), (0, 4000)]

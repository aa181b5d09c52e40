import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.serving.spans import token_spans
from relu_nmt.tokenization.pipeline import TextPipeline


def shown(text, tokens):
    return [text[begin:end] for begin, end in token_spans(text, tokens)]


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("Ein Hausboot", ["ein", "Haus@@", "boot"], ["Ein", "Haus", "boot"]),
        ("Ein Hausboot", ["▁E", "in", "▁Hausboot"], ["E", "in", "Hausboot"]),
        (
            "it's <b> & so",
            ["it", "&apos;s", "&lt;", "b", "&gt;", "&amp;", "so"],
            ["it", "'s", "<", "b", ">", "&", "so"],
        ),
        ("das Xaver Haus", ["das", "<unk>", "Haus"], ["das", "Xaver", "Haus"]),
        ("das Haus", ["das", "Haus", "<sep>"], ["das", "Haus", ""]),
        ("", ["<sep>"], [""]),
        ("ein", [], []),
        ("İstanbul", ["İstanbul"], ["İstanbul"]),
    ],
)
def test_tokens_are_found_in_their_text(text, tokens, expected):
    assert shown(text, tokens) == expected


@given(st.text(max_size=40))
def test_spans_are_in_order_and_within_the_text(text):
    tokens = TextPipeline("de", tokenizer="moses", lowercase=True).encode(text)
    spans = token_spans(text, tokens)
    assert len(spans) == len(tokens)
    assert all(0 <= begin <= end <= len(text) for begin, end in spans)
    assert [begin for begin, _ in spans] == sorted(begin for begin, _ in spans)

import pytest

from relu_nmt.tokenization.post_process import join_pieces


@pytest.mark.parametrize(
    ("symbol", "text", "expected"),
    [
        (None, "a@@ b", "a@@ b"),
        ("none", "a@@ b", "a@@ b"),
        ("@@ ", "Haus@@ boot fährt@@", "Hausboot fährt"),
        ("subword_nmt", "Haus@@ boot", "Hausboot"),
        ("@@", "Haus@@ boot @@ x", "Hausboot x"),
        ("sentencepiece", "▁A ▁ca t .", "A cat."),
        ("wordpiece", "_A _ca t", "A cat"),
        ("letter", "a | c a t |", "a cat"),
        ("_EOW", "a_EOW c at_EOW", "a cat"),
    ],
)
def test_as_in_fairseq(symbol, text, expected):
    assert join_pieces(text, symbol) == expected

import pytest

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.tokenization.base import JoinedPieces
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.search.symbol_texts import SymbolTexts, compact, is_letter


@pytest.mark.parametrize(
    ("symbol", "pieces", "texts"),
    [
        ("none", "Haus ( boot@@ it's", ["Haus ", "(", "boot", "it's "]),
        ("@@ ", "Ha@@ us @@", ["Ha", "us ", ""]),
        ("sentencepiece", "▁Ha us ▁( ▁ <0xC3> <0x41>", [" Ha", "us", "(", " ", "\udcc3", "A"]),
        ("wordpiece", "_Ha us", [" Ha", "us"]),
        ("letter", "H | a", ["H", " ", "a"]),
        ("_EOW", "Ha us_EOW", ["Ha", "us "]),
    ],
)
def test_a_symbols_text_has_a_space_where_a_word_begins_or_ends(symbol, pieces, texts):
    words = Dictionary(pieces.split())
    symbol_texts = SymbolTexts(TextPipeline("en", subword=JoinedPieces(symbol)), words)
    assert symbol_texts.exact.texts[:3] == ["", "", " "]
    assert symbol_texts.exact.texts[4:] == texts


def test_letters_are_those_of_scripts_with_spaces_digits_and_marks():
    assert all(map(is_letter, "aß1é́नि한\u200d"))
    assert not any(map(is_letter, " .-_'(«中かไ"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [(" don 't ", " don't "), ("( a )  b", "(a)b"), (" new\tyork.", " new york."), (" ", " ")],
)
def test_spaces_stay_between_letters_and_at_the_ends(text, expected):
    assert compact(text) == expected


def test_the_spellings_of_a_term_are_the_users_and_the_models():
    texts = SymbolTexts(TextPipeline("en", tokenizer="moses"), Dictionary())
    assert texts.spellings("Don't", match_case=False) == {"don't", "don&apos;t"}
    assert texts.spellings("Don't", match_case=True) == {"Don't", "Don&apos;t"}
    assert texts.spellings(" ", match_case=False) == set()

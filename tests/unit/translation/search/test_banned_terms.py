"""Terms that no translation has, in whichever pieces."""

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from toy_models import SEPARATOR, ToyModel, generator_of

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.separators import Separators
from relu_nmt.tokenization.base import JoinedPieces
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.search.banned_terms import BannedTerms, Ending
from relu_nmt.translation.search.forced_terms import ForcedTerms
from relu_nmt.translation.search.symbol_texts import SymbolTexts, compact
from relu_nmt.translation.search.translations import SourceSentence
from tests.tiny import EOS

# Pieces of each kind. Single letters can go on with any word.
PIECES = {
    "none": "a b ab A ( , a-b 'b",
    "@@ ": "a b ab@@ a@@ b@@ A@@ ( (@@ , -@@ 'b",
    "sentencepiece": "▁a ▁b ▁ab a b c d A ▁ ▁( ( , - ' ▁A",
    "_EOW": "a_EOW b_EOW ab a b A ( ,_EOW - 'b_EOW",
}
LETTERS = st.text("abA(,-' ", min_size=1, max_size=5)
KINDS = st.sampled_from(list(PIECES))


def vocabulary(kind, separator=False):
    """Return a dictionary with the pieces of a kind, and their texts."""
    words = Dictionary([*["<sep>"] * separator, *PIECES[kind].split()])
    pipeline = TextPipeline("en", subword=JoinedPieces(kind))
    return words, SymbolTexts(pipeline, words, SEPARATOR if separator else -1)


def text_of(texts, words, ids):
    """Return the text of a translation with the rule of spaces, by joining its pieces."""
    return compact(" ".join(texts.text.subword.join(words.symbols_of(ids)))).strip()


def has_term(text, terms, match_case=False, inside_words=False):
    """Tell by a pattern whether a text has one of the terms as whole words."""
    begin, end = ("", "") if inside_words else (r"(?<![^\W_])", r"(?![^\W_])")
    for term in map(str.strip, map(compact, terms)):
        edges = begin if term[:1].isalnum() else "", end if term[-1:].isalnum() else ""
        pattern = edges[0] + re.escape(term) + edges[1]
        if term and re.search(pattern, text, 0 if match_case else re.IGNORECASE):
            return True
    return False


def is_allowed(banned, ids):
    """Tell whether no symbol of a translation is forbidden where it stands."""
    ending = Ending()
    for symbol in [*ids, EOS]:
        forbidden = banned.forbidden(ending)
        if symbol in forbidden.completing.tolist():
            return False
        if forbidden.ends_term and symbol in banned.word_ends.tolist():
            return False
        ending = banned.advance(ending, symbol)
    return True


@given(KINDS, st.lists(LETTERS, max_size=3), st.booleans(), st.booleans(), st.data())
def test_a_translation_is_allowed_if_its_text_has_no_banned_term(kind, terms, case, inside, data):
    words, texts = vocabulary(kind)
    ids = data.draw(st.lists(st.integers(4, len(words) - 1), max_size=6))
    banned = BannedTerms(texts, terms, match_case=case, inside_words=inside)
    has = has_term(text_of(texts, words, ids), terms, case, inside)
    assert is_allowed(banned, ids) == (not has)


@example("_EOW", ["A"], 2, 2, 1, 0, False)
@given(
    KINDS,
    st.lists(LETTERS, min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(0, 99),
    st.sampled_from([1, 4]),
    st.integers(0, 2),
    st.booleans(),
)
def test_no_hypothesis_has_a_banned_term(kind, terms, limit, seed, beam, min_len, separated):
    words, texts = vocabulary(kind, separated)
    banned = BannedTerms(texts, terms)
    separators = Separators(SEPARATOR, SEPARATOR) if separated else None
    generator = generator_of(
        ToyModel(len(words), seed, sharpness=3.0),
        words,
        separators,
        beam=beam,
        nbest=beam,
        max_len_b=limit,
        min_len=min(min_len, limit),
    )
    ends = [SEPARATOR, EOS] if separated else [EOS]

    def source_of(*ids, banned=None):
        return SourceSentence(np.array([*ids, *ends]), banned=banned)

    sources = [source_of(5, 6, banned=banned), source_of(7, banned=banned), source_of(5)]
    free = generator.translate([source_of(5, 6), source_of(7), source_of(5)])
    translations = generator.translate(sources)
    for hypotheses in translations[:2]:
        assert hypotheses
        for h in hypotheses:
            # Without separators, the symbol of this number is a word.
            ends_of_sentences = np.flatnonzero(separated & (h.ids == SEPARATOR))
            sentences = np.split(h.ids, ends_of_sentences)
            text = " ".join(text_of(texts, words, sentence) for sentence in sentences)
            assert not has_term(text.replace("<sep>", " "), terms)
    # Sentences without banned terms stay as they are, and so do those that have none anyway.
    assert translations[2][0].ids.tolist() == free[2][0].ids.tolist()


@given(st.integers(0, 99), st.sampled_from(["a", "b", "ab", "a b"]), st.integers(3, 9))
def test_forced_text_may_have_banned_terms(seed, term, limit):
    words, texts = vocabulary("sentencepiece")
    model = ToyModel(len(words), seed, sharpness=3.0)
    generator = generator_of(model, words, beam=4, nbest=4, max_len_b=limit)
    pieces = {"a": ["▁a"], "b": ["▁b"], "ab": ["▁ab"], "a b": ["▁a", "▁b"]}[term]
    ids = words.encode(pieces, append_eos=False)
    source = SourceSentence(np.array([5, 6, EOS]), banned=BannedTerms(texts, [term]))
    for forced in ({"prefix": ids}, {"forced": ForcedTerms((tuple(ids.tolist()),), texts=texts)}):
        sentence = SourceSentence(source.ids, banned=source.banned, **forced)
        for hypothesis in generator.translate([sentence])[0]:
            text = text_of(texts, words, hypothesis.ids)
            pattern = rf"(?<![^\W_]){term}(?![^\W_])"
            assert len(re.findall(pattern, text, re.IGNORECASE)) <= 1
            assert hypothesis.ids.tolist()[: len(ids)] == ids.tolist() or "prefix" not in forced


@given(st.integers(0, 99), st.integers(4, 9), st.booleans())
def test_a_forced_term_may_begin_with_a_banned_word(seed, limit, in_pieces):
    words, texts = vocabulary("sentencepiece")
    model = ToyModel(len(words), seed, sharpness=3.0)
    generator = generator_of(model, words, beam=4, nbest=4, max_len_b=limit)
    ids = words.encode(["▁a", "b"] if in_pieces else ["▁a", "▁b"], append_eos=False)
    forced = ForcedTerms((tuple(ids.tolist()),), texts=texts)
    source = SourceSentence(np.array([5, 6, EOS]), forced=forced, banned=BannedTerms(texts, ["a"]))
    [hypotheses] = generator.translate([source])
    for hypothesis in hypotheses:
        text = text_of(texts, words, hypothesis.ids)
        assert has_term(text, ["ab" if in_pieces else "a b"])
        number = len(re.findall(r"(?<![^\W_])a(?![^\W_])", text, re.IGNORECASE))
        assert number == (not in_pieces)


def test_a_word_that_contains_a_banned_term_is_allowed_as_before():
    words = Dictionary(["▁man", "▁many", "y", "▁wo", "man", ",", "▁Man", "(", "▁"])
    texts = SymbolTexts(TextPipeline("en", subword=JoinedPieces("sentencepiece")), words)
    banned = BannedTerms(texts, ["man"])

    def of(*pieces):
        return is_allowed(banned, words.encode(pieces, append_eos=False).tolist())

    assert of("▁many") and of("▁man", "y") and of("▁wo", "man") and of("▁wo", "man", ",")
    for pieces in (["▁man"], ["▁Man", ","], ["(", "man"], ["▁", "man", "▁"], ["▁man", "▁many"]):
        assert not of(*pieces)
    assert not is_allowed(BannedTerms(texts, ["man"], inside_words=True), [5])
    assert is_allowed(BannedTerms(texts, ["man"], match_case=True), [10])


class Bytes(JoinedPieces):
    """SentencePiece with single bytes for the letters that it does not know."""

    def __init__(self):
        super().__init__("sentencepiece")

    def split(self, words):
        pieces = []
        for letter in "▁" + "▁".join(words):
            is_known = letter < "~" or letter == "▁"
            pieces += [letter] if is_known else map("<0x{:02X}>".format, letter.encode())
        return pieces


@pytest.mark.parametrize(
    ("kind", "pieces", "term", "translations"),
    [
        ("@@ ", "Ha@@ us Hau@@ s x", "Haus", ["Ha@@ us", "Hau@@ s"]),
        ("sentencepiece", "▁Ha us ▁ H a ( x", "haus", ["▁Ha us", "▁ H a us", "x ( H a us"]),
        ("sentencepiece", "▁new ▁y ork x", "New  York", ["▁new ▁y ork"]),
        ("sentencepiece", "▁don 't ▁' t x", "don't", ["▁don 't", "▁don ▁' t"]),
        ("sentencepiece", "我 爱 ▁中 国 x", "中国", ["我 ▁中 国 爱"]),
        ("none", "(man) x man-made", "man", ["(man)", "x man-made"]),
        ("bytes", "▁ <0xC3> <0x96> <0xB6> l x", "Öl", ["▁ <0xC3> <0x96> l", "<0xC3> <0xB6> l"]),
    ],
)
def test_a_term_is_found_in_all_its_pieces(kind, pieces, term, translations):
    words = Dictionary(pieces.split())
    subword = Bytes() if kind == "bytes" else JoinedPieces(kind)
    texts = SymbolTexts(TextPipeline("en", subword=subword), words)
    for translation in translations:
        ids = words.encode(translation.split(), append_eos=False).tolist()
        assert not is_allowed(BannedTerms(texts, [term]), ids)
        assert is_allowed(BannedTerms(texts, ["us", "an", "yor", "ma"]), ids)

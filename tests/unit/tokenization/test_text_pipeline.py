import itertools
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.errors import ConfigError
from relu_nmt.tokenization.base import JoinedPieces, WholeWords
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.tokenization.subwords import SentencePiece, SubwordNmt

COUNTS = {"Hausboot": 5, "Haus": 4, "boote": 3, "don't": 2, "über": 2}
CODES = SubwordNmt.learn(SimpleNamespace(word_counts=lambda: COUNTS), 12, seed=1)
WORDS = st.sampled_from(
    ["Haus", "Boot", "über", "don't", "Peter's", "z.B.", "3,5", "1.000", "e-mail", "naïve"]
)


@st.composite
def normal_sentences(draw):
    """Words in the usual spacing, with commas, brackets and quotation marks."""
    words = draw(st.lists(WORDS, min_size=1, max_size=8))
    for i, wrap in enumerate(draw(st.lists(st.sampled_from(["", ",", "()", '""']), max_size=7))):
        if i >= len(words) - 1:
            break
        if len(wrap) == 2:
            words[i] = wrap[0] + words[i] + wrap[1]
            break  # Moses finds opening and closing marks by counting, so that one pair suffices.
        words[i] += wrap
    return " ".join(words) + draw(st.sampled_from([".", "!", "?"]))


def sentencepiece_model():
    lines = ["Haus Boot über don't Peter's", 'z.B. 3,5 1.000 e-mail naïve 日本 ( " ) , . ! ?'] * 9
    return SentencePiece.learn(SimpleNamespace(sentences=lambda: lines), 60, seed=1)


@pytest.fixture(scope="module")
def sentencepiece():
    return SentencePiece(sentencepiece_model())


@given(normal_sentences())
def test_moses_and_bpe_are_undone(sentence):
    pipeline = TextPipeline("en", "moses", subword=SubwordNmt(CODES))
    tokens = pipeline.encode(sentence)
    assert pipeline.decode(tokens) == sentence
    assert all(tokens) and not re.search(r"\s", "".join(tokens))


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_sentencepiece_is_undone_on_any_text(sentencepiece, text):
    pipeline = TextPipeline("en", subword=sentencepiece)
    assert pipeline.decode(pipeline.encode(text)) == " ".join(text.split())


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_bpe_is_undone_on_any_text(text):
    pipeline = TextPipeline("en", subword=SubwordNmt(CODES))
    assert pipeline.decode(pipeline.encode(text)) == " ".join(text.split())


@given(st.text(max_size=60))
def test_any_text_gives_one_line_of_tokens(text):
    for tokenizer in ("none", "moses"):
        pipeline = TextPipeline("de", tokenizer, lowercase=True)
        tokens = pipeline.encode(text)
        assert " ".join(tokens).split() == tokens
        assert isinstance(pipeline.decode(tokens), str)


def test_lower_casing_comes_after_tokenizing():
    pipeline = TextPipeline("en", "moses", lowercase=True)
    assert pipeline.encode('Mr. Smith said "NO".') == (
        ["mr.", "smith", "said", "&quot;", "no", "&quot;", "."]
    )


@pytest.mark.parametrize("text", ["", "  ", "\t\x85"])
def test_blank_lines_have_no_tokens(text):
    for tokenizer in ("none", "moses"):
        pipeline = TextPipeline("de", tokenizer, subword=SubwordNmt(CODES))
        assert pipeline.encode(text) == []
        assert pipeline.decode([]) == ""


@pytest.mark.parametrize("kind", ["none", "subword-nmt", "sentencepiece"])
def test_a_pipeline_is_restored_from_its_state(kind, sentencepiece):
    subword = {"none": WholeWords(), "subword-nmt": SubwordNmt(CODES)}.get(kind, sentencepiece)
    pipeline = TextPipeline("en", "moses", lowercase=True, subword=subword)
    again = TextPipeline.from_state(pipeline.to_state())
    assert again.to_state() == pipeline.to_state()
    assert again.encode("The Hausboote, don't!") == pipeline.encode("The Hausboote, don't!")
    assert again.decode(again.encode("A cat.")) == "a cat."


def test_prepared_text_passes_through():
    pipeline = TextPipeline("de")
    assert pipeline.keeps_text
    assert pipeline.encode("ein Haus@@  boot") == ["ein", "Haus@@", "boot"]
    assert not TextPipeline("de", "moses").keeps_text
    assert not TextPipeline("de", lowercase=True).keeps_text


def test_post_processing_joins_prepared_text():
    pipeline = TextPipeline("en").with_post_processing("@@ ", "moses")
    assert pipeline.encode("it &apos;s a Haus@@ boot .") == (
        ["it", "&apos;s", "a", "Haus@@", "boot", "."]
    )
    assert pipeline.decode(["it", "&apos;s", "a", "Haus@@", "boot", "."]) == "it's a Hausboot."
    assert pipeline.join_words(["Haus@@", "boot"]) == ["Hausboot"]
    again = TextPipeline.from_state(pipeline.to_state())
    assert again.decode(["Haus@@", "boot", "."]) == "Hausboot."
    assert pipeline.keeps_text


def test_post_processing_changes_only_what_is_given():
    pipeline = TextPipeline("en").with_post_processing("sentencepiece", None)
    assert pipeline.decode(["▁A", "▁ca", "t", "."]) == "A cat."
    same = TextPipeline("en", "moses").with_post_processing(None, None)
    assert same.decode(["a", "."]) == "a."
    spaced = TextPipeline("en", "moses").with_post_processing(None, "space")
    assert spaced.decode(["a", "."]) == "a ."


def test_post_processing_of_a_subword_model_is_an_error():
    pipeline = TextPipeline("en", subword=SubwordNmt(CODES))
    with pytest.raises(ConfigError, match="split by subword-nmt, which is undone anyway"):
        pipeline.with_post_processing("@@ ", None)


def test_unknown_names_are_errors():
    with pytest.raises(ConfigError, match="unknown tokenizer 'mose'; did you mean moses"):
        TextPipeline("en", "mose")
    with pytest.raises(ConfigError, match="expected one of"):
        TextPipeline("en").with_post_processing("##", None)


SEPARATED = TextPipeline("en", "moses", subword=SubwordNmt(CODES), sentence_separator="<sep>")


def test_separators_end_sentences_and_are_undone():
    sentences = ["Haus Boot, don't.", "Peter's (Boot)!", "1.000 naïve z.B.?"]
    tokens = list(itertools.chain(*map(SEPARATED.encode, sentences)))
    assert tokens.count("<sep>") == len(sentences)
    parts = SEPARATED.sentences(tokens)
    assert list(map(SEPARATED.decode, parts)) == sentences
    assert SEPARATED.decode(tokens) == " ".join(sentences)
    words = list(itertools.chain(*map(SEPARATED.words, sentences)))
    assert SEPARATED.join_words(tokens) == words
    again = TextPipeline.from_state(SEPARATED.to_state()).with_post_processing(None, None)
    assert again.encode(sentences[0]) == SEPARATED.encode(sentences[0])


def test_blank_and_unfinished_sentences_have_right_separators():
    assert SEPARATED.encode(" ") == []
    assert SEPARATED.decode(["<sep>"]) == ""
    assert SEPARATED.sentences(["a", "<sep>", "<sep>", "b"]) == [["a"], [], ["b"]]
    assert SEPARATED.decode(["a", "<sep>", "<sep>", "b"]) == "a b"
    assert SEPARATED.sentences([]) == []
    assert TextPipeline("de").sentences(["a", "<sep>"]) == [["a", "<sep>"]]


@pytest.mark.parametrize(
    ("symbol", "text", "expected"),
    [
        ("none", "a@@ b", "a@@ b"),
        ("@@ ", "Haus@@ boot fährt@@", "Hausboot fährt"),
        ("subword_nmt", "Haus@@ boot", "Hausboot"),
        ("@@", "Haus@@ boot @@ x", "Hausboot x"),
        ("sentencepiece", "▁A ▁ca t .", "A cat."),
        ("sentencepiece", "▁5 <0xE2> <0x82> <0xAC> <0xE2> <0x82> ▁a", "5€\ufffd\ufffd a"),
        ("wordpiece", "_A _ca t", "A cat"),
        ("letter", "a | c a t |", "a cat"),
        ("_EOW", "a_EOW c at_EOW", "a cat"),
    ],
)
def test_segmentation_is_undone_as_in_fairseq(symbol, text, expected):
    assert " ".join(JoinedPieces(symbol).join(text.split())) == expected


def test_stored_text_keeps_its_version_of_moses():
    text = "»Ja« um 10:30"
    state = TextPipeline("de", "moses").to_state()
    assert (
        TextPipeline.from_state(state).decode(TextPipeline.from_state(state).encode(text)) == text
    )
    del state["tokenizer_version"]  # as releases before it stored
    earlier = TextPipeline.from_state(state)
    tokens = ["»", "Ja", "«", "um", "10", ":", "30"]  # of Moses' own script
    assert earlier.encode(text) == tokens
    assert earlier.decode(tokens) == "» Ja « um 10: 30"
    assert TextPipeline.from_state(earlier.to_state()).encode(text) == tokens
    prepared = TextPipeline("de").with_post_processing(None, "moses")
    assert prepared.decode([*tokens, "@name", "_x"]) == "» Ja « um 10: 30 @name _x"


def test_sentences_of_chinese_are_joined_without_spaces():
    for language, expected in (("zh", "我来。你好。"), ("de", "我来。 你好。")):
        pipeline = TextPipeline(language, sentence_separator="<sep>")
        assert pipeline.decode(["我来。", "<sep>", "你好。", "<sep>"]) == expected

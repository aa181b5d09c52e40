import pytest
import sacremoses
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.tokenization.moses import AggressiveMosesTokenizer, MosesTokenizer

SENTENCES = [
    "It's a dog, isn't it?",
    'He said "yes" (twice).',
    "C'est l'été.",
    "Dr. Müller kam z.B. am 3. Mai.",
    "Das kostet 1.000,50 Euro!",
    "A & B <c> | [d]",
]


@pytest.mark.parametrize("language", ["de", "en", "fr"])
@pytest.mark.parametrize("text", SENTENCES)
def test_same_as_sacremoses(language, text):
    assert MosesTokenizer(language).split(text) == (
        sacremoses.MosesTokenizer(language).tokenize(text)
    )


@given(st.text(st.sampled_from("aZ.é1 ,'\"-日ß&|"), max_size=30))
def test_same_as_sacremoses_on_odd_text(text):
    assert MosesTokenizer("en").split(text) == sacremoses.MosesTokenizer("en").tokenize(text)


@pytest.mark.parametrize("text", ["It's a dog, isn't it?", "A & B | [d]", "3.5 is 1,000."])
def test_join_undoes_split(text):
    moses = MosesTokenizer("en")
    assert moses.join(moses.split(text)) == text


def test_aggressive_hyphens():
    moses = AggressiveMosesTokenizer("en")
    assert moses.split("a well-known dog") == ["a", "well", "@-@", "known", "dog"]
    assert moses.join(["a", "well", "@-@", "known", "dog"]) == "a well-known dog"


def test_unknown_language_is_treated_as_english():
    assert MosesTokenizer("xx").split("A dog.") == ["A", "dog", "."]

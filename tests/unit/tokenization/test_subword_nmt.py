import io
import random
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from subword_nmt import apply_bpe, learn_bpe

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.tokenization import subwords
from relu_nmt.tokenization.base import load_subword
from relu_nmt.tokenization.subwords import SubwordNmt


def learn(counts, size):
    return SubwordNmt.learn(SimpleNamespace(word_counts=lambda: counts), size, seed=1).decode()


@pytest.fixture(scope="module")
def text():
    generator = random.Random(1)
    syllables = ["ha", "us", "bo", "ot", "ü", "ber", "ka", "tze", "n"]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(80)]
    return [" ".join(generator.choices(words, k=9)) for _ in range(60)]


def test_learns_the_same_as_subword_nmt_on_the_text(text):
    expected = io.StringIO()
    learn_bpe.learn_bpe(text, expected, 40)
    counts = Counter(" ".join(text).split())
    assert learn(counts, 40) == expected.getvalue()


def test_splits_the_same_as_subword_nmt(text, monkeypatch):
    monkeypatch.setattr(subwords, "MOST_MERGED_WORDS", 7)
    codes = learn(Counter(" ".join(text).split()), 30)
    reference = apply_bpe.BPE(io.StringIO(codes))
    model = SubwordNmt(codes.encode())
    for line in [*text, "unseen wörter 日本"]:
        pieces = model.split(line.split())
        assert " ".join(pieces) == reference.process_line(line)
        assert model.join(pieces) == line.split()


@pytest.mark.parametrize("counts", [{}, {"a": 5}, {"ab": 1}])
def test_a_text_too_small_to_learn_is_an_error(counts):
    with pytest.raises(ConfigError, match="no two letters occur together twice"):
        learn(counts, 10)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ("", "line 1: expected two symbols"),
        ("#version: 0.2\na b\nabc\n", "line 3: expected two symbols, found 'abc'"),
        ("#version: 0.2\n", "no merges"),
        ("#version: x\na b\n", "line 1: no version number"),
        ("#version: 0.3\na b\n", "line 1: '#version: 0.3', but subword-nmt reads versions 0.1"),
    ],
)
def test_damaged_codes_are_errors(codes, message):
    with pytest.raises(DataError, match=message):
        SubwordNmt(codes.encode())


@pytest.mark.parametrize("codes", ["#version: 0.2\nt h\nth e</w>\n", "t h\nth e\nthe </w>\n"])
def test_codes_with_a_byte_order_mark_are_the_same_model(codes, tmp_path):
    (tmp_path / "codes").write_text(codes, "utf-8-sig")
    model = load_subword("subword-nmt", tmp_path / "codes")
    assert model.content == codes.encode()
    assert model.split(["the"]) == ["the"]


def test_dropped_merges_give_smaller_pieces_of_the_same_words(text):
    words = " ".join(text).split()
    model = SubwordNmt(learn(Counter(words), 40).encode())
    usual = model.split(words)
    drawn = [model.sample(words, 0.3, random.Random(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert model.join(drawn[0]) == model.join(drawn[2]) == words
    assert len(drawn[0]) > len(usual)
    assert model.split(words) == usual
    assert model.sample(words, 1.0, random.Random(1)) == SubwordNmt(b"#version: 0.2\nx y\n").split(
        words
    )


SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>"]
OWN = SubwordNmt(
    learn({"a@@": 9, "@@@@": 5, "x@@": 4, "</s>": 9, "<unk>": 9, "abc": 3}, 40).encode()
)
WORDS = st.one_of(
    st.text("@a</s>x", min_size=1, max_size=7),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=7),
    st.sampled_from(SYMBOLS),
).map(lambda text: "".join(text.split()) or "@@")


@given(st.lists(WORDS, max_size=6), st.integers(0, 9))
def test_joining_restores_any_word(words, seed):
    for pieces in (OWN.split(words), OWN.sample(words, 0.4, random.Random(seed))):
        assert OWN.join(pieces) == words
        assert not set(SYMBOLS) & set(pieces)


@given(st.lists(WORDS, max_size=6))
def test_pieces_differ_from_subword_nmt_only_where_words_would_vanish(words):
    theirs = apply_bpe.BPE(io.StringIO(OWN._codes))
    for word in words:
        pieces = theirs.segment_tokens([word])
        if not word.endswith("@@") and word not in SYMBOLS:
            assert OWN.split([word]) == pieces


def test_words_that_end_like_pieces_are_restored():
    words = ["@@", "-1,3", "+1,4", "@@", "the", "a@@", "the"]
    model = SubwordNmt(b"#version: 0.2\nt h\nth e</w>\n")
    assert model.split(["a@@", "@@"]) == ["a@@", "@@@", "@", "@@@", "@"]
    assert model.join(model.split(words)) == words

import base64
import io
import math
import random
from functools import lru_cache
from types import SimpleNamespace

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.tokenization.base import JoinedPieces
from relu_nmt.tokenization.subwords import SentencePiece

TEXT = ["the house is on the water", "a boat is on the water", "the boat is a house"] * 5


def learn(lines, size, seed=1):
    return SentencePiece.learn(SimpleNamespace(sentences=lambda: lines), size, seed)


def test_learns_the_same_every_time():
    assert learn(TEXT, 40, seed=3) == learn(TEXT, 40, seed=3)


def test_size_is_an_upper_limit():
    model = SentencePiece(learn(TEXT, 5000))
    pieces = model.split(["the", "boathouse"])
    assert model.join(pieces) == ["the", "boathouse"]
    assert pieces[0].startswith("▁")


def test_characters_stay_as_they_are():
    model = SentencePiece(learn([*TEXT, "ﬁne … ½"], 60))
    assert model.join(model.split(["ﬁne", "…", "½", "日本"])) == ["ﬁne", "…", "½", "日本"]


@pytest.mark.parametrize("size", [1, 5, 18])
def test_a_size_that_is_too_small_is_an_error(size):
    # 15 letters, the mark of spaces, and <unk> <s> </s>.
    expected = rf"--subword-size {size}: SentencePiece refuses it: .*give --subword-size 19 or more"
    with pytest.raises(ConfigError, match=expected) as caught:
        learn([*TEXT, "xyz"], size)
    assert "character_coverage" not in str(caught.value)
    learn([*TEXT, "xyz"], 19)


def test_a_text_with_nothing_to_learn_is_an_error():
    with pytest.raises(ConfigError, match="the training text has nothing to learn from"):
        learn([], 10)


OPTIONS = [
    {"byte_fallback": True},
    {"byte_fallback": True, "normalization_rule_name": "identity"},
    {"user_defined_symbols": ["<sep>", "▁water"], "control_symbols": ["<x>"]},
    {"treat_whitespace_as_suffix": True},
    {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    {"model_type": "bpe", "vocab_size": 40},
]


@lru_cache
def model_of(options):
    """Train a model with the options of this number, as users do."""
    model = io.BytesIO()
    usual = {"vocab_size": 300, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=model, **(usual | OPTIONS[options])
    )
    return model.getvalue()


PIECES = ["▁the", "▁", "bo", "at", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "</s>", "<sep>", "日本"]


@pytest.mark.parametrize("options", range(len(OPTIONS)))
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=8))
def test_pieces_are_decoded_as_by_sentencepiece(options, pieces):
    content = model_of(options)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    pieces = [p for p in pieces if theirs.piece_to_id(p) != theirs.unk_id() or "▁" not in p]
    assert SentencePiece(content).join(pieces) == theirs.decode_pieces(pieces).split()


@pytest.mark.parametrize("options", range(len(OPTIONS)))
def test_text_comes_back_from_models_of_others(options):
    model = SentencePiece(model_of(options))
    for words in (["the", "boat", "5€", "日本"], ["a▁b", "▅", "<unk>", "</s>", "<0xE2>", "<pad>"]):
        assert model.join(model.split(words)) == words


def test_unknown_pieces_stay_as_they_are():
    model = SentencePiece(model_of(0))
    assert model.join(["▁the", "<unk>", "▁boat", "▁Schiff"]) == ["the<unk>", "boat", "Schiff"]


@given(st.lists(st.integers(0, 255), min_size=1, max_size=6))
def test_bytes_without_a_model_are_decoded_as_by_sentencepiece(numbers):
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model_of(0))
    pieces = ["▁the", *map("<0x{:02X}>".format, numbers), "▁boat"]
    expected = theirs.decode_pieces(pieces)
    if "▁" not in expected:
        assert JoinedPieces("sentencepiece").join(pieces) == expected.split()


def test_symbols_of_the_dictionary_in_the_text_are_no_pieces():
    lines = ["x<pad> y</s> z<unk> v<s>"] * 30
    model = SentencePiece(learn(lines, 60))
    for words in (["x<pad>", "y</s>"], ["<s>", "<pad>", "</s>", "<unk>"]):
        for pieces in (model.split(words), model.sample(words, 1.0, random.Random(1))):
            assert not {"<s>", "<pad>", "</s>", "<unk>"} & set(pieces)
            assert model.join(pieces) == words


def test_long_lines_are_learned_from():
    draws = random.Random(1)
    words = ["学校", "先生", "学生", "文字", "校長", "生徒", "字幕", "長文"]
    line = "。".join("".join(draws.choices(words, k=6)) for _ in range(400))
    assert len(line.encode()) > 4192 and " " not in line
    model = SentencePiece(learn([*TEXT, line], 60))
    pieces = model.split([line])
    assert max(map(len, pieces)) > 1 and set(line) <= set("".join(pieces))
    assert model._processor.unk_id() not in model._processor.encode(line)
    words = [f"word{i % 7}" for i in range(3000)]
    lines = [" ".join(words[i : i + 9]) for i in range(0, 3000, 9)]
    assert learn([" ".join(words)], 40) == learn(lines, 40)


@pytest.mark.parametrize("mark", ["\u2585", "\u2581"])
def test_lines_with_marks_of_sentencepiece_are_learned_from(mark):
    expected = learn(TEXT, 40)
    assert learn([line.replace(" ", f" {mark} ") for line in TEXT], 40) == expected
    model = SentencePiece(expected)
    words = [f"boat{mark}house", mark, f"{mark}a", f"a{mark * 2}"]
    assert model.join(model.split(words)) == words


@pytest.mark.parametrize("content", [b"", b"x", b"garbage"])
def test_a_damaged_model_is_an_error(content):
    with pytest.raises(DataError, match="not a SentencePiece model"):
        SentencePiece(content)


def test_a_piece_that_is_not_utf8_is_an_error():
    content = learn(TEXT, 40).replace(b"<unk>", b"<\x80nk>")
    with pytest.raises(DataError, match="not a SentencePiece model"):
        SentencePiece(content)


@pytest.mark.parametrize("model", ["", "x", "AAAA", "ü", base64.b64encode(b"garbage").decode()])
def test_a_damaged_state_is_an_error(model):
    with pytest.raises(DataError, match=r"SentencePiece model|is damaged"):
        SentencePiece.from_state({"model": model})


def test_splits_are_drawn_with_their_probabilities():
    model = SentencePiece(learn(TEXT, 40))
    words = ["the", "boat"] * 400
    usual = model.split(words)
    drawn = [model.sample(words, 1.0, random.Random(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert model.join(drawn[0]) == model.join(drawn[2]) == words
    ways, scores = model._ways("boat")
    assert scores == sorted(scores, reverse=True)
    total = math.log(sum(map(math.exp, scores)))
    draws = random.Random(3)
    boats = [model.sample(["boat"], 1.0, draws) for _ in range(4000)]
    for way, score in zip(ways, scores, strict=True):
        share = math.exp(score - total)
        assert boats.count(way) / 4000 == pytest.approx(share, abs=0.03)
    assert model.sample(words, 100.0, random.Random(1)) == usual  # hardly ever another
    flat = set()
    for seed in range(300):
        flat.add(tuple(model.sample(["boat"], 0.0, random.Random(seed))))
    assert len(flat) == len(ways)

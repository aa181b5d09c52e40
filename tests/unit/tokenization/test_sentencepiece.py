import base64
import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.tokenization.sentencepiece import SentencePiece

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


def test_size_is_too_small():
    with pytest.raises(ConfigError, match="--subword-size 5: SentencePiece refuses it"):
        learn(TEXT, 5)


@pytest.mark.parametrize("content", [b"", b"x", b"garbage"])
def test_damaged_model(content):
    with pytest.raises(DataError, match="not a SentencePiece model"):
        SentencePiece(content)


@pytest.mark.parametrize("model", ["", "x", "AAAA", "ü", base64.b64encode(b"garbage").decode()])
def test_damaged_state(model):
    with pytest.raises(DataError, match=r"SentencePiece model|is damaged"):
        SentencePiece.from_state({"model": model})


def test_splits_are_drawn_with_their_probabilities():
    model = SentencePiece(learn(TEXT, 40))
    words = ["the", "boat"] * 400
    usual = model.split(words)
    drawn = [model.sample(words, 1.0, random.Random(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(model.join(pieces) == words for pieces in drawn)
    ways, scores = model._ways("boat")
    assert scores == sorted(scores, reverse=True)
    total = math.log(sum(map(math.exp, scores)))
    shares = [math.exp(score - total) for score in scores]
    boats = [
        model.sample(["boat"], 1.0, draws) for draws in [random.Random(3)] for _ in range(4000)
    ]
    for way, share in zip(ways, shares, strict=True):
        assert boats.count(way) / 4000 == pytest.approx(share, abs=0.03)
    assert model.sample(words, 100.0, random.Random(1)) == usual  # hardly ever another
    flat = Counter(map(tuple, (model.sample(["boat"], 0.0, random.Random(i)) for i in range(300))))
    assert len(flat) == len(ways)

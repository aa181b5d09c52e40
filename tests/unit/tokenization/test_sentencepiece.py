import base64
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

"""Drawn maps of attention: their labels, colors and titles."""

import html
import re

import numpy as np
import pytest

from relu_nmt.drawing import attention_maps
from relu_nmt.drawing.attention_maps import AttentionMap


def numbered_tokens(letter, size):
    return [*(f"{letter}{number}" for number in range(1, size)), "</s>"]


def drawn(tmp_path, shape, slot="cross", words=()):
    """Return the texts of a picture of made weights [Nq, Nk] or [H, Nq, Nk], and the tokens."""
    queries, keys = map(numbered_tokens, "qk", shape[-2:])
    keys[: len(words)] = words
    weights = np.random.default_rng(0).random(shape)
    head = None if len(shape) == 3 else 0
    AttentionMap(slot, 1, head, queries, keys, weights).save(tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text("utf-8")
    texts = re.findall(r"<(?:text|tspan)[^>]*>([^<]+)</", text)
    return list(map(html.unescape, texts)), queries, keys


@pytest.mark.parametrize("shape", [(35, 28), (60, 60), (5, 35, 28), (2, 60, 3)])
def test_all_of_60_tokens_are_named(tmp_path, shape):
    texts, queries, keys = drawn(tmp_path, shape)
    assert set(queries) | set(keys) <= set(texts)
    heads = shape[0] if len(shape) == 3 else 1
    assert texts.count(keys[0]) == heads  # below every map
    assert texts.count("source (key)") == heads and "target (query)" in texts


def test_some_of_many_tokens_are_named_with_their_numbers(tmp_path):
    texts, queries, keys = drawn(tmp_path, (61, 300))
    numbered = [text for text in texts if re.fullmatch(r"\d+ [qk]\d+", text)]
    for side, tokens in (("q", queries), ("k", keys)):
        labels = [text.split(" ") for text in numbered if side in text]
        assert 20 <= len(labels) <= 60
        assert all(tokens[int(number) - 1] == word for number, word in labels)
    assert not set(texts) & {*queries, *keys}
    assert "source (key): number and token" in texts


def test_a_picture_names_its_place_and_sentences(tmp_path):
    words = ["\u2581Das", "\u2581Ha", "us", "\u2581kostet", "\u2581$5", "\u2581&", "\u2581$6"]
    texts, _, keys = drawn(tmp_path, (3, 8), words=words)
    assert {key.replace("\u2581", "\u00a0") for key in keys} <= set(texts)
    titles = ["cross-attention, layer 1, head 0", "source: Das Haus kostet $5 & $6"]
    assert {*titles, "target: q1 q2"} <= set(texts)
    texts, *_ = drawn(tmp_path, (2, 4, 4), slot="encoder", words=["Ha@@", "us", "."])
    assert {"encoder self-attention, layer 1, every head", "source: Haus ."} <= set(texts)
    assert "source (query)" in texts and "source (key)" in texts
    texts, *_ = drawn(tmp_path, (2, 2), slot="decoder")
    assert "target to come (query)" in texts and "target so far (key)" in texts
    assert "target: q1" in texts


def test_letters_missing_in_the_font_stay_text(tmp_path, recwarn):
    texts, *_ = drawn(tmp_path, (2, 4), words=["\u4f60\u597d", "\u4e16\u754c"])
    assert {"\u4f60\u597d", "\u4e16\u754c"} < set(texts)
    assert not recwarn.list


def test_long_sentences_and_words_are_cut(tmp_path):
    texts, *_ = drawn(tmp_path, (400, 400), words=["x" * 99])
    assert max(map(len, texts)) < 120
    assert f"1 {'x' * 17}\u2026" in texts
    assert [text[-1] for text in texts].count("\u2026") >= 2


@pytest.fixture
def pixels(monkeypatch):
    """Return the colors [Nq, Nk, 4] that each map is drawn with, from 0 to 1."""
    images = []
    draw_weights = attention_maps.draw_weights

    def recorded(*arguments):
        image = draw_weights(*arguments)
        images.append(image.to_rgba(image.get_array()))
        return image

    monkeypatch.setattr(attention_maps, "draw_weights", recorded)
    return images


def test_exact_zeros_are_white_and_the_smallest_weights_are_not(tmp_path, pixels):
    weights = np.array([[0.9, 0.0, 1e-9], [0.3, 0.3, 1e-4]])
    AttentionMap("cross", 0, 0, ["a", "b"], ["c", "d", "e"], weights).save(tmp_path / "map.svg")
    np.testing.assert_array_equal(pixels[0][0, 1], np.ones(4))
    assert pixels[0][weights > 0][:, 0].max() < 0.9  # red, of which blue takes most away


def test_weights_are_drawn_as_they_are_and_signs_by_color(tmp_path, pixels):
    weights = np.array([[[0.8, 0.2], [0.2, 0.2]], [[-0.2, 0.0], [0.2, 0.1]]])
    AttentionMap("cross", 0, None, ["a", "b"], ["c", "d"], weights).save(tmp_path / "map.svg")
    first, second = pixels
    np.testing.assert_array_equal(first[0, 1], first[1, 1])  # equal weights of rows with other sums
    np.testing.assert_array_equal(first[0, 1], second[1, 0])
    assert second[0, 0, 0] > second[0, 0, 2] and second[1, 0, 0] < second[1, 0, 2]
    np.testing.assert_array_equal(second[0, 1], np.ones(4))

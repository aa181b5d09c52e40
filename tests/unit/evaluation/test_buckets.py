"""Buckets hold every segment once, and their scores are sacreBLEU's of these segments."""

import itertools
import random
import re

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.document_scores import bucket_scores, length_buckets, position_buckets
from relu_nmt.evaluation.metrics import Metric

EDGES = st.sets(st.integers(1, 40), min_size=1, max_size=5).map(sorted)


def bounds(name):
    """Return the lowest and the highest value of a bucket."""
    if name[0] == ">":
        return int(name[1:]) + 1, 50
    low, _, high = name.partition("-")
    return int(low), int(high or low)


@given(st.lists(st.integers(0, 50)), EDGES)
def test_every_segment_is_in_the_bucket_of_its_length(lengths, edges):
    buckets = length_buckets(lengths, edges)
    assert sorted(itertools.chain.from_iterable(buckets.values())) == list(range(len(lengths)))
    ends = []
    for name, members in buckets.items():
        assert members
        low, high = bounds(name)
        assert name[0] == ">" or high in edges
        assert all(low <= lengths[i] <= high for i in members)
        ends += [low, high]
    assert ends == sorted(ends)


@given(st.lists(st.integers(1, 50)), EDGES)
def test_every_sentence_is_in_the_bucket_of_its_position(positions, edges):
    buckets = position_buckets(positions, edges)
    assert sorted(itertools.chain.from_iterable(buckets.values())) == list(range(len(positions)))
    lows, highs = zip(*map(bounds, buckets), strict=True)
    assert highs[:-1] == tuple(edges)
    assert lows == (1, *(edge + 1 for edge in edges))
    for low, high, members in zip(lows, highs, buckets.values(), strict=True):
        assert all(low <= positions[i] <= high for i in members)


@pytest.mark.parametrize("edges", [(), (0, 5), (5, 5), (9, 3)])
@pytest.mark.parametrize("divide", [length_buckets, position_buckets])
def test_edges_of_buckets_that_do_not_rise_are_an_error(divide, edges):
    with pytest.raises(ConfigError, match="expected rising numbers"):
        divide([1], edges)


def test_lengths_are_in_tokens_of_bleu():
    references = ["It is here", "a dog, a cat and the bird", "it was here"]
    lengths = Metric("chrf").reference_lengths(references)
    assert lengths == [3, 8, 3]  # the comma counts
    assert length_buckets(lengths, (3, 7)) == {"0-3": [0, 2], ">7": [1]}


def test_a_bucket_scores_its_segments_alone():
    rng = random.Random(1)
    words = ["a", "dog", "barks", "at", "the", "red", "house", ",", "and", "nobody", "."]
    sides = []
    for _ in range(2):
        sides.append([" ".join(rng.choices(words, k=9)) for _ in range(30)])
    texts = [
        re.sub(r"\S+", lambda word: word[0] if rng.random() < 0.8 else "no", line)
        for line in sides[0]
    ]
    buckets = {"odd": list(range(1, 30, 2)), "none": [], "first": [0]}
    for metric, independent in (
        (Metric(), sacrebleu.corpus_bleu),
        (Metric("chrf"), sacrebleu.corpus_chrf),
    ):
        odd, none, first = bucket_scores(metric, buckets, texts, sides)
        assert odd[:2] == ("odd", 15)
        expected = independent(texts[1::2], [side[1::2] for side in sides])
        assert odd[2].value == expected.score
        assert none == ("none", 0, None)
        assert first[2].value == independent(texts[:1], [side[:1] for side in sides]).score

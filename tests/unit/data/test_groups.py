import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.data.groups import (
    deal_lengths,
    describe_lengths,
    first_context,
    lengths_in_words,
    longer_side,
    plan_groups,
)
from relu_nmt.data.separators import Separators
from relu_nmt.data.split import Split
from tests.tiny import as_lists, write_dataset

SIZES = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12), max_size=8)
"""Tokens of each sentence of each document, without </s>. Sentences may be empty."""
LIMITS = st.integers(1, 70)


def arrays(documents):
    """Return the sizes with </s> of all sentences, and the number of sentences by document."""
    sizes = np.fromiter(itertools.chain(*documents), np.int32) + 1
    return sizes, np.fromiter(map(len, documents), np.int64)


def sentences_of(groups):
    return [list(groups.sentences(i)) for i in range(len(groups))]


@given(SIZES, LIMITS)
def test_groups_have_every_sentence_once_in_order_and_never_cross_documents(documents, limit):
    sizes, counts = arrays(documents)
    groups = plan_groups(sizes, counts, limit)
    sentences = sentences_of(groups)
    assert list(itertools.chain(*sentences)) == list(range(len(sizes)))
    assert all(sentences)
    owner = np.repeat(np.arange(len(counts)), counts)
    for numbers, document in zip(sentences, groups.document, strict=True):
        assert set(owner[numbers]) == {document}


@given(SIZES, LIMITS)
def test_groups_are_within_the_limit_and_as_long_as_possible(documents, limit):
    sizes, counts = arrays(documents)
    groups = plan_groups(sizes, counts, limit)
    contents = sizes - 1
    for i in range(len(groups)):
        sentences = groups.sentences(i)
        tokens = contents[list(sentences)].sum() + 1
        assert groups.tokens[i] == tokens
        if len(sentences) > 1:
            assert tokens <= limit
        assert groups.over_long[i] == (limit > 1 and tokens > limit)
        is_last = i + 1 == len(groups) or groups.document[i + 1] != groups.document[i]
        if not is_last and limit != SINGLE_SENTENCES:
            assert tokens + contents[sentences[-1] + 1] > limit


@given(SIZES)
def test_a_limit_of_one_is_single_sentences(documents):
    sizes, counts = arrays(documents)
    groups = plan_groups(sizes, counts, 1)
    assert groups.count.tolist() == [1] * len(sizes)
    assert not groups.over_long.any()


@given(SIZES, st.lists(LIMITS, min_size=8, max_size=8))
def test_a_limit_for_each_document_groups_each_as_on_its_own(documents, limits):
    sizes, counts = arrays(documents)
    limits = np.array(limits[: len(documents)], dtype=np.int64)
    together = plan_groups(sizes, counts, limits)
    assert (together.limit == limits[together.document]).all()
    for number, document in enumerate(documents):
        alone = plan_groups(*arrays([document]), int(limits[number]))
        assert alone.count.tolist() == together.count[together.document == number].tolist()


def test_the_longer_side_counts():
    source = np.array([6, 2, 2])
    sizes = longer_side(source, np.array([2, 6, 2]))
    assert plan_groups(sizes, np.array([3]), 11).count.tolist() == [2, 1]
    assert plan_groups(longer_side(source, None), np.array([3]), 11).count.tolist() == [3]


def test_a_sentence_over_the_limit_stands_alone():
    groups = plan_groups(np.array([3, 20, 1, 4]), np.array([4]), 8)
    assert sentences_of(groups) == [[0], [1], [2, 3]]
    assert groups.over_long.tolist() == [False, True, False]


def test_no_sentences_give_no_groups():
    none = np.zeros(0, dtype=np.int64)
    groups = plan_groups(none, none, 8)
    assert len(groups) == len(groups.tokens) == 0
    assert lengths_in_words(describe_lengths(groups, 8, keep_over_long=True)) == (
        "groups of up to 8 tokens: 0 from 0 documents with 0 sentences"
    )


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=60),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 5),
)
def test_lengths_get_equal_shares_of_the_sentences(counts, lengths, epoch):
    counts = np.array(counts)
    dealt = deal_lengths(counts, tuple(lengths), (1, epoch))
    assert (dealt == deal_lengths(counts, tuple(lengths), (1, epoch))).all()
    assert set(dealt) <= set(lengths)
    for length in set(lengths):
        share = counts.sum() * lengths.count(length) / len(lengths)
        # Documents are not cut, so a share may be off by half of one at each end.
        assert abs(counts[dealt == length].sum() - share) <= counts.max() * lengths.count(length)


def test_each_epoch_draws_its_own_lengths():
    counts = np.full(100, 3)
    first = deal_lengths(counts, (1, 64), (1, 1))
    second = deal_lengths(counts, (1, 64), (1, 2))
    other = deal_lengths(counts, (1, 64), (2, 1))
    assert (first != second).any()
    assert (first != other).any()


def test_lengths_are_described():
    groups = plan_groups(np.array([9, 9, 40, 3, 30]), np.array([4, 1]), 32)
    left_out = describe_lengths(groups, 32, keep_over_long=False)
    assert left_out["groups"] == 3
    assert left_out["over_long_sentences"] == 1
    assert left_out["groups_by_tokens"] == {"1-16": 1, "17-32": 2}
    assert left_out["longest_tokens"] == 30
    assert left_out["mean_tokens"] == pytest.approx((17 + 3 + 30) / 3, abs=0.01)
    assert "; 1 longer sentence left out" in lengths_in_words(left_out)
    lengths = describe_lengths(groups, 32, keep_over_long=True)
    assert (lengths["groups"], lengths["longest_tokens"]) == (4, 40)
    assert "3 from" in lengths_in_words(left_out)
    assert "kept whole" in lengths_in_words(lengths)
    assert describe_lengths(groups, 64, keep_over_long=True)["groups"] == 0


def dataset(folder, source, target=None, separators=None):
    sides = []
    for name, sentences in (("de", source), ("en", target)):
        if sentences is not None:
            sentences = write_dataset(folder / name, [[*sentence, 2] for sentence in sentences])
        sides.append(sentences)
    source_side, target_side = sides
    return Split(source_side, target_side, 20, 20, separators)


def rows(pairs, groups):
    """Return the token ids of each group, both sides."""
    joined = map(pairs.joined, map(groups.sentences, range(len(groups))))
    return list(map(as_lists, joined))


def test_groups_join_both_sides(tmp_path):
    pairs = dataset(tmp_path, [[4, 5], [6], [], [7]], [[8], [9, 10, 11], [], [12]])
    sizes = longer_side(pairs.source_sizes, pairs.target_sizes)
    groups = plan_groups(sizes, np.array([3, 1]), 8)
    assert rows(pairs, groups) == [[[4, 5, 6, 2], [8, 9, 10, 11, 2]], [[7, 2], [12, 2]]]
    assert as_lists(pairs.group_sizes(groups)) == [[4, 2], [5, 2]]


def test_a_sentence_is_a_group_of_one(tmp_path):
    pairs = dataset(tmp_path, [[4, 5], [6], [], [7]], [[8], [9, 10, 11], [], [12]])
    groups = pairs.groups()
    assert rows(pairs, groups) == list(map(as_lists, map(pairs.pair, range(4))))
    assert pairs.group_sizes(groups)[1].tolist() == pairs.target_sizes.tolist()
    assert groups.tokens.tolist() == [3, 4, 1, 2]
    assert not groups.over_long.any()
    limited = plan_groups(groups.tokens, np.array([3, 1]), SINGLE_SENTENCES)
    for name in ("first", "count", "limit", "tokens"):
        assert getattr(groups, name).tolist() == getattr(limited, name).tolist()
    assert len(plan_groups(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64), 1)) == 0


def test_groups_of_source_only_data_have_no_target(tmp_path):
    pairs = dataset(tmp_path, [[4, 5], [6]])
    groups = plan_groups(pairs.source_sizes, np.array([2]), 8)
    assert rows(pairs, groups) == [[[4, 5, 6, 2], None]]
    assert pairs.group_sizes(groups)[1] is None


def test_a_separator_ends_every_sentence_and_counts(tmp_path):
    pairs = dataset(tmp_path, [[4, 5], [], [7]], [[8], [], [12, 13]], separators=Separators(15, 16))
    sizes = longer_side(pairs.source_sizes, pairs.target_sizes)
    assert sizes.tolist() == [4, 2, 4]
    counts = np.array([3])
    assert rows(pairs, plan_groups(sizes, counts, 8)) == [
        [[4, 5, 15, 15, 7, 15, 2], [8, 16, 16, 12, 13, 16, 2]]
    ]
    assert len(plan_groups(sizes, counts, 7)) == 2


@settings(max_examples=50)
@given(SIZES, LIMITS, st.booleans())
def test_sizes_are_those_of_the_tokens(tmp_path_factory, documents, limit, separated):
    folder = tmp_path_factory.mktemp("pairs")
    source = [[5] * size for size in itertools.chain(*documents)]
    target = [[6] * (size // 2) for size in itertools.chain(*documents)]
    assume(source)
    pairs = dataset(folder, source, target, Separators(7, 7) if separated else None)
    sizes = longer_side(pairs.source_sizes, pairs.target_sizes)
    groups = plan_groups(sizes, arrays(documents)[1], limit)
    of_sides = pairs.group_sizes(groups)
    for i, sides in enumerate(rows(pairs, groups)):
        for ids, of_side in zip(sides, of_sides, strict=True):
            assert len(ids) == of_side[i]
            assert ids.count(2) == 1
            assert ids.count(7) == (groups.count[i] if separated else 0)


DOCUMENTS = st.lists(st.lists(st.integers(1, 20), max_size=7), max_size=5)


def plan_of(documents, limit, overlap=0):
    sizes = np.fromiter(itertools.chain(*documents), np.int64)
    counts = np.fromiter(map(len, documents), np.int64)
    groups = plan_groups(sizes, counts, limit, overlap if limit > 1 else 0)
    return sizes, counts, groups


@given(DOCUMENTS, st.integers(1, 60), st.integers(0, 4))
def test_every_sentence_is_new_once_in_order_and_within_its_document(documents, limit, overlap):
    sizes, counts, groups = plan_of(documents, limit, overlap)
    windows = groups.windows()
    new = [range(window.first, window.end) for window in windows]
    assert list(itertools.chain(*new)) == list(range(len(sizes)))
    begins = np.append(0, np.cumsum(counts))
    for window in windows:
        begin, end = begins[window.document : window.document + 2]
        assert begin <= window.context <= window.first < window.end <= end


@given(DOCUMENTS, st.integers(2, 60), st.integers(0, 4))
def test_windows_are_as_large_as_the_limit_allows(documents, limit, overlap):
    sizes, counts, groups = plan_of(documents, limit, overlap)
    totals = np.append(0, np.cumsum(sizes - 1)).tolist()
    ends = np.cumsum(counts)
    for window, counted in zip(groups.windows(), groups.tokens, strict=True):
        tokens = 1 + totals[window.end] - totals[window.context]
        assert tokens == counted
        alone = window.num_new == 1 and window.context == window.first
        assert tokens <= limit or alone
        assert window.first - window.context <= overlap
        # Neither one more sentence nor, beside the first new one, more context would fit.
        if window.end < ends[window.document]:
            assert tokens + sizes[window.end] - 1 > limit
        earliest = max(ends[window.document] - counts[window.document], window.first - overlap)
        if window.context > earliest:
            assert 1 + totals[window.first + 1] - totals[window.context - 1] > limit
        context = first_context(totals, earliest, window.first, window.end, limit)
        assert context == window.context

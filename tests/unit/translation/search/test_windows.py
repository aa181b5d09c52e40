import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.data.groups import plan_groups
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.windows import Window, WindowConfig, WindowPlan

DOCUMENTS = st.lists(st.lists(st.integers(1, 20), max_size=7), max_size=5)


def plan_of(documents, limit, overlap=0):
    sizes = np.array([size for own in documents for size in own], dtype=np.int64)
    counts = np.array([len(own) for own in documents], dtype=np.int64)
    config = WindowConfig(limit, overlap if limit > 1 else 0)
    return sizes, counts, WindowPlan(sizes, counts, config)


@given(DOCUMENTS, st.integers(1, 60), st.integers(0, 4))
def test_every_sentence_is_new_once_in_order_and_within_its_document(documents, limit, overlap):
    sizes, counts, plan = plan_of(documents, limit, overlap)
    new = [number for window in plan.windows for number in range(window.first, window.end)]
    assert new == list(range(len(sizes)))
    begins = np.append(0, np.cumsum(counts))
    for window in plan.windows:
        begin, end = begins[window.document : window.document + 2]
        assert begin <= window.context <= window.first < window.end <= end


@given(DOCUMENTS, st.integers(2, 60), st.integers(0, 4))
def test_windows_are_as_large_as_the_limit_allows(documents, limit, overlap):
    sizes, counts, plan = plan_of(documents, limit, overlap)
    ends = np.cumsum(counts)
    for window in plan.windows:
        tokens = 1 + int((sizes[window.context : window.end] - 1).sum())
        assert tokens == plan.tokens(window.context, window.end)
        alone = window.num_new == 1 and window.context == window.first
        assert tokens <= limit or alone
        assert window.first - window.context <= overlap
        # Neither one more sentence nor, beside the first new one, more context would fit.
        if window.end < ends[window.document]:
            assert tokens + sizes[window.end] - 1 > limit
        earliest = max(ends[window.document] - counts[window.document], window.first - overlap)
        if window.context > earliest:
            assert plan.tokens(window.context - 1, window.first + 1) > limit
        assert plan.with_context(window) == window


@given(DOCUMENTS, st.integers(1, 60))
def test_without_overlap_they_are_the_groups_of_training(documents, limit):
    sizes, counts, plan = plan_of(documents, limit)
    expected, found = plan_groups(sizes, counts, limit), plan.groups()
    for name in ("first", "count", "document", "limit", "tokens"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert all(window.context == window.first for window in plan.windows)


def test_halves_have_all_new_sentences_and_no_context():
    first, second = Window(1, 2, 4, 9).halves()
    assert (first, second) == (Window(1, 4, 4, 6), Window(1, 6, 6, 9))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_doc_tokens": 0}, "--max-doc-tokens 0: expected 1"),
        ({"max_doc_tokens": 8, "window_overlap": -1}, "--window-overlap -1: expected 0"),
        ({"max_doc_tokens": 1, "window_overlap": 2}, "--window-overlap 2: .*single sentences"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        WindowConfig(**settings)

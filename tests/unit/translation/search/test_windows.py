import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.data.documents import WindowConfig
from relu_nmt.data.groups import first_context, plan_groups
from relu_nmt.errors import ConfigError

DOCUMENTS = st.lists(st.lists(st.integers(1, 20), max_size=7), max_size=5)


def plan_of(documents, limit, overlap=0):
    sizes = np.array([size for own in documents for size in own], dtype=np.int64)
    counts = np.array([len(own) for own in documents], dtype=np.int64)
    groups = plan_groups(sizes, counts, limit, overlap if limit > 1 else 0)
    return sizes, counts, groups


@given(DOCUMENTS, st.integers(1, 60), st.integers(0, 4))
def test_every_sentence_is_new_once_in_order_and_within_its_document(documents, limit, overlap):
    sizes, counts, groups = plan_of(documents, limit, overlap)
    windows = groups.windows()
    new = [number for window in windows for number in range(window.first, window.end)]
    assert new == list(range(len(sizes)))
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
        bounds = earliest, window.first, window.end, limit
        assert first_context(totals, *bounds) == window.context


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

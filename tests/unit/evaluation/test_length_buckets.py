import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.bleu import MetricConfig
from relu_nmt.evaluation.length_buckets import length_buckets


@given(
    st.lists(st.integers(0, 50)),
    st.sets(st.integers(1, 40), min_size=1, max_size=5).map(sorted),
)
def test_every_segment_is_in_the_bucket_of_its_length(lengths, edges):
    buckets = length_buckets(lengths, edges)
    assert sorted(i for bucket in buckets for i in bucket.members) == list(range(len(lengths)))
    for bucket in buckets:
        assert bucket.members
        assert bucket.longest in (*edges, None)
        for i in bucket.members:
            assert bucket.shortest <= lengths[i]
            assert bucket.longest is None or lengths[i] <= bucket.longest


@pytest.mark.parametrize("edges", [(), (0, 5), (5, 5), (9, 3)])
def test_edges_must_rise(edges):
    with pytest.raises(ConfigError, match="expected rising numbers"):
        length_buckets([1], edges)


def test_lengths_are_in_tokens_of_bleu():
    references = ["It is here", "a dog, a cat and the bird", "it was here"]
    lengths = MetricConfig("chrf").reference_lengths(references)
    assert lengths == [3, 8, 3]  # the comma counts
    assert [str(bucket) for bucket in length_buckets(lengths, (3, 7))] == ["0-3", ">7"]

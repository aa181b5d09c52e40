import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.bleu import MetricConfig, corpus_bleu
from relu_nmt.evaluation.length_buckets import length_buckets, scores_by_length


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


def test_scores_are_of_the_segments_in_the_bucket():
    hypotheses = ["it is here", "a dog, a cat and a bird", "it was there"]
    references = ["It is here", "a dog, a cat and the bird", "it was here"]
    found = {
        str(bucket): score
        for bucket, score in scores_by_length(MetricConfig(), hypotheses, [references], (3, 7))
    }
    # The comma counts: lengths are those of BLEU's tokens.
    assert list(found) == ["0-3", ">7"]
    assert found["0-3"] == corpus_bleu(hypotheses[::2], [references[::2]])
    assert found[">7"] == corpus_bleu(hypotheses[1:2], [references[1:2]])

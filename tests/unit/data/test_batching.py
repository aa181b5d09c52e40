import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relu_nmt.data.batching import (
    BatchingConfig,
    BatchLimits,
    find_too_long,
    plan_batches,
    refuse_too_long,
)
from relu_nmt.errors import ConfigError, DataError

SIZES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60)
LIMIT = st.one_of(st.none(), st.integers(1, 100))


def batches_of(plan):
    return [plan[i].tolist() for i in range(len(plan))]


def split(pairs):
    return (
        np.array([p[0] for p in pairs], dtype=np.int32),
        np.array([p[1] for p in pairs], dtype=np.int32),
    )


@settings(max_examples=200, deadline=None)
@given(SIZES, LIMIT, LIMIT, st.one_of(st.none(), st.tuples(st.integers(0, 5), st.integers(1, 5))))
def test_every_sentence_once_and_limits_kept(pairs, max_tokens, max_sentences, seed):
    source, target = split(pairs)
    plan = plan_batches(source, target, BatchLimits(max_tokens, max_sentences), seed)
    batches = batches_of(plan)
    assert sorted(i for batch in batches for i in batch) == list(range(len(pairs)))
    for batch in batches:
        longest = max(max(source[i], target[i]) for i in batch)
        assert max_sentences is None or len(batch) <= max_sentences
        assert max_tokens is None or len(batch) == 1 or longest * len(batch) <= max_tokens


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(40, 200))
def test_batches_are_as_large_as_the_limit_allows(pairs, max_tokens):
    source, target = split(pairs)
    batches = batches_of(plan_batches(source, target, BatchLimits(max_tokens)))
    longer = np.maximum(source, target)
    for batch, following in itertools.pairwise(batches):
        assert (len(batch) + 1) * longer[following[0]] > max_tokens


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(1, 5), st.integers(40, 300))
def test_sizes_are_multiples_on_request(pairs, multiple, max_tokens):
    source, target = split(pairs)
    limits = BatchLimits(max_tokens, multiple=multiple)
    *whole, last = [[], *batches_of(plan_batches(source, target, limits))]
    assert all(len(b) % multiple == 0 or len(b) < multiple for b in whole)
    assert sum(map(len, [*whole, last])) == len(pairs)


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(0, 3), st.integers(1, 3))
def test_the_plan_depends_only_on_seed_and_epoch(pairs, seed, epoch):
    source, target = split(pairs)
    limits = BatchLimits(max_tokens=90)
    again = [batches_of(plan_batches(source, target, limits, (seed, epoch))) for _ in range(2)]
    assert again[0] == again[1]


def test_epochs_and_seeds_differ():
    source = target = np.full(300, 7, dtype=np.int32)
    limits = BatchLimits(max_sentences=4)
    plans = [batches_of(plan_batches(source, target, limits, s)) for s in [(1, 1), (1, 2), (2, 1)]]
    assert plans[0] != plans[1] != plans[2] != plans[0]
    # Equal lengths change company between epochs, not only the order of the batches.
    assert {frozenset(b) for b in plans[0]} != {frozenset(b) for b in plans[1]}


def test_like_lengths_come_together():
    generator = np.random.default_rng(0)
    source = generator.integers(1, 60, 5000).astype(np.int32)
    target = np.maximum(1, source + generator.integers(-5, 6, 5000)).astype(np.int32)
    plan = plan_batches(source, target, BatchLimits(max_tokens=1000), (1, 1))
    padded = real = 0
    for batch in batches_of(plan):
        padded += len(batch) * (source[batch].max() + target[batch].max())
        real += source[batch].sum() + target[batch].sum()
    assert real / padded > 0.9


def test_without_a_seed_batches_come_in_order_of_length():
    plan = plan_batches(np.array([3, 5, 4, 1]), None, BatchLimits(max_sentences=2))
    assert batches_of(plan) == [[3, 0], [2, 1]]


def test_source_only_and_empty_data():
    assert len(plan_batches(np.zeros(0, np.int32), None, BatchLimits(10), (1, 1))) == 0


def test_planning_millions_of_pairs_takes_seconds():
    generator = np.random.default_rng(0)
    source = generator.integers(1, 100, 1_000_000).astype(np.int32)
    target = generator.integers(1, 100, 1_000_000).astype(np.int32)
    start = time.process_time()
    plan = plan_batches(source, target, BatchLimits(max_tokens=4096), (1, 1))
    assert len(plan) > 10_000
    assert time.process_time() - start < 4


def test_too_long_sentences():
    source, target = np.array([3, 12, 4, 11]), np.array([4, 5, 13, 2])
    assert find_too_long(source, target, 11).tolist() == [1, 2]
    assert find_too_long(source, None, None).tolist() == []
    message = r"d/train: sentence 1 has 12 tokens \(and 1 more\), but --max-tokens is 11; .*--skip-"
    with pytest.raises(DataError, match=message):
        refuse_too_long(source, target, 11, "d/train")
    refuse_too_long(source, target, 13, "d/train")


def test_config_needs_a_sensible_limit():
    with pytest.raises(ConfigError, match="--max-tokens or --batch-size"):
        BatchingConfig()
    with pytest.raises(ConfigError, match="--batch-size 0"):
        BatchingConfig(batch_size=0)
    config = BatchingConfig(max_tokens=100, batch_size_valid=3)
    assert config.training_limits == BatchLimits(100, None)
    assert config.validation_limits == BatchLimits(100, 3)

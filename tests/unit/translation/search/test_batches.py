import itertools

import numpy as np
import pytest

from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.generator import MOST_BATCHES, deal_batches, plan_batches


@pytest.mark.parametrize(
    "settings", [{}, {"max_tokens": 30}, {"batch_size": 4}, {"max_tokens": 1, "batch_size": 3}]
)
def test_batches_hold_every_sentence_once_and_keep_the_limits(settings):
    lengths = np.random.default_rng(0).integers(1, 20, 100)
    config = GenerationConfig(beam=2, **settings)
    batches = plan_batches(lengths, config, vocab_size=10)
    assert sorted(np.concatenate(batches)) == list(range(100))
    for batch in batches:
        if "batch_size" in settings:
            assert len(batch) <= settings["batch_size"]
        if "max_tokens" in settings:
            assert len(batch) * lengths[batch].max() <= settings["max_tokens"] or len(batch) == 1
    for longer, shorter in itertools.pairwise(batches):
        assert lengths[longer].min() >= lengths[shorter].max()
    assert len(batches) == 1 or settings


def test_the_default_bounds_the_logits():
    lengths = np.full(5000, 2)
    for device, limit in (("cpu", 2**22), ("cuda", 2**26)):
        batches = plan_batches(lengths, GenerationConfig(), 32000, device)
        assert 0.8 * limit < max(map(len, batches)) * 5 * 32000 <= limit


def test_every_worker_has_batches_and_they_share_the_memory():
    sentences = np.full(100, 20)
    documents = np.full(100, 1024)

    def batches_of(lengths, workers, **settings):
        config = GenerationConfig(**settings)
        return plan_batches(lengths, config, vocab_size=8000, workers=workers)

    assert len(batches_of(sentences, 1)) == 1
    assert len(batches_of(sentences, 4)) >= 8
    assert max(map(len, batches_of(sentences, 64))) == 8
    assert len(batches_of(sentences, 4, batch_size=100)) == 1
    # Not 30, 30, 30 and 10 for two.
    assert list(map(len, batches_of(sentences, 2, batch_size=30))) == [25] * 4
    assert list(map(len, batches_of(sentences, 2, batch_size=40))) == [25] * 4
    assert set(map(len, batches_of(documents, 1))) <= {11, 1}
    assert max(map(len, batches_of(documents, 4))) == 2


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("number", [2, 3, 7, 40])
def test_workers_get_all_batches_a_few_at_a_time(number, workers):
    tasks = deal_batches(np.split(np.arange(number), number), workers)
    batches = list(itertools.chain.from_iterable(tasks))
    assert sorted(np.concatenate(batches)) == list(range(number))
    sizes = list(map(len, tasks))
    assert max(sizes) <= MOST_BATCHES and min(sizes) >= 1
    assert len(tasks) >= min(number, workers)
    assert max(sizes[:workers]) - min(sizes[:workers]) <= 1

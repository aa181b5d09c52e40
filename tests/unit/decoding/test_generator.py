import itertools

import numpy as np
import pytest
import torch
from toy_models import EOS, ToyModel

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.decoding import generator as generator_module
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.decoding.generator import Generator, plan_decoding_batches
from relu_nmt.decoding.translations import SourceSentence


@pytest.mark.parametrize(
    "settings", [{}, {"max_tokens": 30}, {"batch_size": 4}, {"max_tokens": 1, "batch_size": 3}]
)
def test_batches_hold_every_sentence_once_and_keep_the_limits(settings):
    lengths = np.random.default_rng(0).integers(1, 20, 100)
    config = GenerationConfig(beam=2, **settings)
    batches = plan_decoding_batches(lengths, config, vocab_size=10)
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
    for device, most in (("cpu", 2**22), ("cuda", 2**26)):
        batches = plan_decoding_batches(lengths, GenerationConfig(), 32000, device)
        assert 0.8 * most < max(map(len, batches)) * 5 * 32000 <= most


def test_every_worker_has_batches_and_they_share_the_memory():
    sentences, documents = np.full(100, 20), np.full(100, 1024)

    def batches_of(lengths, workers, **settings):
        config = GenerationConfig(**settings)
        return plan_decoding_batches(lengths, config, vocab_size=8000, workers=workers)

    assert len(batches_of(sentences, 1)) == 1
    assert len(batches_of(sentences, 4)) >= 8
    assert max(map(len, batches_of(sentences, 64))) == 8
    assert len(batches_of(sentences, 4, batch_size=100)) == 1
    assert {len(batch) for batch in batches_of(documents, 1)} <= {11, 1}
    assert max(len(batch) for batch in batches_of(documents, 4)) == 2


def test_workers_are_as_many_as_there_would_be_threads(monkeypatch):
    sources = [SourceSentence(np.array([4, 5, EOS]))] * 40
    used = []

    def in_order(function, tasks, workers, prepare, job):
        used.append(workers)
        return ((task, job.run(task)) for task in tasks)

    monkeypatch.setattr(generator_module, "ordered_map", in_order)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for workers in (1, 0, 2):
        config = GenerationConfig(beam=2, max_len_b=6, workers=workers)
        Generator([ToyModel()], config, Dictionary()).translate(sources)
    assert used == [3, 2]


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("number", [2, 3, 7, 40])
def test_workers_get_all_batches_a_few_at_a_time(number, workers):
    tasks = generator_module._dealt([np.array([i]) for i in range(number)], workers)
    assert sorted(np.concatenate([batch for task in tasks for batch in task])) == list(
        range(number)
    )
    sizes = [len(task) for task in tasks]
    assert max(sizes) <= generator_module.MOST_BATCHES and min(sizes) >= 1
    assert len(tasks) >= min(number, workers)
    assert max(sizes[:workers]) - min(sizes[:workers]) <= 1


def test_results_come_in_the_order_of_the_sources_whatever_the_batches():
    rng = np.random.default_rng(1)
    sources = [np.append(rng.integers(4, 7, rng.integers(0, 9)), EOS) for _ in range(40)]
    results, counts = {}, []
    for batch_size in (1, 7, 40):
        config = GenerationConfig(beam=3, nbest=2, max_len_b=6, batch_size=batch_size)
        generator = Generator([ToyModel()], config, Dictionary())
        found = generator.translate(list(map(SourceSentence, sources)), on_progress=counts.append)
        results[batch_size] = [[h.tokens.tolist() for h in hypotheses] for hypotheses in found]
    assert results[1] == results[7] == results[40]
    assert sum(counts) == 3 * sum(len(s) > 1 for s in sources)
    for source, found in zip(sources, results[1], strict=True):
        if len(source) == 1:
            assert found == [[EOS]]


def test_sampling_numbers_sentences_through_the_whole_input():
    sources = [SourceSentence(np.array([4, 5, 2]))] * 6
    config = GenerationConfig(sampling=True, beam=1, max_len_b=9, batch_size=2)
    generator = Generator([ToyModel(sharpness=0.5)], config, Dictionary())

    def sample(sources, first_id):
        found = generator.translate(sources, first_id)
        return [h[0].tokens.tolist() for h in found]

    whole = sample(sources, 0)
    assert len({tuple(tokens) for tokens in whole}) > 1
    assert sample(sources[:4], 0) + sample(sources[4:], 4) == whole


def test_references_are_scored_in_order():
    rng = np.random.default_rng(2)
    pairs = [
        [np.append(rng.integers(4, 7, rng.integers(0, 9)), EOS) for _ in range(2)]
        for _ in range(15)
    ]
    config = GenerationConfig(score_reference=True, batch_size=4)
    generator = Generator([ToyModel()], config, Dictionary())
    sources, targets = map(list, zip(*pairs, strict=True))
    found = generator.translate([SourceSentence(own, reference=target) for own, target in pairs])
    for source, target, [h] in zip(sources, targets, found, strict=True):
        assert h.tokens.tolist() == target.tolist()
        [[alone]] = generator.score(torch.tensor(source)[None], torch.tensor(target)[None])
        assert h.score == pytest.approx(alone.score, abs=1e-5)

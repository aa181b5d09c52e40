import itertools

import numpy as np
import pytest
import torch
from toy_models import ToyModel, generator_of, tokens_of

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import OutOfMemoryError
from relu_nmt.io import memory
from relu_nmt.translation.search import generator as generator_module
from relu_nmt.translation.search.reference_scores import score_references
from relu_nmt.translation.search.scoring import build_scorer
from relu_nmt.translation.search.translations import SourceSentence
from tests.tiny import EOS


def test_workers_are_as_many_as_there_would_be_threads(monkeypatch):
    sources = [SourceSentence(np.array([4, 5, EOS]))] * 40
    used = []

    def in_order(function, tasks, workers):
        used.append(workers)
        return ((task, function(task)) for task in tasks)

    monkeypatch.setattr(generator_module, "ordered_map", in_order)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for workers in (1, 0, 2):
        generator_of(ToyModel(), beam=2, max_len_b=6, workers=workers).translate(sources)
    assert used == [3, 2]


def random_rows(count, seed):
    """Return ids of up to eight words and the end symbol for each row."""
    rng = np.random.default_rng(seed)
    return [np.append(rng.integers(4, 7, rng.integers(0, 9)), EOS) for _ in range(count)]


def test_results_have_the_order_of_the_sources_in_any_batches():
    sources = random_rows(40, seed=1)
    results = {}
    counts = []
    for batch_size in (1, 7, 40):
        generator = generator_of(ToyModel(), beam=3, nbest=2, max_len_b=6, batch_size=batch_size)
        sentences = list(map(SourceSentence, sources))
        translations = generator.translate(sentences, on_progress=counts.append)
        results[batch_size] = list(map(tokens_of, translations))
    assert results[1] == results[7] == results[40]
    assert sum(counts) == 3 * len(sources)
    for source, translations in zip(sources, results[1], strict=True):
        if len(source) == 1:
            assert translations == [(EOS,)]


def test_sampling_numbers_sentences_through_the_whole_input():
    sources = [SourceSentence(np.array([4, 5, 2]))] * 6
    model = ToyModel(sharpness=0.5)
    generator = generator_of(model, sampling=True, beam=1, max_len_b=9, batch_size=2)

    def sample(sources, first_id):
        translations = generator.translate(sources, first_id)
        return tokens_of(itertools.chain(*translations))

    tokens_at_once = sample(sources, 0)
    assert len(set(tokens_at_once)) > 1
    assert sample(sources[:4], 0) + sample(sources[4:], 4) == tokens_at_once


def test_a_search_beyond_the_memory_is_refused_with_its_flags(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 0)
    monkeypatch.setattr(memory, "UNCHECKED_BYTES", 0)
    source = SourceSentence(np.array([4, 5, EOS]))
    generator = generator_of(ToyModel(), beam=3)
    with pytest.raises(OutOfMemoryError, match=r"\(--beam 3\).*a smaller --max-tokens"):
        generator.translate([source])


def test_references_are_scored_in_order():
    sources = random_rows(15, seed=2)
    targets = random_rows(15, seed=3)
    generator = generator_of(ToyModel(), score_reference=True, batch_size=4)
    scorer = build_scorer(generator.config)
    pairs = zip(sources, targets, strict=True)
    scored = generator.translate([SourceSentence(row, reference=target) for row, target in pairs])
    for source, target, [h] in zip(sources, targets, scored, strict=True):
        assert h.ids.tolist() == target.tolist()
        source = torch.tensor(source)[None]
        target = torch.tensor(target)[None]
        [[alone]] = score_references(generator.ensemble, scorer, Dictionary(), source, target)
        assert h.score == pytest.approx(alone.score, abs=1e-5)

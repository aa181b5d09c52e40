import numpy as np
import pytest
import torch
from toy_models import EOS, ToyModel

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import OutOfMemoryError
from relu_nmt.io import process
from relu_nmt.translation.search import generator as generator_module
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.scoring import build_scorer, score_references
from relu_nmt.translation.search.translations import SourceSentence
from tests.stepping import Generator


def test_workers_are_as_many_as_there_would_be_threads(monkeypatch):
    sources = [SourceSentence(np.array([4, 5, EOS]))] * 40
    used = []

    def in_order(function, tasks, workers, prepare, translate):
        used.append(workers)
        return ((task, translate(task)) for task in tasks)

    monkeypatch.setattr(generator_module, "ordered_map", in_order)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for workers in (1, 0, 2):
        config = GenerationConfig(beam=2, max_len_b=6, workers=workers)
        Generator([ToyModel()], config, Dictionary()).translate(sources)
    assert used == [3, 2]


def test_results_have_the_order_of_the_sources_in_any_batches():
    rng = np.random.default_rng(1)
    sources = [np.append(rng.integers(4, 7, rng.integers(0, 9)), EOS) for _ in range(40)]
    results, counts = {}, []
    for batch_size in (1, 7, 40):
        config = GenerationConfig(beam=3, nbest=2, max_len_b=6, batch_size=batch_size)
        generator = Generator([ToyModel()], config, Dictionary())
        sentences = list(map(SourceSentence, sources))
        translations = generator.translate(sentences, on_progress=counts.append)
        results[batch_size] = [[h.tokens.tolist() for h in nbest] for nbest in translations]
    assert results[1] == results[7] == results[40]
    assert sum(counts) == 3 * len(sources)
    for source, translations in zip(sources, results[1], strict=True):
        if len(source) == 1:
            assert translations == [[EOS]]


def test_sampling_numbers_sentences_through_the_whole_input():
    sources = [SourceSentence(np.array([4, 5, 2]))] * 6
    config = GenerationConfig(sampling=True, beam=1, max_len_b=9, batch_size=2)
    generator = Generator([ToyModel(sharpness=0.5)], config, Dictionary())

    def sample(sources, first_id):
        translations = generator.translate(sources, first_id)
        return [h[0].tokens.tolist() for h in translations]

    tokens_at_once = sample(sources, 0)
    assert len({tuple(tokens) for tokens in tokens_at_once}) > 1
    assert sample(sources[:4], 0) + sample(sources[4:], 4) == tokens_at_once


def test_a_search_beyond_the_memory_is_refused_with_its_flags(monkeypatch):
    monkeypatch.setattr(process, "free_memory", lambda: 0)
    monkeypatch.setattr(process, "UNCHECKED_BYTES", 0)
    source = SourceSentence(np.array([4, 5, EOS]))
    generator = Generator([ToyModel()], GenerationConfig(beam=3), Dictionary())
    with pytest.raises(OutOfMemoryError, match=r"\(--beam 3\).*a smaller --max-tokens"):
        generator.translate([source])


def test_references_are_scored_in_order():
    rng = np.random.default_rng(2)
    pairs = [
        [np.append(rng.integers(4, 7, rng.integers(0, 9)), EOS) for _ in range(2)]
        for _ in range(15)
    ]
    config = GenerationConfig(score_reference=True, batch_size=4)
    generator = Generator([ToyModel()], config, Dictionary())
    sources, targets = map(list, zip(*pairs, strict=True))
    scored = generator.translate([SourceSentence(row, reference=target) for row, target in pairs])
    for source, target, [h] in zip(sources, targets, scored, strict=True):
        assert h.tokens.tolist() == target.tolist()
        rows = torch.tensor(source)[None], torch.tensor(target)[None]
        [[alone]] = score_references(generator.ensemble, build_scorer(config), Dictionary(), *rows)
        assert h.score == pytest.approx(alone.score, abs=1e-5)

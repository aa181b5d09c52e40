"""Translations with as many sentences as their sources, whatever the search."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_models import (
    SEPARATOR,
    SEPARATORS,
    ToyModel,
    all_outputs,
    hypothesis_scores,
    log_prob_of,
    ranked_outputs,
    tokens_of,
    toy_models,
)

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.translation_batches import pad_rows
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import SourceSentence
from tests.stepping import Generator
from tests.tiny import EOS, PAD


def source_of(sentences):
    """Return the ids of sentences of so many words."""
    ids = []
    for i, length in enumerate(sentences):
        ids += [*(5 + np.arange(i, i + length) % 2), SEPARATOR]
    return np.array([*ids, EOS])


def is_counted(tokens, number):
    """Tell whether all ``number`` sentences end in a separator, and nothing follows them."""
    tokens = list(tokens)
    ends = [SEPARATOR, EOS]
    return tokens[-2:] == ends and tokens.count(SEPARATOR) == number and tokens.count(EOS) == 1


def generator_of(models, separators=SEPARATORS, **options):
    return Generator(models, GenerationConfig(**options), Dictionary(), separators=separators)


BEAM_SEARCH = st.fixed_dictionaries({"stop_rule": st.sampled_from(["ahead", "full", "exact"])})
DIVERSE = st.fixed_dictionaries(
    {
        "diverse_beam_groups": st.sampled_from([1, 2, 4]),
        "diverse_beam_strength": st.sampled_from([0.0, 0.5, 20.0]),
    }
)
GREEDY = st.just({"beam": 1, "nbest": 1})
SAMPLING = st.fixed_dictionaries(
    {
        "sampling": st.just(True),
        "sampling_topk": st.sampled_from([-1, 1, 3]),
        "sampling_topp": st.sampled_from([-1.0, 0.3, 1.0]),
        "temperature": st.sampled_from([0.05, 1.0, 3.0]),
        "seed": st.integers(0, 9),
    }
)
SHARED = st.fixed_dictionaries(
    {
        "lenpen": st.sampled_from([0.0, 1.0, 3.0, -1.0]),
        "unkpen": st.sampled_from([0.0, -9.0, float("inf")]),
        "max_len_a": st.sampled_from([0.0, 0.3, 1.5]),
        "max_len_b": st.sampled_from([1, 3, 9]),
    }
)
LENGTHS_OR_BLOCKING = st.one_of(
    st.fixed_dictionaries({"min_len": st.integers(0, 9)}),
    st.fixed_dictionaries({"no_repeat_ngram_size": st.integers(1, 3)}),
)
GROUPS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=4)
TARGETS = st.lists(st.sampled_from([5, 6, SEPARATOR]), max_size=8)


@st.composite
def searches(draw):
    """Draw the settings of any search."""
    search = {"beam": 4, "nbest": draw(st.integers(1, 4)), **draw(SHARED)}
    search |= draw(st.one_of(BEAM_SEARCH, DIVERSE, GREEDY, SAMPLING))
    search |= draw(LENGTHS_OR_BLOCKING)
    search["max_len_b"] = max(search["max_len_b"], search.get("min_len", 1))
    return search


@given(GROUPS, searches(), st.integers(0, 99), st.integers(1, 2))
def test_every_search_writes_as_many_sentences_as_it_reads(groups, search, seed, num_models):
    models = toy_models(*range(seed, seed + num_models), sharpness=3.0)
    sources = list(map(source_of, groups))
    outputs = generator_of(models, **search).generate(pad_rows(sources, PAD))
    for sentences, source, hypotheses in zip(groups, sources, outputs, strict=True):
        assert hypotheses
        limit = int(search["max_len_a"] * len(source)) + search["max_len_b"]
        for hypothesis in hypotheses:
            assert is_counted(hypothesis.ids, len(sentences))
            assert len(hypothesis.ids) - 1 <= max(limit, len(sentences))
            assert len(hypothesis.ids) - 1 >= search.get("min_len", 1)
            assert np.isfinite(hypothesis.positional_scores).all()
        if "sampling" not in search:  # the numbers drawn are the sentence's own
            [alone] = generator_of(models, **search).generate(torch.from_numpy(source)[None])
            assert tokens_of(alone) == tokens_of(hypotheses)


@given(GROUPS, searches(), st.integers(0, 99), st.data())
def test_sentences_of_forced_beginnings_are_counted(groups, search, seed, data):
    prefix_size = data.draw(st.integers(0, 6))
    sources = []
    for sentences in groups:
        reference = np.array([*data.draw(TARGETS), EOS])
        num_before = data.draw(st.integers(0, len(sentences) - 1))
        before = [*data.draw(st.lists(st.sampled_from([5, 6]), max_size=4)), SEPARATOR] * num_before
        context = np.array(before, dtype=np.int64)
        sources.append(SourceSentence(source_of(sentences), [], reference, context))
    model = ToyModel(seed=seed, sharpness=3.0)
    translations = generator_of([model], prefix_size=prefix_size, **search).translate(sources)
    for sentences, source, hypotheses in zip(groups, sources, translations, strict=True):
        assert hypotheses
        for hypothesis in hypotheses:
            assert is_counted([*source.context, *hypothesis.ids], len(sentences))
            forced = source.reference[:prefix_size].tolist()
            common = min(len(forced), len(hypothesis.ids) - 2)
            if SEPARATOR not in forced and EOS not in forced and not hypothesis.reached_limit:
                # No room is needed for the separators, so nothing comes before the prefix.
                limit = search["max_len_a"] * len(source.ids) + search["max_len_b"]
                if len(source.context) + common + len(sentences) < limit:
                    assert hypothesis.ids[:common].tolist() == forced[:common]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("lenpen", [0.0, 1.0, 2.0])
def test_a_wide_beam_finds_the_best_of_all_outputs_with_so_many_sentences(number, lenpen):
    limit = 5
    source = torch.from_numpy(source_of([1] * number))
    counted = [output for output in all_outputs(7, limit) if is_counted(output, number)]
    for seed in range(3):
        model = ToyModel(seed=seed)
        scores = ranked_outputs(model, source, counted, lenpen)
        search = {"beam": 600, "nbest": 5, "lenpen": lenpen, "stop_rule": "exact"}
        [outputs] = generator_of([model], max_len_b=limit, **search).generate(source[None])
        assert tokens_of(outputs) == list(scores)[:5]
        # The score is the model's own, whatever it was not allowed.
        best_scores = list(scores.values())[:5]
        np.testing.assert_allclose(hypothesis_scores(outputs), best_scores, atol=1e-5)


@pytest.mark.parametrize(
    "search",
    [
        {"beam": 4, "nbest": 4},
        {"beam": 1},
        {"beam": 3, "sampling": True},
        {"beam": 4, "diverse_beam_groups": 2},
        {"beam": 4, "no_repeat_ngram_size": 2, "min_len": 3},
    ],
)
def test_a_free_sentence_count_changes_nothing_in_the_search(search):
    sources = pad_rows([source_of([2, 1, 3]), source_of([1]), source_of([0, 2])], PAD)
    numbers = []
    for seed in range(6):
        model = ToyModel(seed=seed)
        shared = {"max_len_b": 9, **search}
        free = generator_of([model], free_sentence_count=True, **shared).generate(sources)
        plain = generator_of([model], separators=None, **shared).generate(sources)
        for hypotheses, other in zip(free, plain, strict=True):
            for a, b in zip(hypotheses, other, strict=True):
                assert a.ids.tolist() == b.ids.tolist()
                assert a.score == b.score
        numbers += [list(best.ids).count(SEPARATOR) for best, *_ in free]
    assert set(numbers) - {1, 2, 3}  # left alone, the models do not count


def test_the_longest_output_grows_to_hold_all_separators():
    source = torch.from_numpy(source_of([3] * 8))[None]
    [[hypothesis]] = generator_of([ToyModel()], beam=3, max_len_b=2).generate(source)
    assert hypothesis.ids.tolist() == [SEPARATOR] * 8 + [EOS]
    assert hypothesis.reached_limit


def test_a_context_costs_nothing_at_the_limit_of_separators():
    context = np.array([5, 6, SEPARATOR])
    source = SourceSentence(source_of([2, 1, 1]), context=context)
    model = ToyModel(seed=1)
    [[hypothesis]] = generator_of([model], beam=3, max_len_b=1).translate([source])
    assert hypothesis.ids.tolist() == [SEPARATOR, SEPARATOR, EOS]
    assert hypothesis.reached_limit
    scores = log_prob_of(model, torch.from_numpy(source.ids), np.append(context, hypothesis.ids))
    np.testing.assert_allclose(hypothesis.positional_scores, scores[len(context) :], atol=1e-5)
    assert hypothesis.score == pytest.approx(float(scores[len(context) :].mean()), abs=1e-5)


def test_repeated_ngrams_do_not_keep_sentences_from_ending():
    source = torch.from_numpy(source_of([1] * 6))[None]
    for size in (1, 2, 3):
        search = {"beam": 3, "max_len_b": 40, "no_repeat_ngram_size": size}
        [[hypothesis]] = generator_of([ToyModel(vocab_size=9, seed=3)], **search).generate(source)
        assert is_counted(hypothesis.ids, 6)
        words = [t for t in hypothesis.ids.tolist() if t not in (SEPARATOR, EOS)]
        if size == 1:
            assert len(words) == len(set(words))


def test_a_model_that_cannot_write_as_much_is_an_error():
    model = ToyModel()
    model.most["target", False] = 5
    source = torch.from_numpy(source_of([1] * 5))[None]
    with pytest.raises(ConfigError, match="the model can write 4; give a smaller --max-doc-tokens"):
        generator_of([model]).generate(source)
    [[h]] = generator_of([model], beam=2).generate(torch.from_numpy(source_of([1] * 4))[None])
    assert h.ids.tolist() == [SEPARATOR] * 4 + [EOS]


def test_nothing_to_count_is_an_error():
    with pytest.raises(ConfigError, match=r"--free-sentence-count: .*--sentence-separator"):
        generator_of([ToyModel()], separators=None, free_sentence_count=True)


def test_scores_of_references_do_not_depend_on_the_sentence_count():
    reference = np.array([5, SEPARATOR, 6, SEPARATOR, 5, EOS])  # too many sentences
    source = SourceSentence(source_of([2]), reference=reference)
    counted = generator_of([ToyModel()], SEPARATORS, score_reference=True).translate([source])
    plain = generator_of([ToyModel()], None, score_reference=True).translate([source])
    assert counted[0][0].score == plain[0][0].score

"""Terms that translations must have, whatever the search."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from toy_models import (
    SEPARATOR,
    SEPARATORS,
    ToyModel,
    all_outputs,
    generator_of,
    hypothesis_scores,
    log_prob_of,
    ranked_outputs,
    tokens_of,
    toy_models,
)

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.separators import Separators
from relu_nmt.data.translation_batches import pad_rows
from relu_nmt.errors import ConfigError
from relu_nmt.tokenization.base import JoinedPieces
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.search.banned_terms import BannedTerms
from relu_nmt.translation.search.forced_terms import ForcedTerms
from relu_nmt.translation.search.symbol_texts import SymbolTexts
from relu_nmt.translation.search.translations import SourceSentence
from tests.tiny import EOS, PAD

WORDS = st.integers(4, 6)
TERMS = st.lists(st.lists(WORDS, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple)
FORCED = st.builds(ForcedTerms, TERMS, st.booleans())


def orders_of(forced):
    """Return the orders in which the terms may occur."""
    return {forced.terms} if forced.ordered else set(itertools.permutations(forced.terms))


def has_terms(tokens, forced):
    """Tell by trying all places whether the terms occur and do not overlap."""
    return any(_follow(tuple(tokens), order) for order in orders_of(forced))


def _follow(tokens, terms):
    # The first place of each term leaves most room to the terms behind it.
    begin = 0
    for term in terms:
        starts = range(begin, len(tokens) - len(term) + 1)
        start = next((i for i in starts if tokens[i : i + len(term)] == term), None)
        if start is None:
            return False
        begin = start + len(term)
    return True


@given(st.lists(WORDS, max_size=9), FORCED)
def test_progress_knows_whether_terms_occur(tokens, forced):
    progress = forced.start
    for token in tokens:
        missing = progress.num_missing
        assert progress.advance(token).num_missing >= missing - 1
        progress = progress.advance(token)
    assert (progress.num_missing == 0) == has_terms(tokens, forced)


@given(st.lists(WORDS, max_size=5), FORCED)
def test_missing_is_the_fewest_tokens_to_write(tokens, forced):
    progress = forced.start
    for token in tokens:
        progress = progress.advance(token)

    def has_room(number):
        tails = itertools.product(range(4, 7), repeat=number)
        return any(has_terms([*tokens, *tail], forced) for tail in tails)

    number = 0
    while number < 6 and not has_room(number):
        number += 1
    assert progress.num_missing == number or number > 5


KINDS = {"sentencepiece": ["▁a", "▁b", "a", "b", ",", "▁"], "@@ ": ["a", "b", "a@@", "b@@", ","]}


def texts_of(kind):
    """Return a dictionary with pieces of words, and their texts."""
    words = Dictionary(KINDS[kind])
    return words, SymbolTexts(TextPipeline("en", subword=JoinedPieces(kind)), words)


def has_whole_terms(tokens, forced):
    """Tell by trying all places whether the terms occur as whole words and do not overlap."""
    texts = forced.texts
    # A symbol between all words shows where they begin and end.
    split = [EOS]
    for before, token in itertools.pairwise([EOS, *tokens, EOS]):
        is_joined = texts.stays_open[before] and texts.continues[token]
        split += [token] if is_joined else [-2, token]
    return any(_follow_whole(split, order) for order in orders_of(forced))


def _follow_whole(split, terms):
    begin = 0
    for term in terms:
        plain = [(i, token) for i, token in enumerate(split) if token != -2]
        for first in range(len(plain) - len(term) + 1):
            positions, tokens = zip(*plain[first : first + len(term)], strict=True)
            is_whole = split[positions[0] - 1] == -2 == split[(positions[-1] + 1) % len(split)]
            if tokens == term and positions[0] >= begin and is_whole:
                begin = positions[-1] + 1
                break
        else:
            return False
    return True


PIECES = st.integers(4, 8)
PIECE_TERMS = st.lists(st.lists(PIECES, min_size=1, max_size=2).map(tuple), max_size=3).map(tuple)


@given(st.sampled_from(list(KINDS)), st.lists(PIECES, max_size=9), PIECE_TERMS, st.booleans())
def test_progress_knows_whether_terms_occur_as_whole_words(kind, tokens, terms, ordered):
    forced = ForcedTerms(terms, ordered, texts=texts_of(kind)[1])
    progress = forced.start
    for token in tokens:
        progress = progress.advance(token)
    assert (progress.num_missing == 0) == has_whole_terms(tokens, forced)


@st.composite
def searches(draw):
    beam = draw(st.sampled_from([1, 2, 5]))
    return {
        "beam": beam,
        "nbest": draw(st.integers(1, beam)),
        "stop_rule": draw(st.sampled_from(["ahead", "full", "exact"])),
        "lenpen": draw(st.sampled_from([0.0, 1.0, -1.0])),
        "max_len_b": draw(st.integers(1, 9)),
        "min_len": draw(st.integers(0, 1)),
        "no_repeat_ngram_size": draw(st.integers(0, 2)),
        "unkpen": draw(st.sampled_from([0.0, float("inf")])),
    }


SOURCES = st.lists(
    st.tuples(st.lists(WORDS, min_size=1, max_size=4), FORCED), min_size=1, max_size=4
)


def source_of(words, forced=None, **options):
    return SourceSentence(np.array([*words, EOS]), [], forced=forced, **options)


@given(SOURCES, searches(), st.integers(0, 99), st.integers(1, 2), st.booleans())
def test_terms_are_in_every_hypothesis(sources, search, seed, num_models, bans):
    models = toy_models(*range(seed, seed + num_models), sharpness=3.0)
    words = Dictionary(list("abc"))
    banned = None
    if bans:
        banned = BannedTerms(SymbolTexts(TextPipeline("en"), words), ["b", "a c"])
    sources = [source_of(*source, banned=banned) for source in sources]
    generator = generator_of(models, words, **search)
    translations = generator.translate(sources)
    for source, hypotheses in zip(sources, translations, strict=True):
        assert hypotheses
        outputs = tokens_of(hypotheses)
        assert len(set(outputs)) == len(outputs)
        needed = sum(map(len, source.forced.terms))
        for best, output in zip(hypotheses, outputs, strict=True):
            assert output[-1] == EOS and EOS not in output[:-1]
            assert has_terms(output, source.forced)
            assert len(output) - 1 <= max(search["max_len_b"], needed)
            # The scores are the models' own.
            model_log_probs = torch.stack(
                [log_prob_of(m, torch.from_numpy(source.ids), output) for m in models]
            )
            expected = model_log_probs.logsumexp(0) - np.log(num_models)
            assert np.allclose(best.positional_scores, expected, atol=1e-4)
            total = float(expected.sum()) / len(output) ** search["lenpen"]
            assert best.score == pytest.approx(total, rel=1e-5, abs=1e-4)
        # The same in other company.
        [alone] = generator.translate([source])
        assert tokens_of(alone) == outputs


@given(st.sampled_from(list(KINDS)), PIECE_TERMS, st.booleans(), searches(), st.integers(0, 99))
def test_whole_words_are_in_every_hypothesis(kind, terms, ordered, search, seed):
    words, texts = texts_of(kind)
    # A term of BPE ends with the end of a word.
    assume(kind != "@@ " or not any(texts.stays_open[term[-1]] for term in terms))
    forced = ForcedTerms(terms, ordered, texts=texts)
    source = source_of([4, 5], forced)
    model = ToyModel(len(words), seed, sharpness=3.0)
    [hypotheses] = generator_of(model, words, **search).translate([source])
    assert hypotheses
    for hypothesis in hypotheses:
        assert has_whole_terms(hypothesis.ids[:-1].tolist(), forced)
        assert len(hypothesis.ids) - 1 <= max(search["max_len_b"], forced.num_tokens)


@pytest.mark.parametrize("ordered", [True, False])
def test_the_best_of_all_outputs_with_the_terms_is_found(ordered):
    differs = 0
    for seed, terms in itertools.product(range(3), [((5,), (4,)), ((6, 4), (4, 5)), ((4,), (4,))]):
        model = ToyModel(seed=seed)
        forced = ForcedTerms(terms, ordered)
        settings = {"beam": 300, "nbest": 3, "max_len_b": 4, "stop_rule": "exact", "lenpen": 0.5}
        source = source_of([5, 4, 6], forced)
        [hypotheses] = generator_of(model, **settings).translate([source])
        ranked = list(ranked_outputs(model, torch.from_numpy(source.ids), all_outputs(7, 4), 0.5))
        best = [output for output in ranked if has_terms(output, forced)][:3]
        assert tokens_of(hypotheses) == best
        differs += best[0] != ranked[0]
    assert differs > 3


@given(st.integers(0, 99), searches(), FORCED)
def test_sentences_without_terms_are_translated_as_before(seed, search, forced):
    generator = generator_of(ToyModel(seed=seed), **search)
    sources = [source_of([4, 5]), source_of([6], forced), source_of([5, 5, 6])]
    free = generator.translate([source_of([4, 5]), source_of([6]), source_of([5, 5, 6])])
    translations = generator.translate(sources)
    for i in (0, 2):
        assert tokens_of(translations[i]) == tokens_of(free[i])
        assert hypothesis_scores(translations[i]) == hypothesis_scores(free[i])


def test_terms_that_the_best_translation_has_change_nothing():
    num_equal = 0
    for seed in range(12):
        generator = generator_of(ToyModel(seed=seed), beam=5, max_len_b=8)
        [[free]] = generator.translate([source_of([4, 5])])
        words = free.ids[:-1].tolist()
        forced = ForcedTerms((tuple(words[:2]), tuple(words[2:])) if len(words) > 2 else ())
        [[hypothesis]] = generator.translate([source_of([4, 5], forced)])
        assert hypothesis.score >= free.score - 1e-6
        num_equal += hypothesis.ids.tolist() == free.ids.tolist() and bool(forced.terms)
    assert num_equal > 3


@given(st.integers(0, 99), FORCED, st.lists(WORDS, max_size=6), st.data())
def test_a_prefix_may_have_the_terms_but_not_a_context(seed, forced, prefix, data):
    num_context = data.draw(st.integers(0, len(prefix)))
    context = np.array(prefix[:num_context], int)
    forced_prefix = np.array(prefix[num_context:], int)
    source = source_of([4, 5], forced, context=context, prefix=forced_prefix)
    generator = generator_of(ToyModel(seed=seed), beam=3, nbest=3, max_len_b=5)
    [hypotheses] = generator.translate([source])
    for hypothesis in hypotheses:
        tokens = hypothesis.ids.tolist()
        assert tokens[: len(forced_prefix)] == forced_prefix.tolist()
        assert has_terms(tokens, forced)


@given(st.integers(0, 99), FORCED, st.integers(1, 3), st.integers(1, 9))
def test_terms_and_the_number_of_sentences(seed, forced, number, max_len_b):
    terms = tuple(t for t in forced.terms if SEPARATOR not in t)
    forced = ForcedTerms(terms, forced.ordered)
    source = source_of([5, SEPARATOR] * number, forced)
    model = ToyModel(seed=seed)
    generator = generator_of(model, separators=SEPARATORS, beam=3, max_len_b=max_len_b)
    [[hypothesis]] = generator.translate([source])
    tokens = hypothesis.ids.tolist()
    assert tokens.count(SEPARATOR) == number and tokens[-2:] == [SEPARATOR, EOS]
    assert has_terms(tokens, forced)


def sentences_of(tokens):
    """Return the words of each sentence of an output, and the tokens behind the last."""
    words, *later = map(list, np.split(tokens, np.flatnonzero(tokens == SEPARATOR)))
    return [words, *(part[1:] for part in later)]


def is_obeyed(outputs, sentences):
    """Tell whether each sentence begins with its prefix and has its terms."""
    for words, (prefix, forced) in zip(outputs, sentences, strict=True):
        if words[: len(prefix)] != list(prefix) or not has_terms(words, forced):
            return False
    return True


OTHER_WORDS = st.integers(5, 7)
OTHER_TERMS = st.lists(st.lists(OTHER_WORDS, min_size=1, max_size=2).map(tuple), max_size=3).map(
    tuple
)
SENTENCES = st.lists(
    st.tuples(
        st.lists(OTHER_WORDS, max_size=2).map(tuple),
        st.builds(ForcedTerms, OTHER_TERMS, st.booleans()),
    ),
    min_size=1,
    max_size=4,
)


def window_of(sentences, **options):
    """Return a source of as many sentences as there are prefixes and terms."""
    (prefix, first), *following = sentences
    later = tuple(replace(forced, prefix=text) for text, forced in following)
    words = [5, SEPARATOR] * len(sentences)
    first_prefix = np.array(prefix, dtype=int)
    return source_of(words, replace(first, later=later), prefix=first_prefix, **options)


@given(st.lists(SENTENCES, min_size=1, max_size=3), searches(), st.integers(0, 99))
def test_each_sentence_has_its_prefix_and_its_terms(windows, search, seed):
    model = ToyModel(8, seed=seed, sharpness=3.0)
    sources = list(map(window_of, windows))
    generator = generator_of(model, separators=SEPARATORS, **search)
    translations = generator.translate(sources)
    for source, sentences, hypotheses in zip(sources, windows, translations, strict=True):
        for hypothesis in hypotheses:
            *outputs, end = sentences_of(hypothesis.ids)
            assert len(outputs) == len(sentences) and end == [EOS]
            assert is_obeyed(outputs, sentences)
            expected = log_prob_of(model, torch.from_numpy(source.ids), hypothesis.ids.tolist())
            assert np.allclose(hypothesis.positional_scores, expected, atol=1e-4)
        [alone] = generator.translate([source])
        assert tokens_of(alone) == tokens_of(hypotheses)


def test_the_best_of_all_outputs_with_terms_of_each_sentence_is_found():
    differs = 0
    none = ForcedTerms()
    other = ForcedTerms(((5,),))
    settings = {"beam": 400, "max_len_b": 5, "stop_rule": "exact", "lenpen": 0.5}
    two_sentences = [
        output
        for output in all_outputs(7, 5)
        if output[-2:] == [SEPARATOR, EOS] and output.count(SEPARATOR) == 2
    ]
    for seed, sentences in itertools.product(
        range(4),
        [[((), other), ((), none)], [((), none), ((), other)], [((6,), none), ((6,), none)]],
    ):
        model = ToyModel(seed=seed)
        source = window_of(sentences)
        generator = generator_of(model, separators=SEPARATORS, **settings)
        [[hypothesis]] = generator.translate([source])
        ranked = list(ranked_outputs(model, torch.from_numpy(source.ids), two_sentences, 0.5))
        best = next(
            output for output in ranked if is_obeyed(sentences_of(np.array(output))[:2], sentences)
        )
        assert tuple(hypothesis.ids.tolist()) == best
        differs += best != ranked[0]
    assert differs > 3


def test_terms_go_with_plain_beam_search_alone():
    source = source_of([4], ForcedTerms(((5,),)))
    for other in ({"sampling": True}, {"diverse_beam_groups": 5}, {"beam_threshold": 1.0}):
        generator = generator_of(ToyModel(), **other)
        flag = "--" + next(iter(other)).replace("_", "-")
        with pytest.raises(ConfigError, match=f"{flag}: terms can be forced in plain beam search"):
            generator.translate([source])


def test_forced_terms_lengthen_the_output_up_to_the_limit_of_the_model():
    model = ToyModel()
    model.most["target", False] = 4
    generator = generator_of(model, max_len_b=2)
    [[hypothesis]] = generator.translate([source_of([4], ForcedTerms(((5, 6, 5),)))])
    assert hypothesis.ids.tolist() == [5, 6, 5, EOS]
    with pytest.raises(ConfigError, match=r"4 tokens are needed .* the model can write 3"):
        generator.translate([source_of([4], ForcedTerms(((5, 6), (5, 6))))])


def test_prefixes_lengthen_the_output_up_to_the_limit_of_the_model():
    model = ToyModel()
    model.most["target", False] = 4
    generator = generator_of(model, max_len_b=2)
    sources = [source_of([4], prefix=np.array([5, 6, 5])), source_of([4], prefix=np.array([6]))]
    [[long], [short]] = generator.translate(sources)
    assert long.ids.tolist() == [5, 6, 5, EOS] and long.reached_limit
    assert len(short.ids) <= 3
    with pytest.raises(ConfigError, match=r"4 tokens are needed .* the model can write 3"):
        generator.translate([source_of([4], prefix=np.array([5, 6, 5, 6]))])


def test_a_single_sentence_without_separator_is_as_long_as_the_model_can_write():
    model = ToyModel()
    model.most["target", True] = 4
    generator = generator_of(model, separators=Separators(6, 6, alone=False), max_len_b=9)
    [[hypothesis]] = generator.translate([source_of([4], prefix=np.array([5, 5, 5, 5]))])
    assert hypothesis.ids.tolist() == [5, 5, 5, EOS]


def test_tokens_of_no_term_make_no_new_progress():
    """The source holds all progress, so else long translations would need much memory."""
    progress = ForcedTerms(((5, 6), (7,))).start
    assert progress.advance(4) is progress
    begun = progress.advance(5)
    assert begun.advance(4) == progress and begun.advance(6).advance(4) is begun.advance(6)


def test_many_terms_that_overlap_are_followed_in_bounded_time():
    terms = tuple(itertools.product([4, 5], repeat=4))
    progress = ForcedTerms(terms, ordered=False).start
    for token in np.random.default_rng(0).integers(4, 6, 200).tolist():
        progress = progress.advance(token)
    assert progress.num_missing < 64 and len(progress.readings) < 40
    assert pad_rows([np.array(terms[0])], PAD).shape == (1, 4)

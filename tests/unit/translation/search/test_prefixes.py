"""Forced beginnings of translations: prefixes, which are scored, and contexts, which are not."""

import math

import numpy as np
import pytest
import torch
from toy_models import UNK, ToyModel, ToyState, generator_of, log_prob_of, padded

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.translation.base import NextTokenScores
from tests.tiny import EOS
from tests.unit.translation.search.test_beam_search import SOURCES, generate, same


@pytest.mark.parametrize("beam", [1, 3])
def test_prefix_is_forced_and_scored(beam):
    model = ToyModel(seed=7)
    prefixes = torch.tensor([[5, 6, 4], [6, 1, 1], [4, 2, 1]])  # one ends after its first word
    generator = generator_of(model, beam=beam, nbest=beam, max_len_b=6)
    translations = generator.generate(padded(SOURCES), prefixes)
    for source, hypotheses, prefix in zip(SOURCES, translations, prefixes, strict=True):
        forced = prefix[prefix != Dictionary.pad_index]
        for h in hypotheses:
            assert h.ids[: len(forced)].tolist() == forced.tolist()
            np.testing.assert_allclose(
                h.positional_scores, log_prob_of(model, source, h.ids), atol=1e-5
            )
    assert translations[2][0].ids.tolist() == [4, EOS]
    assert len(translations[2]) == 1
    assert len(translations[0]) == beam


@pytest.mark.parametrize(("unkpen", "penalty"), [(0.5, 0.5), (math.inf, 0.0)])
def test_an_unknown_word_can_be_forced_whatever_its_penalty(unkpen, penalty):
    model = ToyModel(seed=4)
    source = SOURCES[0]
    prefix = [5, UNK]
    generator = generator_of(model, unkpen=unkpen, nbest=5, max_len_b=6)
    [hypotheses] = generator.generate(source[None], torch.tensor([prefix]))
    for h in hypotheses:
        assert h.ids[:2].tolist() == prefix
        expected = log_prob_of(model, source, h.ids).numpy() - penalty * (h.ids == UNK)
        np.testing.assert_allclose(h.positional_scores, expected, atol=1e-5)
        assert unkpen < math.inf or UNK not in h.ids[2:]


class Behind(ToyModel):
    """Goes on from tokens that it has written already."""

    def __init__(self, context, **settings):
        super().__init__(**settings)
        self.context = context

    def start(self, src_tokens, num_groups=1, shortlist=None):
        state = super().start(src_tokens, num_groups, shortlist)
        for token in [EOS, *self.context][: len(self.context)]:
            super().advance(torch.full((len(src_tokens), 1), token), state)
        state.first = self.context[-1] if self.context else EOS
        return state

    def advance(self, tokens, state, temperature=1.0, want_weights=False):
        if state.first is not None:
            tokens = torch.full_like(tokens, state.first)
            state.first = None
        return super().advance(tokens, state, temperature, want_weights)


@pytest.mark.parametrize("stop_rule", ["ahead", "full", "exact"])
@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 1},
        {"beam": 4, "lenpen": 0.0},
        {"beam": 3, "lenpen": 1.7, "min_len": 3},
        {"beam": 3, "lenpen": -0.5},
        {"beam": 5, "lenpen_form": "gnmt", "unkpen": 0.3},
        {"beam": 4, "diverse_beam_groups": 2},
        {"beam": 4, "print_alignment": "hard"},
    ],
)
def test_a_context_gives_the_hypotheses_of_a_model_that_wrote_it(settings, stop_rule):
    settings = {"nbest": settings["beam"], "stop_rule": stop_rule, **settings}
    contexts = [[5, 6, 4, 4, UNK, 6, 5, 5], [], [4]]
    for seed in range(3):
        generator = generator_of(ToyModel(seed=seed), max_len_b=14, **settings)
        sizes = np.array(list(map(len, contexts)))
        translations = generator.generate(padded(SOURCES), padded(contexts), context_sizes=sizes)
        for source, context, hypotheses in zip(SOURCES, contexts, translations, strict=True):
            model = Behind(context, seed=seed)
            [expected] = generate(model, [source], max_len_b=14 - len(context), **settings)
            same(hypotheses, expected)
            if "print_alignment" in settings:
                assert len(hypotheses[0].alignment) == len(hypotheses[0].ids)


class TwoOutputs(ToyModel):
    """Writes 4 so many times, then 5 five times or 6 eight times. Who strays writes anything."""

    def __init__(self, size):
        super().__init__(vocab_size=12)
        self.size = size

    def start(self, src_tokens, num_groups=1, shortlist=None):
        return ToyState(torch.zeros(len(src_tokens), 1, 0, dtype=torch.int64), src_tokens)

    def advance(self, tokens, state, temperature=1.0, want_weights=False):
        memory = state.memory.expand(-1, tokens.size(1), -1)
        state.memory = torch.cat([memory, tokens[:, :, None]], dim=2)
        written = state.memory[:, :, 1:].flatten(0, 1).tolist()
        scores = torch.tensor(list(map(self.after, written))).unflatten(0, tokens.shape)
        return NextTokenScores(scores.log_softmax(-1))

    def after(self, written):
        new = written[self.size :]
        if len(written) < self.size:
            likely = {4: -0.1}
        elif not new:
            likely = {5: -1.0, 6: -8.4 / 9}
        elif new == [5] * min(5, len(new)):
            likely = {5 if len(new) < 5 else EOS: -1.0}
        elif new == [6] * min(8, len(new)):
            likely = {6 if len(new) < 8 else EOS: -8.4 / 9}
        else:
            likely = {EOS: -2.0}
        other = math.log((1 - sum(map(math.exp, likely.values()))) / 5)
        scores = dict.fromkeys(range(7), -1e4) | dict.fromkeys(range(7, 12), other) | likely
        return list(scores.values())


@pytest.mark.parametrize("size", [0, 1, 3, 200])
def test_a_long_context_does_not_favor_short_outputs(size):
    generator = generator_of(TwoOutputs(size), beam=4, nbest=2, max_len_b=220)
    source = torch.tensor([[4, EOS]])
    context = torch.full((1, size), 4)
    [[best, second]] = generator.generate(source, context, None, np.array([size]))
    assert best.ids.tolist() == [6] * 8 + [EOS]
    assert best.score == pytest.approx(-8.4 / 9, abs=1e-4)
    assert second.ids.tolist() == [5] * 5 + [EOS]
    assert second.score == pytest.approx(-1, abs=1e-4)
    # fairseq's --prefix-size counts forced tokens. Then the shorter one is better.
    [[counted, _]] = generator.generate(source, context)
    assert counted.ids[-2] == (6 if size < 2 else 5)


@pytest.mark.parametrize("settings", [{"beam": 1}, {"beam": 3}, {"beam": 2, "sampling": True}])
def test_a_prefix_longer_than_the_longest_output_is_whole(settings):
    generator = generator_of(ToyModel(seed=6), max_len_b=3, **settings)
    [[best]] = generator.generate(SOURCES[0][None], torch.tensor([[6, 5, 4, 6, EOS]]))
    assert best.ids.tolist() == [6, 5, 4, 6, EOS]

import math

import numpy as np
import pytest
import torch
from toy_models import ToyModel, generator_of, log_prob_of, tokens_of

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.engine import native
from relu_nmt.engine.decoder import FastScores
from relu_nmt.errors import ConfigError
from relu_nmt.translation.base import BLOCK, NextTokenScores
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.selection import best_of_groups, draw, draw_uniforms
from tests.tiny import EOS


@pytest.fixture(params=["kernels", "PyTorch"])
def computed_by(request, monkeypatch):
    """Let continuations be found by the kernels, if they are there, or without."""
    monkeypatch.setattr(native, "is_wanted", lambda: request.param == "kernels" and has_kernels)
    has_kernels = native.library() is not None


@pytest.mark.usefixtures("computed_by")
@pytest.mark.parametrize("vocab_size", [5, BLOCK, 5 * BLOCK, 5 * BLOCK + 1, 700, 1003])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_top_continuations_equal_a_plain_topk(vocab_size, beam_size):
    generator = torch.Generator().manual_seed(vocab_size)
    for count in (1, 2 * beam_size, 40):
        log_probs = torch.randn(4, beam_size, vocab_size, generator=generator)
        log_probs[:, :, : vocab_size // 2] = -torch.inf
        totals = torch.randn(4, beam_size, generator=generator)
        expected = (log_probs + totals[:, :, None]).flatten(1)
        values, beams, tokens = FastScores(log_probs).best_continuations(totals, count)
        best = expected.topk(min(count, expected.size(1)))
        assert torch.equal(values, best.values)
        assert torch.equal(expected.gather(1, beams * vocab_size + tokens), best.values)


@pytest.mark.usefixtures("computed_by")
def test_beams_without_a_hypothesis_give_no_continuation_while_there_are_others():
    log_probs = torch.zeros(1, 2, 500)
    totals = torch.tensor([[0.0, -torch.inf]])
    values, beams, _ = FastScores(log_probs).best_continuations(totals, 10)
    assert (beams == 0).all()
    assert torch.equal(values, torch.zeros(1, 10))


@pytest.mark.usefixtures("computed_by")
def test_the_last_narrow_block_is_searched():
    log_probs = torch.zeros(1, 2, 5 * BLOCK + 3)
    log_probs[0, 1, -1] = 1.0
    values, beams, tokens = FastScores(log_probs).best_continuations(torch.zeros(1, 2), 1)
    assert values.item() == 1.0
    assert (beams.item(), tokens.item()) == (1, 5 * BLOCK + 2)


@pytest.mark.skipif(native.library() is None, reason="needs the kernels")
def test_continuations_of_some_beams_are_those_of_all_without_the_others():
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(3, 4, 200, generator=generator)
    log_probs[0, 1] = torch.nan
    totals = torch.randn(3, 4, generator=generator)
    is_computed = torch.zeros(12, dtype=torch.bool)
    is_computed[[0, 1, 6, 7, 9]] = True
    is_computed = is_computed.view(3, 4)
    best = FastScores(log_probs[is_computed][None], is_computed=is_computed).best_continuations(
        totals, 8
    )
    without = log_probs.masked_fill(~is_computed[:, :, None], -torch.inf).nan_to_num(nan=-torch.inf)
    for part, other in zip(best, FastScores(without).best_continuations(totals, 8), strict=True):
        assert torch.equal(part, other)
    none = FastScores(log_probs[:1, 1:2]).best_continuations(totals[:1, :1], 3)
    assert none[0].tolist() == [[-torch.inf] * 3]


SENTENCE = torch.tensor([[4, 5, 2]])


def draws(count, **settings):
    """Return the first tokens of many samples for one model."""
    settings = {"beam": count, "nbest": count, "sampling": True, "max_len_b": 1, **settings}
    [drawn] = generator_of(ToyModel(seed=2, sharpness=1.0), **settings).generate(SENTENCE)
    return np.array([h.ids[0] for h in drawn])


def first_probs(temperature=1.0):
    model = ToyModel(seed=2, sharpness=1.0)
    logits = model.logits(model(SENTENCE, torch.tensor([[EOS]])))[0, 0] / temperature
    probs = logits.softmax(-1)
    probs[[Dictionary.pad_index, Dictionary.bos_index, EOS]] = 0  # --min-len 1
    return (probs / probs.sum()).numpy(), probs


def test_frequencies_are_the_models_probabilities():
    count = 20000
    for temperature in (1.0, 0.5):
        probs, _ = first_probs(temperature)
        shares = np.bincount(draws(count, temperature=temperature), minlength=7) / count
        # four standard deviations of a binomial share
        np.testing.assert_allclose(shares, probs, atol=4 * math.sqrt(0.25 / count))


def test_topk_and_topp_cut_the_tail():
    probs, _ = first_probs()
    order = np.argsort(-probs)
    assert set(draws(500, sampling_topk=2)) == set(order[:2])
    assert set(draws(500, sampling_topk=1)) == {order[0]}
    # enough of the likeliest that their probabilities just reach p
    share = (probs[order[0]] + probs[order[1]] / 2) / 1.0
    _, raw = first_probs()
    share *= float(raw.sum())
    assert set(draws(500, sampling_topp=share / float(raw.sum()))) == set(order[:2])
    assert set(draws(300, sampling_topp=1e-6)) == {order[0]}


def test_scores_are_the_models_own():
    model = ToyModel(seed=1)
    settings = {"beam": 8, "nbest": 8, "sampling": True, "sampling_topk": 2, "max_len_b": 6}
    [hypotheses] = generator_of(model, **settings).generate(SENTENCE)
    for h in hypotheses:
        np.testing.assert_allclose(
            h.positional_scores, log_prob_of(model, SENTENCE[0], h.ids), atol=1e-5
        )


def test_the_seed_and_the_sentence_number_decide():
    def sample(seed, number):
        settings = {"beam": 3, "nbest": 3, "sampling": True, "seed": seed, "max_len_b": 9}
        generator = generator_of(ToyModel(sharpness=0.5), **settings)
        [hypotheses] = generator.generate(SENTENCE, ids=[number])
        return tokens_of(hypotheses)

    assert sample(1, 0) == sample(1, 0)
    assert sample(1, 0) != sample(2, 0)
    assert sample(1, 0) != sample(1, 1)


def test_the_largest_and_smallest_random_numbers_give_possible_tokens():
    log_probs = torch.tensor([[[0.25, 0.0, 0.5, 0.25, 0.0]] * 2]).log()
    uniforms = torch.tensor([[[0.0, 1 - 2**-53]]], dtype=torch.float64)
    for settings in ({}, {"topk": 4}, {"topp": 1.0}):
        candidates = draw(NextTokenScores(log_probs), torch.zeros(1, 2), uniforms[:, 0], **settings)
        assert candidates.totals.isfinite().all()
        if not settings:
            assert candidates.tokens.flatten().tolist() == [0, 3]


def test_a_forced_end_is_drawn_however_unlikely():
    for settings in ({}, {"sampling_topk": 3}, {"sampling_topp": 0.9}):
        lengths = {"beam": 2, "nbest": 2, "max_len_b": 3, "min_len": 3}
        generator = generator_of(
            ToyModel(seed=2), sampling=True, temperature=1e-3, **lengths, **settings
        )
        [hypotheses] = generator.generate(SENTENCE)
        assert list(map(len, tokens_of(hypotheses))) == [4, 4]
        assert hypotheses[0].positional_scores[-1] < -1000  # its probability is below any float64


def test_random_numbers_do_not_depend_on_the_other_sentences():
    together = draw_uniforms(7, np.array([3, 5]), beam_size=2, num_steps=4)
    alone = draw_uniforms(7, np.array([5]), beam_size=2, num_steps=4)
    np.testing.assert_array_equal(together[1:], alone)
    assert together.min() >= 0
    assert together.max() < 1


SOURCE = torch.tensor([[4, 5, 6, 2], [6, 2, 1, 1]])


def generate(model, **settings):
    settings = {"max_len_b": 8, "stop_rule": "full", **settings}
    return generator_of(model, **settings).generate(SOURCE)


def test_one_group_is_plain_beam_search():
    for seed in range(5):
        plain = generate(ToyModel(seed=seed), beam=4, nbest=4)
        grouped = generate(ToyModel(seed=seed), beam=4, nbest=4, diverse_beam_groups=1)
        for a, b in zip(plain, grouped, strict=True):
            assert tokens_of(a) == tokens_of(b)


def test_without_strength_all_groups_find_the_same():
    settings = {"diverse_beam_groups": 3, "diverse_beam_strength": 0.0, "beam": 6, "nbest": 6}
    for hypotheses in generate(ToyModel(seed=1), **settings):
        assert len(set(tokens_of(hypotheses))) == 2


def test_strong_groups_begin_differently_and_report_true_scores():
    model = ToyModel(seed=1)
    settings = {"diverse_beam_groups": 3, "diverse_beam_strength": 50.0, "beam": 3, "nbest": 3}
    for source, hypotheses in zip(SOURCE, generate(model, **settings), strict=True):
        source = source[source != Dictionary.pad_index]
        assert len({h.ids[0] for h in hypotheses}) == 3
        for h in hypotheses:
            np.testing.assert_allclose(
                h.positional_scores, log_prob_of(model, source, h.ids), atol=1e-5
            )


def test_groups_pay_once_for_every_earlier_choice():
    # Tokens 0, 1, 2 with gaps of 0.4: the second group pays 0.5 for token 0 and takes 1. The
    # third pays for both and takes 2 (-0.8), since 0 costs -0.5 ... and 1 costs -0.9.
    log_probs = torch.tensor([[[0.0, -0.4, -0.8, -9.0, -9.0]] * 3])
    candidates = best_of_groups(NextTokenScores(log_probs), torch.zeros(1, 3), 3, 0.9)
    assert candidates.tokens[0, :, 0].tolist() == [0, 1, 2]
    torch.testing.assert_close(candidates.totals[0, :, 0], torch.tensor([0.0, -0.4, -0.8]))
    assert candidates.parents[0, :, 0].tolist() == [0, 1, 2]


def test_the_beam_must_divide_into_groups():
    with pytest.raises(ConfigError, match="multiple"):
        GenerationConfig(beam=5, diverse_beam_groups=2)

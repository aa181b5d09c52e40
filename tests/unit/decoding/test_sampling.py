import math

import numpy as np
import torch
from toy_models import EOS, ToyModel, log_prob_of

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.decoding.generator import Generator
from relu_nmt.decoding.sampling import SamplingSelector, draw_uniforms

SOURCE = torch.tensor([[4, 5, 2]])


def draws(count, **settings):
    """Return the first tokens of many samples for one model."""
    config = GenerationConfig(beam=count, nbest=count, sampling=True, max_len_b=1, **settings)
    [found] = Generator([ToyModel(seed=2, sharpness=1.0)], config, Dictionary()).generate(SOURCE)
    return np.array([h.tokens[0] for h in found])


def first_probs(temperature=1.0):
    model = ToyModel(seed=2, sharpness=1.0)
    logits = model.logits(model(SOURCE, torch.tensor([[EOS]])))[0, 0] / temperature
    probs = logits.softmax(-1)
    probs[[Dictionary.pad_index, Dictionary.bos_index, EOS]] = 0  # --min-len 1
    return (probs / probs.sum()).numpy(), probs


def test_frequencies_are_the_models_probabilities():
    count = 20000
    for temperature in (1.0, 0.5):
        probs, _ = first_probs(temperature)
        found = np.bincount(draws(count, temperature=temperature), minlength=7) / count
        # four standard deviations of a binomial share
        np.testing.assert_allclose(found, probs, atol=4 * math.sqrt(0.25 / count))


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
    config = GenerationConfig(beam=8, nbest=8, sampling=True, sampling_topk=2, max_len_b=6)
    model = ToyModel(seed=1)
    [found] = Generator([model], config, Dictionary()).generate(SOURCE)
    for h in found:
        np.testing.assert_allclose(
            h.positional_scores, log_prob_of(model, SOURCE[0], h.tokens), atol=1e-5
        )


def test_the_seed_and_the_sentence_number_decide():
    def sample(seed, number):
        config = GenerationConfig(beam=3, nbest=3, sampling=True, seed=seed, max_len_b=9)
        generator = Generator([ToyModel(sharpness=0.5)], config, Dictionary())
        [found] = generator.generate(SOURCE, sentence_ids=[number])
        return [h.tokens.tolist() for h in found]

    assert sample(1, 0) == sample(1, 0)
    assert sample(1, 0) != sample(2, 0)
    assert sample(1, 0) != sample(1, 1)


def test_the_largest_and_smallest_random_numbers_give_possible_tokens():
    log_probs = torch.tensor([[[0.25, 0.0, 0.5, 0.25, 0.0]] * 2]).log()
    uniforms = torch.tensor([[[0.0, 1 - 2**-53]]], dtype=torch.float64)
    for settings in ({}, {"topk": 4}, {"topp": 1.0}):
        selector = SamplingSelector(uniforms, **settings)
        candidates = selector.select(log_probs, torch.zeros(1, 2), step=0)
        assert candidates.totals.isfinite().all()
        if not settings:
            assert candidates.tokens.flatten().tolist() == [0, 3]


def test_a_forced_end_is_drawn_however_unlikely():
    for settings in ({}, {"sampling_topk": 3}, {"sampling_topp": 0.9}):
        config = GenerationConfig(
            beam=2, nbest=2, sampling=True, temperature=1e-3, max_len_b=3, min_len=3, **settings
        )
        [found] = Generator([ToyModel(seed=2)], config, Dictionary()).generate(SOURCE)
        assert [len(h.tokens) for h in found] == [4, 4]
        assert found[0].positional_scores[-1] < -1000  # its probability is below any float64


def test_uniforms_do_not_depend_on_the_company():
    together = draw_uniforms(7, np.array([3, 5]), beam_size=2, num_steps=4)
    alone = draw_uniforms(7, np.array([5]), beam_size=2, num_steps=4)
    np.testing.assert_array_equal(together[1:], alone)
    assert together.min() >= 0
    assert together.max() < 1

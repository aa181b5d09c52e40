import numpy as np
import pytest
import torch
from toy_models import ToyModel, log_prob_of

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.decoding.diverse import DiverseSelector
from relu_nmt.decoding.generator import Generator
from relu_nmt.errors import ConfigError

SOURCE = torch.tensor([[4, 5, 6, 2], [6, 2, 1, 1]])


def generate(model, **settings):
    config = GenerationConfig(**{"max_len_b": 8, "stop_rule": "full", **settings})
    return Generator([model], config, Dictionary()).generate(SOURCE)


def test_one_group_is_plain_beam_search():
    for seed in range(5):
        plain = generate(ToyModel(seed=seed), beam=4, nbest=4)
        grouped = generate(ToyModel(seed=seed), beam=4, nbest=4, diverse_beam_groups=1)
        for a, b in zip(plain, grouped, strict=True):
            assert [h.tokens.tolist() for h in a] == [h.tokens.tolist() for h in b]


def test_without_strength_all_groups_find_the_same():
    settings = {"diverse_beam_groups": 3, "diverse_beam_strength": 0.0, "beam": 6, "nbest": 6}
    for found in generate(ToyModel(seed=1), **settings):
        assert len({tuple(h.tokens) for h in found}) == 2


def test_strong_groups_begin_differently_and_report_true_scores():
    model = ToyModel(seed=1)
    settings = {"diverse_beam_groups": 3, "diverse_beam_strength": 50.0, "beam": 3, "nbest": 3}
    for source, found in zip(SOURCE, generate(model, **settings), strict=True):
        source = source[source != Dictionary.pad_index]
        assert len({h.tokens[0] for h in found}) == 3
        for h in found:
            np.testing.assert_allclose(
                h.positional_scores, log_prob_of(model, source, h.tokens), atol=1e-5
            )


def test_groups_pay_once_for_every_earlier_choice():
    # Tokens 0, 1, 2 with gaps of 0.4: the second group pays 0.5 for token 0 and takes 1; the
    # third pays for both and takes 2 (-0.8), since 0 costs -0.5 ... and 1 costs -0.9.
    log_probs = torch.tensor([[[0.0, -0.4, -0.8, -9.0, -9.0]] * 3])
    candidates = DiverseSelector(3, 0.9).select(log_probs, torch.zeros(1, 3), step=0)
    assert candidates.tokens[0, :, 0].tolist() == [0, 1, 2]
    torch.testing.assert_close(candidates.totals[0, :, 0], torch.tensor([0.0, -0.4, -0.8]))
    assert candidates.parents[0, :, 0].tolist() == [0, 1, 2]


def test_the_beam_must_divide_into_groups():
    with pytest.raises(ConfigError, match="multiple"):
        GenerationConfig(beam=5, diverse_beam_groups=2)

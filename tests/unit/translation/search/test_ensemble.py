import numpy as np
import pytest
import torch
from toy_models import ToyModel, generator_of, toy_models

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.engine import native
from relu_nmt.engine.decoder import log_softmax
from relu_nmt.errors import ConfigError
from relu_nmt.translation.base import Ensemble
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.reference_scores import score_references
from relu_nmt.translation.search.scoring import build_scorer
from tests.tiny import EOS

SOURCE = torch.tensor([[4, 5, 6, 2], [6, 2, 1, 1]])


def generate(models, **settings):
    settings = {"beam": 3, "nbest": 3, "max_len_b": 8, **settings}
    return generator_of(models, **settings).generate(SOURCE)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"sampling": True}])
def test_equal_models_are_one_model(settings):
    alone = generate([ToyModel(seed=3)], **settings)
    three = generate(toy_models(3, 3, 3), **settings)
    for a, b in zip(alone, three, strict=True):
        for h, other in zip(a, b, strict=True):
            assert h.ids.tolist() == other.ids.tolist()
            np.testing.assert_allclose(h.positional_scores, other.positional_scores, atol=1e-5)


def test_probabilities_are_averaged():
    models = toy_models(1, 2)
    for source, hypotheses in zip(SOURCE, generate(models), strict=True):
        source = source[source != Dictionary.pad_index]
        for h in hypotheses:
            tokens = torch.from_numpy(h.ids)
            previous = torch.cat([torch.tensor([EOS]), tokens[:-1]])[None]
            probs = torch.stack(
                [m.logits(m(source[None], previous))[0].softmax(-1) for m in models]
            ).mean(0)
            expected = probs.gather(1, tokens[:, None])[:, 0].log()
            np.testing.assert_allclose(h.positional_scores, expected, atol=1e-5)


def test_alignments_are_averaged_and_ensembles_score_references():
    models = toy_models(1, 2)
    translations = generate(models, print_alignment="hard", nbest=1)
    assert all(len(h.alignment) == len(h.ids) for [h] in translations)
    scorer = build_scorer(GenerationConfig(score_reference=True))
    for row, [h] in zip(SOURCE, translations, strict=True):
        source = row[row != 1][None]
        target = torch.from_numpy(h.ids)[None]
        [[scored]] = score_references(Ensemble(models), scorer, Dictionary(), source, target)
        assert scored.score == pytest.approx(h.score, abs=1e-5)


def test_no_model_is_an_error():
    with pytest.raises(ConfigError, match="no model"):
        Ensemble([])


@pytest.mark.skipif(native.library() is None, reason="needs the kernels")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("symbols", [1, 15, 64, 100, 1000])
def test_log_probabilities_of_the_kernel_are_those_of_float64(symbols):
    torch.manual_seed(1)
    logits = 4 * torch.randn(2, 5, symbols)
    logits[0, 1, : symbols // 2] = -torch.inf
    log_probs = log_softmax(logits.clone(), 1.0)
    torch.testing.assert_close(log_probs, logits.double().log_softmax(-1).float())
    for bad in (torch.nan, torch.inf):
        spoilt = logits.clone()
        spoilt[1, 2, -1] = bad
        log_probs = log_softmax(spoilt, 1.0)
        assert log_probs[1, 2].isnan().all() and log_probs.isnan().sum() == symbols


@pytest.mark.skipif(native.library() is None, reason="needs the kernels")
@pytest.mark.usefixtures("one_thread")
def test_the_exponentials_of_the_kernel_are_those_of_float64():
    """The log of the sum tells how much the 63 other symbols of a row have added to 1."""
    behind = torch.cat([torch.linspace(0, 120, 5001), torch.tensor([87.6, 87.8, 88.1, torch.inf])])
    logits = torch.full((1, len(behind), 64), -torch.inf)  # vectors are computed from 64 symbols on
    logits[0, :, 0] = 0
    logits[0, :, 1:] = -behind[:, None]
    losses = -log_softmax(logits.clone(), 1.0)[0, :, 0]
    torch.testing.assert_close(losses, (63 * (-behind.double()).exp()).log1p().float())

import math

import numpy as np
import pytest
import torch
from toy_models import ToyModel, decoder_of, generator_of, hypothesis_scores, tokens_of

from relu_nmt.config.fields import options_of
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.engine import install
from relu_nmt.errors import ConfigError
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search import scorers, step_scores
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.scoring import (
    LEAST_COVERAGE,
    LengthScorer,
    Outputs,
    Scorer,
    build_scorer,
)
from relu_nmt.translation.search.step_rules import StepScore
from relu_nmt.translation.search.translations import SourceSentence
from tests.stepping import Generator
from tests.tiny import EOS, both_sides

SOURCE = torch.tensor([[4, 5, 6, 4, 2], [6, 5, 2, 1, 1]])


def length_scorer(**settings):
    return build_scorer(GenerationConfig(**settings))


def scores_of(scorer, totals, lengths):
    words = torch.ones(len(totals), 3, dtype=torch.bool)
    return scorer.score(Outputs(torch.tensor(totals), np.array(lengths), None, words))


def test_the_two_forms_rank_the_hand_made_hypotheses_differently():
    # spec translation.md section 9, check 4
    for form, expected in (("power", [-1.0, -0.933]), ("gnmt", [-3.27, -3.60])):
        scores = scores_of(length_scorer(lenpen_form=form), [[-6.0], [-8.4]], [6, 9])
        np.testing.assert_allclose(scores[:, 0], expected, atol=5e-3)


@pytest.mark.parametrize(
    ("settings", "divisor"),
    [
        ({"lenpen": 2.0}, 7**2.0),
        ({"lenpen": -0.5}, 7**-0.5),
        ({"lenpen": 0.6, "lenpen_form": "gnmt"}, 2**0.6),
        ({"unnormalized": True}, 1.0),
    ],
)
def test_the_length_penalty_divides_the_log_probability(settings, divisor):
    total = torch.tensor([[-3.3, -math.inf]])
    scores = scores_of(length_scorer(**settings), total.tolist(), [7])
    assert scores.tolist() == (total / torch.tensor(divisor).float()).tolist()


@pytest.mark.parametrize("form", ["power", "gnmt"])
def test_the_strongest_penalties_do_not_overflow_float32(form):
    lenpen = options_of(GenerationConfig)["lenpen"]
    for exponent in (lenpen.least, lenpen.most):
        scorer = length_scorer(lenpen=exponent, lenpen_form=form)
        scores = scores_of(scorer, [[-1e-3], [-1e7]], [1, 10**6])
        assert scores.dtype == torch.float32
        assert (scores.isfinite() & (scores < 0)).all()


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.6, 1.1])
@pytest.mark.parametrize("form", ["power", "gnmt"])
def test_no_length_in_between_scores_above_the_bound(exponent, form):
    scorer = length_scorer(lenpen=exponent, lenpen_form=form)
    scores = [float(scores_of(scorer, [[-2.0]], [length])) for length in range(3, 21)]
    bound = scorer.bound(torch.tensor([[-2.0]]), np.array([3]), np.array([20]))
    assert float(bound) == max(scores)


def test_the_coverage_penalty_is_that_of_the_paper():
    # Wu et al. 2016, Eq. 14: s / lp + beta * sum over words of log(min(sum of attention, 1)).
    scorer = build_scorer(GenerationConfig(scorer="coverage:beta=0.3", lenpen=0.5))
    attention = torch.tensor([[[0.5, 2.0, 0.25, 9.0], [1.0, 0.0, 1.0, 0.0]]])
    is_word = torch.tensor([[True, True, True, False]])
    totals = torch.tensor([[-4.0, -4.0]])
    scores = scorer.score(Outputs(totals, np.array([4]), attention, is_word))
    expected = [-2 + 0.3 * (math.log(0.5) + math.log(0.25)), -2 + 0.3 * math.log(LEAST_COVERAGE)]
    np.testing.assert_allclose(scores[0], expected, rtol=1e-6)
    bound = scorer.bound(totals, np.array([4]), np.array([4]))
    assert (scores <= bound).all()


def looked_at(tokens, length):
    """Return the attention of the toy model to each position, by all steps together."""
    previous = np.array([EOS, *tokens[:-1]])
    return np.bincount(previous % length, minlength=length)


@pytest.mark.parametrize(
    "settings", [{}, {"beam": 6, "diverse_beam_groups": 3}, {"sampling": True}, {"beam": 1}]
)
@pytest.mark.parametrize("stop_rule", ["ahead", "full", "exact"])
def test_a_search_adds_the_coverage_of_each_hypothesis(settings, stop_rule):
    settings = {"beam": 4, "max_len_b": 9, "stop_rule": stop_rule, **settings}
    settings["nbest"] = settings["beam"]
    settings["scorer"] = "coverage:beta=0.4"
    translations = generator_of(ToyModel(seed=2), **settings).generate(SOURCE)
    for row, hypotheses in zip(SOURCE, translations, strict=True):
        words = (row >= 4).numpy()
        scores = hypothesis_scores(hypotheses)
        assert scores == sorted(scores, reverse=True)
        for h in hypotheses:
            attention = np.clip(looked_at(h.ids, len(row)), LEAST_COVERAGE, 1)[words]
            mean = h.positional_scores.sum() / len(h.ids)
            np.testing.assert_allclose(h.score, mean + 0.4 * np.log(attention).sum(), rtol=1e-5)
            assert h.alignment is None  # nothing printed needs it


def test_coverage_with_weight_0_finds_the_same_as_the_length_penalty():
    settings = {"beam": 5, "nbest": 5, "max_len_b": 12}
    plain = generator_of(ToyModel(seed=3), scorer="length", **settings).generate(SOURCE)
    covered = generator_of(ToyModel(seed=3), scorer="coverage:beta=0", **settings).generate(SOURCE)
    for hypotheses, expected in zip(plain, covered, strict=True):
        assert tokens_of(hypotheses) == tokens_of(expected)
        assert hypothesis_scores(hypotheses) == hypothesis_scores(expected)


@pytest.mark.parametrize("make", [decoder_of, install])
@pytest.mark.parametrize("kind", [{}, {"document_attention": "aligned", "global_layers": 1}])
def test_a_hypothesis_has_the_same_coverage_as_reference(make, kind):
    torch.manual_seed(1)
    sizes = both_sides({"layers": 2, "embed_dim": 16})
    separators = (7, 8)
    shape = TransformerConfig.of(**sizes, dropout=0.0, **kind)
    decoders = [make(EncoderDecoder(shape, 12, 12, 1, separators).eval())]

    def generator(**settings):
        config = GenerationConfig(scorer="coverage:beta=0.5", lenpen=0.7, **settings)
        return Generator(decoders, config, Dictionary(), separators=separators)

    sources = [[4, 5, 7, 6, 4, 7, 2], [6, 7, 2]]
    ids = list(map(np.array, sources))
    sentences = list(map(SourceSentence, ids))
    outputs = generator(beam=4, nbest=4, max_len_b=8).translate(sentences)
    for source_ids, hypotheses in zip(ids, outputs, strict=True):
        sentences = [SourceSentence(source_ids, reference=h.ids) for h in hypotheses]
        rescored = [best.score for [best] in generator(score_reference=True).translate(sentences)]
        np.testing.assert_allclose(rescored, hypothesis_scores(hypotheses), rtol=1e-4)


def test_a_scorer_without_bound_and_length_penalty():
    class Longest(Scorer):
        def score(self, outputs):
            lengths = torch.from_numpy(outputs.lengths)[:, None]
            return lengths.expand(outputs.totals.shape).float()

    scorers.register("longest")(Longest)
    try:
        lengths = {}
        for rule in ("full", "exact"):
            generator = generator_of(ToyModel(), scorer="longest", max_len_b=30, stop_rule=rule)
            translations = generator.generate(SOURCE)
            lengths[rule] = [len(best.ids) for [best] in translations]
        for flag, value in (("lenpen", 0.5), ("lenpen_form", "gnmt"), ("unnormalized", True)):
            config = GenerationConfig(scorer="longest", **{flag: value})
            name = flag.replace("_", "-")
            with pytest.raises(ConfigError, match=f"--{name} does nothing with --scorer longest"):
                build_scorer(config)
        assert lengths["exact"] == [31, 31]
        assert max(lengths["full"]) < 31
    finally:
        del scorers._entries["longest"]


def test_a_step_score_acts_at_its_steps_only():
    class AtFirst(StepScore):
        def is_active(self, step):
            return step == 0

        def apply(self, log_probs, step):
            log_probs[:, :, 4] += 50

    step_scores.register("at_first")(AtFirst)
    try:
        generator = generator_of(ToyModel(), step_score="at_first", beam=1, max_len_b=4)
        for [best] in generator.generate(SOURCE):
            assert best.ids[0] == 4 and best.positional_scores[0] > 0
            assert len(best.ids) > 1 and (best.positional_scores[1:] < 0).all()
    finally:
        del step_scores._entries["at_first"]


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        ("lengthy", "--scorer: unknown scorer 'lengthy'; did you mean length"),
        ("coverage:beta=-1", "--scorer coverage:beta=-1: beta=-1: expected 0 or more"),
        ("length:beta=1", "--scorer length:beta=1: unknown option 'beta'"),
        ("coverage:beta", "expected NAME or NAME:option=value"),
    ],
)
def test_wrong_scorers_are_errors(scorer, message):
    with pytest.raises(ConfigError, match=message):
        build_scorer(GenerationConfig(scorer=scorer))
    assert isinstance(length_scorer(), LengthScorer)

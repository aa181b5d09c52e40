import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_models import (
    UNK,
    ToyModel,
    all_outputs,
    decoder_of,
    generator_of,
    hypothesis_scores,
    log_probs_of,
    padded,
    ranked_outputs,
    tokens_of,
)

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.engine import install, native
from relu_nmt.errors import ConfigError
from relu_nmt.translation.base import Ensemble
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search import generator as generator_module
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.reference_scores import score_references
from relu_nmt.translation.search.scoring import build_scorer
from relu_nmt.translation.search.translations import SourceSentence
from tests.tiny import EOS, tiny_config

SOURCES = [torch.tensor([4, 5, 6, 2]), torch.tensor([6, 2]), torch.tensor([5, 5, 2])]


def generate(models, sources, **settings):
    return generator_of(models, **settings).generate(padded(sources))


def random_sources(count, seed, vocab_size=7):
    rng = np.random.default_rng(seed)
    return [
        torch.from_numpy(np.append(rng.integers(4, vocab_size, rng.integers(1, 9)), EOS))
        for _ in range(count)
    ]


def real_model(attention, seed=0, vocab_size=40, embed_dim=16, **settings):
    torch.manual_seed(seed)
    sizes = {"layers": 2, "ffn_embed_dim": 32, "embed_dim": embed_dim}
    config = tiny_config(sizes, attention=attention, **settings)
    model = EncoderDecoder(config, vocab_size, vocab_size, Dictionary.pad_index)
    with torch.no_grad():  # an untrained model never ends, a trained one does
        model.output_projection.weight[EOS] += 0.3 * torch.randn(embed_dim)
    return model


def same(hypotheses, expected, exact_scores=False):
    assert tokens_of(hypotheses) == tokens_of(expected)
    tolerance = 0 if exact_scores else 1e-5
    for a, b in zip(hypotheses, expected, strict=True):
        assert a.score == pytest.approx(b.score, abs=tolerance)
        np.testing.assert_allclose(a.positional_scores, b.positional_scores, atol=2e-5)


@pytest.mark.parametrize("stop_rule", ["ahead", "full", "exact"])
@pytest.mark.parametrize("lenpen", [0.0, 0.6, 1.0, 1.7, -0.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_large_beam_is_exhaustive_search(seed, lenpen, stop_rule):
    model = ToyModel(vocab_size=6, seed=seed)
    limit = 4
    outputs = list(all_outputs(6, limit))
    settings = {"lenpen": lenpen, "max_len_b": limit, "stop_rule": stop_rule}
    translations = generate(model, SOURCES, beam=len(outputs), nbest=10, **settings)
    for source, hypotheses in zip(SOURCES, translations, strict=True):
        scores = ranked_outputs(model, source, outputs, lenpen)
        assert tokens_of(hypotheses) == list(scores)[:10]
        best_scores = list(scores.values())[:10]
        np.testing.assert_allclose(hypothesis_scores(hypotheses), best_scores, atol=1e-5)


@pytest.mark.parametrize("lenpen", [0.0, 1.0])
def test_the_exact_stop_rule_loses_nothing_that_the_beam_held(lenpen):
    # With the rule "exact", the best score is that of a search that never stops early.
    for seed in range(20):
        model = ToyModel(seed=seed)
        shared = {"beam": 3, "lenpen": lenpen, "max_len_b": 8}
        exact = generate(model, SOURCES, stop_rule="exact", **shared)
        # All three finished hypotheses are wanted: nothing can be dropped before the third.
        slow = generate(model, SOURCES, stop_rule="exact", nbest=3, **shared)
        for [best], ranked in zip(exact, slow, strict=True):
            assert best.ids.tolist() == ranked[0].ids.tolist()


def test_stop_rules_are_ordered_by_how_much_they_search():
    def scores_by(rule, model):
        settings = {"beam": 2, "lenpen": 1.5, "max_len_b": 12, "stop_rule": rule}
        translations = generate(model, SOURCES, **settings)
        return np.array(hypothesis_scores(itertools.chain(*translations)))

    better = {"ahead": 0, "exact": 0}
    for seed in range(30):
        model = ToyModel(seed=seed, sharpness=1.0)
        full = scores_by("full", model)
        ahead = scores_by("ahead", model)
        exact = scores_by("exact", model)
        assert (full <= ahead + 1e-6).all()
        assert (ahead <= exact + 1e-6).all()
        better["ahead"] += (ahead > full + 1e-6).sum()
        better["exact"] += (exact > ahead + 1e-6).sum()
    assert all(better.values()), "the example is too easy to tell the rules apart"


def test_greedy_is_beam_1():
    for seed in range(10):
        model = ToyModel(seed=seed)
        greedy = generate(model, SOURCES, beam=1, max_len_b=9)
        for source, [best] in zip(SOURCES, greedy, strict=True):
            tokens = []
            while not tokens or tokens[-1] != EOS:
                previous = torch.tensor([[EOS, *tokens]])
                logits = model.logits(model(source[None], previous))[0, -1]
                logits[[Dictionary.bos_index, Dictionary.pad_index]] = -math.inf
                if not tokens:
                    logits[EOS] = -math.inf  # --min-len 1
                tokens.append(EOS if len(tokens) == 9 else int(logits.argmax()))
            assert best.ids.tolist() == tokens


@pytest.mark.parametrize("attention", ["softmax", "reluformer"])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_reported_scores_equal_rescoring_by_the_full_forward_pass(attention, pre_norm):
    model = real_model(
        attention, encoder_normalize_before=pre_norm, decoder_normalize_before=pre_norm
    )
    sources = random_sources(12, seed=1, vocab_size=40)
    settings = {"beam": 4, "nbest": 4, "lenpen": 0.7, "max_len_b": 12}
    translations = generate(model, sources, **settings)
    scorer = build_scorer(GenerationConfig(lenpen=0.7, score_reference=True))
    ensemble = Ensemble([decoder_of(model)])
    src_tokens = padded(sources)
    lengths = set()
    for rank in range(4):
        targets = padded([h[rank].ids for h in translations])
        rescored = score_references(ensemble, scorer, Dictionary(), src_tokens, targets)
        for hypotheses, [reference] in zip(translations, rescored, strict=True):
            same([hypotheses[rank]], [reference])
            lengths.add(len(reference.ids))
    assert len(lengths) > 1, "all outputs have one length: the test says nothing about padding"


@pytest.mark.parametrize("attention", ["softmax", "reluformer"])
@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 4},
        {"beam": 1},
        {"beam": 4, "min_len": 36, "max_len_a": 6.0},  # longer than the room of new caches
        {"beam": 3, "stop_rule": "exact", "lenpen": 0.5},
        {"beam": 4, "no_repeat_ngram_size": 2, "print_alignment": "hard"},
        {"beam": 4, "diverse_beam_groups": 2},
        {"beam": 5, "beam_threshold": 0.7},
        {"beam": 4, "diverse_beam_groups": 2, "beam_threshold": 0.5},
        {"beam": 3, "sampling": True},
        {"beam": 3, "sampling": True, "sampling_topk": 5},
        {"beam": 3, "sampling": True, "sampling_topp": 0.8, "temperature": 0.7},
    ],
)
def test_a_translation_does_not_depend_on_the_other_sentences(attention, settings, monkeypatch):
    model = real_model(attention)
    sources = random_sources(10, seed=2, vocab_size=40)
    settings = {"nbest": settings["beam"], "max_len_a": 1.0, "max_len_b": 5, **settings}
    generator = generator_of(model, **settings)

    def run(numbers):
        return generator.generate(padded([sources[i] for i in numbers]), ids=numbers)

    alone = [run([i])[0] for i in range(len(sources))]
    rng = np.random.default_rng(0)
    for _ in range(3):
        numbers = rng.permutation(len(sources))[: rng.integers(2, len(sources))]
        for i, together in zip(numbers, run(numbers), strict=True):
            same(together, alone[i])
            if together[0].alignment is not None:
                for a, b in zip(together, alone[i], strict=True):
                    np.testing.assert_array_equal(a.alignment, b.alignment)
    assert len({len(h[0].ids) for h in alone}) > 2

    monkeypatch.setattr(generator_module, "MOST_LEFT", 0.7)
    steps = []
    take = generator.ensemble.step
    monkeypatch.setattr(
        generator.ensemble, "step", lambda *args: steps.append(len(args[0])) or take(*args)
    )
    generator.config = replace(generator.config, batch_size=3)
    sentences = [SourceSentence(source.numpy()) for source in sources]
    for together, separate in zip(generator.translate(sentences), alone, strict=True):
        same(together, separate)
    assert max(steps) > 1, "no search began beside another"


def search_slowly(model, source, beam, threshold, limit):
    """Return the hypotheses of a beam search with a threshold, by the full forward pass."""
    going_on = [((), 0.0)]
    ended = []

    def has_ended(candidate):
        return candidate[0][-1] == EOS

    for step in range(limit + 1):
        allowed = [EOS] if step == limit else [EOS, *range(UNK, 7)] if step else range(UNK, 7)
        outputs = []
        for words, _ in going_on:
            outputs += [(*words, token) for token in allowed]
        totals = log_probs_of(model, source, outputs).sum(1).tolist()
        beams = sorted(zip(outputs, totals, strict=True), key=lambda candidate: -candidate[1])
        beams = [candidate for candidate in beams if candidate[1] >= beams[0][1] - threshold]
        ended += filter(has_ended, beams[:beam])
        going_on = list(itertools.filterfalse(has_ended, beams[: 2 * beam]))[:beam]
        if len(ended) >= beam or not going_on:
            break
    return sorted(ended, key=lambda candidate: -candidate[1] / len(candidate[0]))


@pytest.mark.parametrize("beam", [2, 3, 5])
@pytest.mark.parametrize("threshold", [0.2, 1.0, 3.0])
def test_the_threshold_drops_hypotheses_far_behind(beam, threshold):
    fewer = 0
    for seed in range(8):
        model = ToyModel(seed=seed, sharpness=1.0)
        settings = {"beam": beam, "nbest": beam, "max_len_b": 6, "stop_rule": "full"}
        translations = generate(model, SOURCES, beam_threshold=threshold, **settings)
        unlimited = generate(model, SOURCES, **settings)
        for source, hypotheses, of_all in zip(SOURCES, translations, unlimited, strict=True):
            expected = search_slowly(model, source, beam, threshold, limit=6)[:beam]
            for hypothesis, (words, total) in zip(hypotheses, expected, strict=True):
                assert tuple(hypothesis.ids) == words
                assert hypothesis.score == pytest.approx(total / len(words), abs=1e-5)
            fewer += len(hypotheses) < len(of_all)
    assert fewer or threshold > 1


@pytest.mark.skipif(
    native.library() is None or not native.has_kernel("layers_step_float"),
    reason="needs the kernel of layers",
)
@pytest.mark.usefixtures("one_thread")
def test_dropped_hypotheses_are_not_computed():
    decoder = install(real_model("softmax", embed_dim=32).eval())
    rows = []
    decoder.model.output_projection.register_forward_hook(
        lambda _, x, __: rows.append(x[0].size(1))
    )
    sources = random_sources(16, seed=2, vocab_size=40)
    settings = {"beam": 5, "max_len_b": 10, "min_len": 10}
    generate(decoder, sources, **settings)
    all_of_them = sum(rows)
    rows.clear()
    generate(decoder, sources, beam_threshold=0.3, **settings)
    assert len(rows) == 11
    assert sum(rows) < 0.7 * all_of_them


def test_hypotheses_are_sorted_distinct_and_add_up():
    for hypotheses in generate(ToyModel(seed=3), SOURCES, beam=5, nbest=5, lenpen=0.8, max_len_b=7):
        scores = hypothesis_scores(hypotheses)
        assert scores == sorted(scores, reverse=True)
        assert len(set(tokens_of(hypotheses))) == len(hypotheses) == 5
        for h in hypotheses:
            assert h.ids[-1] == EOS
            assert EOS not in h.ids[:-1]
            total = h.positional_scores.sum()
            assert h.score == pytest.approx(total / len(h.ids) ** 0.8, abs=1e-5)


def test_the_length_limit_depends_on_the_own_source_only():
    sources = [torch.tensor([4] * 2 + [2]), torch.tensor([4] * 9 + [2])]
    model = ToyModel(seed=1)
    model.out[:, EOS] = 0
    model.out[:, 4] = 9 * torch.sign(model.out[:, 4])
    for batch in (sources, sources[:1]):
        [shortest] = generate(model, batch, max_len_a=0.5, max_len_b=1, stop_rule="exact")[0]
        # 0.5 * 3 + 1 = 2.5 tokens, rounded down, and the end symbol
        assert len(shortest.ids) <= 3


def test_outputs_are_within_min_len_and_max_len():
    for hypotheses in generate(
        ToyModel(seed=5), SOURCES, min_len=4, max_len_b=6, beam=4, nbest=4, stop_rule="exact"
    ):
        assert set(map(len, tokens_of(hypotheses))) <= {5, 6, 7}
    for hypotheses in generate(ToyModel(seed=5), SOURCES, min_len=4, max_len_b=4):
        assert len(hypotheses[0].ids) == 5
    with pytest.raises(ConfigError, match="--min-len 4"):
        GenerationConfig(min_len=4, max_len_b=3).resolved()
    # 0.5 times the source is less than --min-len for a short source, which is allowed anyway
    for hypotheses in generate(ToyModel(seed=5), SOURCES, min_len=4, max_len_a=0.5, max_len_b=0):
        assert len(hypotheses[0].ids) == 5


def test_min_len_0_allows_the_empty_output():
    model = ToyModel(seed=0)
    model.out[:, EOS] = 0
    model.out[:, [4, 5, 6, 3]] = 0
    model.out[:, EOS] = 50 * model._next(model._begin(SOURCES[0][None]), torch.tensor([EOS]))[0]
    [hypothesis] = generate(model, SOURCES[:1], min_len=0)[0]
    assert hypothesis.ids.tolist() == [EOS]


def test_unkpen_lowers_and_raises_the_number_of_unknown_words():
    def unknown(**settings):
        translations = generate(ToyModel(seed=4), random_sources(20, 5), max_len_b=8, **settings)
        return sum(int((h[0].ids == UNK).sum()) for h in translations)

    assert unknown(unkpen=20) == 0
    assert unknown(unkpen=-20) > unknown() > 0


def test_unkpen_is_part_of_the_score():
    plain = generate(ToyModel(seed=4), SOURCES, beam=1, max_len_b=4)
    rich = generate(ToyModel(seed=4), SOURCES, beam=1, max_len_b=4, unkpen=1e-3)
    for [a], [b] in zip(plain, rich, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        count = int((a.ids == UNK).sum())
        assert b.score == pytest.approx(a.score - 1e-3 * count / len(a.ids), abs=1e-5)


def test_unnormalized_compares_totals():
    for [hypothesis] in generate(ToyModel(seed=6), SOURCES, unnormalized=True, max_len_b=7):
        assert hypothesis.score == pytest.approx(hypothesis.positional_scores.sum(), abs=1e-5)


def test_a_sentence_without_any_possible_output_is_an_error():
    with pytest.raises(ConfigError, match="sentence 0: no possible output"):
        generate(ToyModel(), SOURCES, no_repeat_ngram_size=1, min_len=5, max_len_b=9)
    broken = ToyModel()
    broken.out[:] = math.nan
    with pytest.raises(ConfigError, match="not finite"):
        generate(broken, SOURCES, max_len_b=9)


def test_generation_leaves_the_training_mode_as_it_was():
    model = real_model("softmax").train()
    generate(model, SOURCES, max_len_b=3)
    assert model.training
    model.eval()
    generate(model, SOURCES, max_len_b=3)
    assert not model.training


@pytest.mark.parametrize(
    "changes",
    [
        {"decoder_positions": "learned", "max_target_positions": 6},
        {"decoder_attention": "cosformer:horizon=6"},
    ],
)
def test_the_longest_target_of_the_model_limits_the_output(changes):
    model = real_model("softmax", **changes)
    with torch.no_grad():
        model.output_projection.weight[EOS] = 0
    translations = generate(model, SOURCES, beam=2, nbest=2)
    assert max(map(len, tokens_of(itertools.chain(*translations)))) <= 6
    with pytest.raises(ConfigError, match="can write 5 tokens"):
        generate(model, SOURCES, min_len=6)


class TimedModel(ToyModel):
    """The next token depends on the step alone. Sources of 5 may end at any step."""

    def _begin(self, src_tokens):
        return torch.stack([src_tokens[:, 0] == 5, torch.full((len(src_tokens),), -1)], 1)

    def _next(self, memory, tokens):
        return memory + torch.tensor([0, 1])

    def logits(self, features):
        rows = list(itertools.starmap(self._row, features.flatten(0, 1).tolist()))
        return torch.tensor(rows).log().unflatten(0, features.shape[:2])

    @staticmethod
    def _row(ends_anywhere, step):
        # The four special symbols, of which the third is the end, and three words.
        if ends_anywhere:
            return [0, 0, 0.01, 0, 0.97, 0.01, 0.01]
        if step == 1:  # two short hypotheses end
            return [0, 0, 0.4, 0, 0.35, 0.2, 0.05]
        if step < 15:  # what goes on falls behind them
            return [0, 0, 0.0, 0, 0.34, 0.33, 0.33]
        # and overtakes them
        return [0, 0, float(step >= 30), 0, 0.98, 0.01, 0.01]


def test_the_end_of_a_search_does_not_depend_on_other_sentences():
    sources = [torch.tensor([4, EOS]), torch.tensor([5, EOS])]
    settings = {"beam": 2, "max_len_a": 0.0, "max_len_b": 40}
    [alone] = generate(TimedModel(), sources[:1], **settings)
    together, _ = generate(TimedModel(), sources, **settings)
    same(together, alone)
    assert len(alone[0].ids) == 2  # what went on fell behind before it could have won

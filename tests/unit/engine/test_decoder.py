"""The fast decoder finds the translations of the plain one, for all models and searches."""

import copy
import itertools

import numpy as np
import pytest
import torch

from relu_nmt.attention import attentions
from relu_nmt.engine import FastDecoder, install, native
from relu_nmt.engine.decoder import FastScores
from relu_nmt.translation.base import StepDecoder
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.shortlist import Shortlist
from relu_nmt.translation.search.translations import SourceSentence
from tests.stepping import Generator
from tests.tiny import numbered_words, tiny_config

VOCAB = 60
SEPARATOR = 5
SYMBOLS = numbered_words(VOCAB - 4)
ANYWHERE = [
    name
    for name in attentions.names()
    if attentions.get(name).capabilities.causal and attentions.get(name).capabilities.cross
]
MODELS = [
    *({"attention": name} for name in ANYWHERE),
    {"attention": "softmax", "decoder_attention": "cosformer"},
    {"attention": "reluformer", "decoder_positions": "sinusoidal+rotary", "norm": "rms"},
    {"attention": "softmax", "decoder_positions": "t5", "feed_forward": "swiglu"},
    {"attention": "pointwise:gate=silu", "encoder_normalize_before": True},
    {"attention": "reluformer:learnable=true,qk_norm=true", "output_bias": True},
    {"attention": "softmax", "document_attention": "aligned", "global_layers": 1},
    {"attention": "reluformer", "document_attention": "aligned", "decoder_positions": "alibi"},
]
SEARCHES = [
    {"beam": 1},
    {"beam_threshold": 1.0},
    {"diverse_beam_groups": 2, "diverse_beam_strength": 0.5},
    {"sampling": True},
    {"print_alignment": "hard", "no_repeat_ngram_size": 2},
    {"temperature": 0.7, "stop_rule": "exact"},
]


@pytest.fixture
def each_number_of_threads():
    """Yield one thread, and three, with which most kernels are not used, as they are set."""

    def numbers():
        for number in (1, 3):
            torch.set_num_threads(number)
            yield number

    before = torch.get_num_threads()
    yield numbers()
    torch.set_num_threads(before)


def make_model(seed=1, **changes):
    torch.manual_seed(seed)
    config = tiny_config({"layers": 2, "embed_dim": 32, "ffn_embed_dim": 32}, **changes)
    model = EncoderDecoder(config, VOCAB, VOCAB, SYMBOLS.pad_index, (SEPARATOR, SEPARATOR))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn_like(weight)
        model.output_projection.weight *= 8  # choices are clear
    return model.eval()


def sources():
    generator = torch.Generator().manual_seed(2)
    rows = []
    for length in (9, 3, 6, 7, 1):
        row = torch.randint(6, VOCAB, (length,), generator=generator)
        rows.append(np.array([*row.tolist(), SEPARATOR, 7, SYMBOLS.eos_index]))
    return rows


def translated(decoders, separators=None, shortlist=None, **settings):
    config = GenerationConfig(
        **{"beam": 4, "nbest": 1, "max_len_b": 9, "batch_size": 3, **settings}
    )
    generator = Generator(decoders, config, SYMBOLS, None, separators, shortlist)
    translations = generator.translate(list(map(SourceSentence, sources())))
    return list(itertools.chain.from_iterable(translations))


def assert_equal(hypotheses, expected):
    for hypothesis, other in zip(hypotheses, expected, strict=True):
        assert hypothesis.ids.tolist() == other.ids.tolist()
        assert hypothesis.score == pytest.approx(other.score, abs=1e-4)
        np.testing.assert_allclose(hypothesis.positional_scores, other.positional_scores, atol=1e-3)
        if other.alignment is not None:
            assert hypothesis.alignment.tolist() == other.alignment.tolist()


@pytest.mark.parametrize("changes", MODELS, ids=str)
def test_every_model_finds_the_same_translations(changes, each_number_of_threads):
    model = make_model(**changes)
    separators = (SEPARATOR, SEPARATOR) if "document_attention" in changes else None
    expected = translated([StepDecoder(model)], separators)
    for _ in each_number_of_threads:
        assert_equal(translated([install(copy.deepcopy(model))], separators), expected)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_every_search_finds_the_same_translations(search, each_number_of_threads):
    model = make_model(attention="softmax", cross_attention="reluformer")
    expected = translated([StepDecoder(model)], **search)
    for _ in each_number_of_threads:
        for fast in (install(copy.deepcopy(model)), FastDecoder(model)):
            assert_equal(translated([fast], **search), expected)


def test_rectified_attention_without_weight_aligns_nothing_in_both_decoders():
    model = make_model(attention="softmax", cross_attention="reluformer")
    for layer in model.decoder.layers:
        # Scores of zero become weights of zero.
        for weight in layer.cross_attention.q.parameters():
            torch.nn.init.zeros_(weight)
    for decoder in (StepDecoder(model), install(copy.deepcopy(model))):
        for hypothesis in translated([decoder], print_alignment="hard"):
            assert hypothesis.alignment.tolist() == [-1] * len(hypothesis.ids)


def test_ensembles_and_shortlists_find_the_same_translations():
    models = [make_model(seed, attention="softmax") for seed in (1, 2)]
    shortlist = Shortlist(torch.arange(4, 40), torch.zeros(VOCAB, 1, dtype=torch.int64), VOCAB)
    for ensemble in (models, models[:1]):
        few = shortlist if len(ensemble) == 1 else None
        expected = translated(list(map(StepDecoder, ensemble)), shortlist=few)
        fast = list(map(install, copy.deepcopy(ensemble)))
        assert_equal(translated(fast, shortlist=few), expected)


@pytest.mark.parametrize("search", [{"beam_threshold": 1.0}, {"stop_rule": "exact"}], ids=str)
def test_an_ensemble_of_both_decoders_averages_all_beams(search):
    models = [make_model(seed, attention="softmax") for seed in (1, 2)]
    expected = translated(list(map(StepDecoder, models)), **search)
    pair = StepDecoder(models[0]), install(copy.deepcopy(models[1]))
    for decoders in (pair, pair[::-1]):
        assert_equal(translated(decoders, **search), expected)


@pytest.mark.skipif(
    native.library() is None or not native.has_kernel("layers_step_float"),
    reason="needs the kernel of layers",
)
@pytest.mark.usefixtures("one_thread")
def test_a_step_computes_live_beams_only():
    fast = install(make_model(attention="softmax"))
    rows = []
    fast.model.output_projection.register_forward_hook(lambda _, x, __: rows.append(x[0].size(1)))
    translated([fast], beam_threshold=1.0)
    assert sum(rows) < 0.9 * len(rows) * max(rows)


def test_scores_of_computed_beams_are_expanded_to_all():
    is_computed = torch.tensor([[False, True, True], [False, False, True]])
    scores = FastScores(torch.arange(6.0).view(1, 3, 2), is_computed=is_computed)
    log_probs = scores.of_all_beams().log_probs
    assert log_probs.shape == (2, 3, 2)
    assert log_probs.flatten(0, 1)[[1, 2, 5]].tolist() == [[0, 1], [2, 3], [4, 5]]

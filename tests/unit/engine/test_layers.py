"""A step of all layers in one call equals a step in many calls."""

import copy
import pickle
import shutil

import pytest
import torch

from relu_nmt.attention.normalized import SoftmaxAttention
from relu_nmt.attention.reluformer import ReLUFormerAttention
from relu_nmt.data.translation_batches import pad_rows
from relu_nmt.engine import FastDecoder, install, native
from relu_nmt.engine.linear import can_pack, has_fast_int8
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import SourceSentence
from tests.stepping import Generator, Stepping
from tests.tiny import numbered_words, tiny_config

VOCAB = 150
SYMBOLS = numbered_words(VOCAB - 4)
SIDES = ("encoder", "decoder")

pytestmark = pytest.mark.usefixtures("one_thread")
needs_kernels = pytest.mark.skipif(
    native.library() is None or not can_pack() or not native.has_kernel("layers_step_float"),
    reason="needs the kernels, and AVX2",
)
PRECISIONS = [
    "float32",
    pytest.param(
        "bfloat16",
        marks=pytest.mark.skipif(
            native.library() is None or not native.has_kernel("layers_step_bfloat16"),
            reason="needs AVX512-BF16",
        ),
    ),
    pytest.param(
        "int8",
        marks=pytest.mark.skipif(
            not has_fast_int8(), reason="needs AVX512-VNNI, or AVX2 and the kernels"
        ),
    ),
]
each_form = pytest.mark.parametrize("kernel_form", native.forms(), indirect=True)


def make_model(**changes):
    torch.manual_seed(1)
    config = tiny_config({"layers": 2, "embed_dim": 64, "ffn_embed_dim": 50}, **changes)
    model = EncoderDecoder(config, VOCAB, VOCAB, pad_index=SYMBOLS.pad_index).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn_like(weight)  # also of biases and gains
        model.output_projection.weight *= 4
    return model


def prepared(model, precision):
    """Return the fast decoder of a copy of a model."""
    return install(copy.deepcopy(model), getattr(torch, precision))


def in_many_calls(decoder, kernel=None):
    """Make a decoder compute its layers by many calls."""
    decoder.layers_kernel = kernel
    return decoder


class RoundedCaches:
    """A layers kernel that declines every step, but makes all caches float16 as int8 does."""

    def takes(self, steps, num_rows):
        for step in steps:
            for cache in step.state.caches:
                cache.keep_as(torch.float16)
        return False


def sources():
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(2, 14, (21,), generator=generator).tolist()
    rows = [torch.randint(4, VOCAB, (n,), generator=generator).numpy() for n in lengths]
    return pad_rows(rows, SYMBOLS.pad_index)


def counted_calls(monkeypatch):
    names = []
    call = native.call
    monkeypatch.setattr(native, "call", lambda *args: [names.append(args[0]), call(*args)])
    return names


def forced(decoder, dtype=None, steps=12, computed=False, source=None):
    """Return the log-probabilities of a decoder in a search with random choices.

    Args:
        decoder: a step decoder, or a model.
        dtype: compute dtype, by autocast.
        steps: number of steps.
        computed: give up some of the hypotheses at each step.
        source: source tokens. By default :func:`sources`.
    """
    generator = torch.Generator().manual_seed(3)
    src_tokens = sources() if source is None else source
    log_probs = []
    precision = torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None)
    with torch.inference_mode(), precision:
        search = Stepping(decoder, src_tokens)
        is_live = None
        tokens = torch.full((len(src_tokens), 4), SYMBOLS.eos_index)
        live = torch.ones(len(src_tokens), 4, dtype=torch.bool)
        for step in range(steps):
            scores = search.step(tokens, is_live)
            if step == 0:
                log_probs.append(scores.log_probs.flatten(0, 1))
            else:
                row_log_probs = scores.of_all_beams().log_probs
                log_probs.append(row_log_probs[live])
                parents = torch.multinomial(live.float(), 4, True, generator=generator)
                search.reorder(parents)
            if step == 6:
                live_rows = torch.arange(0, len(src_tokens), 2)
                search.keep(live_rows)
                live = live[live_rows]
            tokens = torch.randint(4, VOCAB, live.shape, generator=generator)
            if computed:
                live = torch.rand(live.shape, generator=generator) < 0.5
                live[:, 0] = True
                is_live = live
    return log_probs


FORMS = [
    {"attention": "softmax"},
    {"attention": "softmax", "decoder_positions": "sinusoidal+rotary"},
    {"attention": "softmax", "decoder_positions": "rotary", "decoder_attention_heads": 4},
    {"attention": "softmax", "decoder_positions": "alibi"},
    {"attention": "reluformer:gamma=2", "norm": "rms"},
    {"attention": "reluformer:centered=true,power=2", "decoder_normalize_before": True},
    {"attention": "softmax", "cross_attention": "reluformer:centered=true"},
    {"attention": "softmax", "cross_attention": "thresholded_relu"},
    {"attention": "thresholded_relu:power=3", "decoder_normalize_before": True},
]


@needs_kernels
@each_form
@pytest.mark.parametrize("computed", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("changes", FORMS, ids=str)
def test_states_equal_those_in_float64(kernel_form, changes, computed, monkeypatch):
    model = make_model(**changes)
    exact = forced(copy.deepcopy(model).double(), computed=computed)
    decoder = prepared(model, "float32")
    names = counted_calls(monkeypatch)
    outputs = forced(decoder, computed=computed)
    assert names.count("layers_step_float") == len(outputs)
    torch.testing.assert_close(outputs, exact, rtol=1e-4, atol=1e-4)


@needs_kernels
@each_form
@pytest.mark.parametrize("precision", PRECISIONS[1:])
@pytest.mark.parametrize("changes", FORMS, ids=str)
def test_one_call_in_another_dtype_is_as_exact_as_many_calls(kernel_form, changes, precision):
    if not native.has_kernel(f"layers_step_{precision}"):
        pytest.skip(f"{kernel_form} has no {precision}")
    model = make_model(**changes)
    exact = forced(copy.deepcopy(model).double())
    dtype = torch.bfloat16 if precision == "bfloat16" else None
    many = forced(in_many_calls(prepared(model, precision)), dtype)
    result = forced(prepared(model, precision), dtype)

    def error(outputs):
        return sum((x.double() - y).square().mean() for x, y in zip(outputs, exact, strict=True))

    assert error(result) < 1.25 * error(many)
    assert 0 < error(result) < 0.05 * sum(x.square().mean() for x in exact)


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "search",
    [
        {},
        {"beam_threshold": 2.0},
        {"beam_threshold": 2.0, "no_repeat_ngram_size": 2},
        {"diverse_beam_groups": 2, "diverse_beam_strength": 0.5},
        {"print_alignment": "hard", "beam_threshold": 2.0},
        {"sampling": True},
    ],
    ids=str,
)
def test_searches_that_run_together_find_the_same_translations(precision, search):
    # The second batch begins beside the last hypotheses of the first.
    model = make_model(attention="softmax", decoder_positions="sinusoidal+rotary")
    config = GenerationConfig(beam=4, max_len_b=12, batch_size=7, workers=1, **search)
    dtype = torch.bfloat16 if precision == "bfloat16" else None
    sentences = [SourceSentence(row[row != SYMBOLS.pad_index].numpy()) for row in sources()]

    def translated(decoder):
        return Generator([decoder], config, SYMBOLS, dtype).translate(sentences)

    rounded = RoundedCaches() if precision == "int8" else None
    many = translated(in_many_calls(prepared(model, precision), rounded))
    translations = translated(prepared(model, precision))
    same = 0
    for hypotheses, expected in zip(translations, many, strict=True):
        tokens = [hypothesis.ids.tolist() for hypothesis in hypotheses]
        same += tokens == [hypothesis.ids.tolist() for hypothesis in expected]
    # This model's choices are close. PyTorch rounds attention to bfloat16, the kernel does not, and
    # rounding in the caches changes some 8-bit levels.
    assert same >= {"float32": 21, "bfloat16": 12, "int8": 9}[precision]


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_inner_width_that_needs_padding(precision):
    model = make_model(attention="softmax", decoder_ffn_embed_dim=51)
    dtype = torch.bfloat16 if precision == "bfloat16" else None
    many = forced(in_many_calls(prepared(model, precision)), dtype)
    for output, other in zip(forced(prepared(model, precision), dtype), many, strict=True):
        difference = (output - other).abs().max()
        assert difference < {"float32": 1e-4, "bfloat16": 0.2, "int8": 0.6}[precision]


@needs_kernels
def test_sources_stored_by_columns():
    model = make_model(attention="softmax", cross_attention="reluformer")
    decoder = prepared(model, "float32")
    outputs = forced(decoder, source=sources().T.contiguous().T)
    torch.testing.assert_close(outputs, forced(model), rtol=1e-4, atol=1e-4)


@needs_kernels
def test_other_threads_never_see_half_of_the_constant_arguments():
    decoder = prepared(make_model(attention="softmax"), "float32")
    step = decoder.layers_kernel

    class Norm:
        eps = 1e-5
        bias = torch.zeros(64)

        @property
        def weight(self):
            assert step._weights is None
            return torch.ones(64)

    for layer in step.layers:
        layer.feed_forward_residual.__dict__["norm"] = Norm()
    forced(decoder, steps=1)
    assert step._weights.fields["weights"].numel() == 2 * (6 * 4 + 3 * 2)


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS[2:])
def test_keys_and_values_are_clamped_to_the_range_of_float16(precision):
    decoder = prepared(make_model(attention="softmax"), precision)
    search = Stepping(decoder, sources())
    state = search.state
    state.caches[0].source[1][0, 0, 0, :3] = torch.tensor([1e6, -1e6, torch.nan])
    state.caches[0].keep_as(torch.float16)
    first_values = state.caches[0].source[1][0, 0, 0, :3]
    assert first_values.tolist()[:2] == [65504, -65504]
    assert first_values[2].isnan()
    qkv = decoder.model.decoder.layers[0].self_attention.qkv
    qkv.scale[-1] = 1e6  # of values
    qkv._kernel_copy = None
    with torch.inference_mode():
        search.step(torch.full((21, 1), SYMBOLS.eos_index))
    values = state.caches[0].target[1]
    assert values.dtype == torch.float16
    assert values.abs().max() == 65504


@needs_kernels
def test_layers_of_other_kinds_do_not_use_the_kernel():
    for changes in (
        {"attention": "pointwise:gate=silu"},
        {"attention": "softmax:qk_norm=true"},
        {"attention": "reluformer:learnable=true"},
        {"attention": "sparsemax"},
        {"attention": "linear"},
        {"attention": "softmax", "decoder_attention_heads": 8},  # heads of width 8
        {"attention": "softmax", "feed_forward": "gelu"},
        {"attention": "softmax", "feed_forward": "relu-ln"},
    ):
        assert not prepared(make_model(**changes), "float32").layers_kernel, changes
    # Affine maps without panels.
    assert not FastDecoder(make_model(attention="softmax")).layers_kernel
    for second in ("reluformer:gamma=2", "softmax"):
        mixed = make_model(attention="reluformer")
        mixed.decoder.layers[1] = make_model(attention=second).decoder.layers[1]
        assert not prepared(mixed, "float32").layers_kernel, second


class Flat(SoftmaxAttention):
    """A mechanism of a user, with another map."""

    def normalize(self, scores):
        return (scores / 100).softmax(-1)


class Plain(ReLUFormerAttention):
    """A mechanism of a user, with the same map."""


@needs_kernels
@pytest.mark.parametrize("kind", [Flat, Plain])
def test_subclasses_of_a_mechanism_do_not_use_its_kernel(kind):
    model = make_model(attention={Flat: "softmax", Plain: "reluformer"}[kind])
    for layer in model.decoder.layers:
        layer.self_attention.attention.__class__ = kind
    assert not prepared(model, "float32").layers_kernel


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler at installation")
def test_the_kernels_are_compiled():
    assert native.library() is not None


@needs_kernels
@pytest.mark.parametrize("attention", ["softmax", "reluformer"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_keys_that_are_not_finite_make_the_scores_of_their_sentence_not_finite(attention, wrong):
    decoder = prepared(make_model(attention=attention), "float32")
    search = Stepping(decoder, sources())
    search.state.caches[0].source[0][0, :, 0] = wrong
    with torch.inference_mode():
        log_probs = search.step(torch.full((21, 1), SYMBOLS.eos_index)).log_probs
    assert not log_probs[0].isfinite().any()
    assert log_probs[1:].isfinite().all()


@needs_kernels
def test_hooks_other_backends_and_changed_weights_do_not_use_the_kernel(monkeypatch):
    decoder = prepared(make_model(attention="softmax"), "float32")
    model = decoder.model
    names = counted_calls(monkeypatch)

    def share():
        names.clear()
        forced(decoder, steps=2)
        return names.count("layers_step_float")

    assert share() == 2
    attention = model.decoder.layers[0].cross_attention.attention
    hook = attention.register_forward_hook(lambda *args: None)
    assert share() == 0
    hook.remove()
    attention.backend = "reference"
    assert share() == 0
    attention.backend = "auto"
    assert share() == 2
    torch.set_num_threads(native.MAX_THREADS + 1)
    assert share() == 0
    [row] = sources()[:1]
    names.clear()
    Generator([decoder], GenerationConfig(beam=4, max_len_b=3), SYMBOLS).generate(row[None])
    assert "layers_step_float" in names  # few rows use it with any number of threads
    torch.set_num_threads(1)
    with torch.no_grad():
        model.decoder.layers[1].feed_forward.outer.weight *= 2
    assert share() == 0


@needs_kernels
def test_a_pickled_decoder_keeps_its_kernel():
    decoder = prepared(make_model(attention="softmax"), "float32")
    sent = pickle.loads(pickle.dumps(decoder))
    assert sent.layers_kernel
    for output, other in zip(forced(sent), forced(decoder), strict=True):
        assert torch.equal(output, other)

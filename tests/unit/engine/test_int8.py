import copy
import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from relu_nmt.engine import FastDecoder, native
from relu_nmt.engine import linear as affine
from relu_nmt.engine.linear import Int8Linear, has_fast_int8, use_int8
from relu_nmt.errors import ConfigError
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.config import GenerationConfig
from tests.stepping import Generator
from tests.tiny import numbered_words, tiny_config

needs_int8 = pytest.mark.skipif(
    not has_fast_int8(), reason="needs AVX512-VNNI, or AVX2 and the kernels"
)
FORMS = native.forms()
by_each_form = pytest.mark.parametrize("kernel_form", FORMS, indirect=True)


@pytest.fixture(params=[*FORMS, "oneDNN"])
def product(request, monkeypatch):
    if request.param == "oneDNN":
        if not torch.cpu._is_vnni_supported():
            pytest.skip("needs AVX512-VNNI")
        monkeypatch.setattr(native, "has_kernel", lambda name: False)
    else:
        monkeypatch.setattr(native, "forms", lambda: (request.param,))
        native._find.cache_clear()
        if not native.has_kernel(Int8Linear.kernel):
            pytest.skip("needs the kernels, and for their form avx512 AVX512-VNNI")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield request.param
    torch.set_num_threads(threads)
    native._find.cache_clear()


@needs_int8
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("low", "high"), [(-3.0, 5.0), (0.0, 2.0), (-4.0, -1.0), (2.0, 3.0)])
def test_products_equal_those_of_the_rounded_values(bias, low, high, product):
    torch.manual_seed(1)
    linear = nn.Linear(48, 40, bias=bias).requires_grad_(False)
    x = torch.empty(3, 7, 48).uniform_(low, high) * torch.rand(3, 7, 1)
    # Compute the definition in float64: weights and inputs are rounded row by row.
    weight = linear.weight.double()
    row_scale = weight.abs().amax(1, keepdim=True) / 127
    bottom = x.double().amin(-1, True).clamp(max=0)
    top = x.double().amax(-1, True).clamp(min=0)
    scale = (top - bottom) / 254
    zero = (-bottom / scale).round()
    levels = (x.double() / scale + zero + 0.5).floor()
    assert levels.min() >= 0 and levels.max() <= 255
    expected = (levels - zero) * scale @ ((weight / row_scale).round() * row_scale).T
    if bias:
        expected += linear.bias.double()
    # A value on the border of two levels may be rounded to either.
    torch.testing.assert_close(Int8Linear(linear)(x).double(), expected, atol=0.02, rtol=0)
    assert (Int8Linear(linear)(x) - linear(x)).abs().max() < 0.02 * (high - min(low, 0))


@needs_int8
@by_each_form
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the same for all
@given(
    rows=st.integers(0, 20),
    inputs=st.sampled_from([1, 3, 4, 15, 16, 33, 256]),
    outputs=st.sampled_from([1, 15, 16, 17, 40, 63, 64, 65, 130]),
    bias=st.booleans(),
)
def test_the_kernel_equals_onednn(kernel_form, rows, inputs, outputs, bias):
    if not (native.has_kernel(Int8Linear.kernel) and torch.cpu._is_vnni_supported()):
        pytest.skip("needs the kernels, and AVX512-VNNI")
    torch.manual_seed(rows)
    layer = Int8Linear(nn.Linear(inputs, outputs, bias=bias).requires_grad_(False))
    # Use integers over the full range of each row, so that no value lies between two levels.
    x = torch.randint(-100, 155, (rows, inputs)).float()
    x[:, :1] = -100.0
    x[:, -1:] = 154.0
    if inputs == 1:
        x.fill_(254.0)
    output = layer.by_kernel(x)
    assert output.shape == (rows, outputs)
    torch.testing.assert_close(output, layer._by_onednn(x), atol=2e-3, rtol=1e-5)


@needs_int8
def test_each_row_is_independent_of_the_others(product):
    torch.manual_seed(1)
    layer = Int8Linear(nn.Linear(32, 24).requires_grad_(False))
    x = torch.randn(9, 32)
    x[3] *= 100
    x[4, 5] = torch.inf
    for i in range(9):
        torch.testing.assert_close(layer(x)[i], layer(x[i]), rtol=0, atol=1e-4, equal_nan=True)


@needs_int8
def test_rows_of_zeros_empty_inputs_and_values_that_are_not_finite(product):
    linear = nn.Linear(8, 4).requires_grad_(False)
    linear.weight[1] = 0
    layer = Int8Linear(linear)
    assert torch.equal(layer(torch.zeros(2, 8)), linear.bias.expand(2, 4))
    assert layer(torch.zeros(0, 8)).shape == (0, 4)
    for value in (torch.nan, torch.inf, -torch.inf):
        x = torch.zeros(2, 8)
        x[1, 2] = value
        assert layer(x)[1].isnan().all()
        assert torch.equal(layer(x)[0], linear.bias)


@needs_int8
def test_the_lowest_value_of_a_row_does_not_wrap_around(product):
    # Choose lowest values that lie almost half way between two levels.
    generator = torch.Generator().manual_seed(1)
    k = 2 * torch.randint(1, 120, (50_000,), generator=generator) + 0.5
    high = torch.rand(len(k), generator=generator) + 0.5
    low = -(k.double() / (254 - k.double()) * high.double()).float()
    x = torch.stack([low, high, torch.zeros_like(low), torch.zeros_like(low)], 1)
    identity = nn.Linear(4, 4, bias=False).requires_grad_(False)
    identity.weight.copy_(torch.eye(4))
    error = (Int8Linear(identity)(x) - x).abs().amax(1) / (high - low)
    assert error.max() < 0.003  # half a level of 254, and the weight's


@needs_int8
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_of_other_dtypes_give_nearly_the_float32_map(dtype, product):
    linear = nn.Linear(32, 20, dtype=dtype).requires_grad_(False)
    x = torch.randn(3, 32)
    expected = nn.functional.linear(x, linear.weight.float(), linear.bias.float())
    torch.testing.assert_close(Int8Linear(linear)(x), expected, atol=0.05, rtol=0)


@needs_int8
def test_a_map_to_some_outputs_equals_these_columns_of_the_whole(product):
    torch.manual_seed(1)
    layer = Int8Linear(nn.Linear(16, 50).requires_grad_(False))
    x = torch.randn(3, 16)
    index = torch.tensor([0, 7, 8, 31, 49])
    torch.testing.assert_close(layer.restricted_to(index)(x), layer(x)[:, index])


def small_model(attention="softmax"):
    torch.manual_seed(3)
    shape = {"layers": 2, "embed_dim": 32, "ffn_embed_dim": 64}
    config = tiny_config(shape, attention=attention)
    return EncoderDecoder(config, 30, 30, pad_index=1).eval()


@needs_int8
@pytest.mark.parametrize("attention", ["softmax", "reluformer"])
def test_logits_of_an_8_bit_model_are_close(attention):
    model = small_model(attention)
    quantized = copy.deepcopy(model)
    use_int8(quantized)
    assert not any(isinstance(module, nn.Linear) for module in quantized.modules())
    source = torch.randint(4, 30, (5, 9))
    target = torch.randint(4, 30, (5, 7))
    with torch.inference_mode():
        expected = model.logits(model(source, target))
        actual = quantized.logits(quantized(source, target))
    assert not torch.equal(actual, expected)
    torch.testing.assert_close(actual, expected, atol=0.05 * expected.abs().max().item(), rtol=0)


@needs_int8
def test_the_kernel_computes_all_products_where_onednn_is_slow(monkeypatch):
    if not native.has_kernel(Int8Linear.kernel):
        pytest.skip("needs the kernels")
    layer = Int8Linear(nn.Linear(256, 1024).requires_grad_(False))
    x = torch.randn(200, 256)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    assert not layer.wants_kernel(len(x), x.dtype)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert layer.wants_kernel(len(x), x.dtype)


@needs_int8
def test_several_processes_find_the_translations_of_one():
    model = small_model()
    use_int8(model)
    symbols = numbered_words(26)
    config = GenerationConfig(beam=2, max_len_b=6)
    source = torch.randint(4, 30, (3, 5))
    source[:, -1] = symbols.eos_index
    first = Generator([FastDecoder(model)], config, symbols).generate(source)
    # Copies packed for the processor stay behind. The numbers go.
    again = Generator([FastDecoder(pickle.loads(pickle.dumps(model)))], config, symbols).generate(
        source
    )
    for first_best, other in zip(first, again, strict=True):
        assert first_best[0].ids.tolist() == other[0].ids.tolist()
        assert first_best[0].score == other[0].score


def test_a_processor_without_fast_products_is_an_error(monkeypatch):
    monkeypatch.setattr(affine, "has_fast_int8", lambda: False)
    with pytest.raises(ConfigError, match="--int8 needs an x86 processor with AVX512-VNNI, or"):
        use_int8(small_model())


def test_a_model_on_another_device_is_an_error():
    with pytest.raises(ConfigError, match="--int8 is for CPUs; add --cpu"):
        use_int8(small_model().to("meta"))

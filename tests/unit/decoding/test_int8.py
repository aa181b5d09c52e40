import copy
import pickle

import pytest
import torch
from torch import nn

from relu_nmt import native
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.decoding import int8
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.decoding.generator import Generator
from relu_nmt.decoding.int8 import Int8Linear, has_fast_int8, use_int8
from relu_nmt.errors import ConfigError
from relu_nmt.models.config import TransformerConfig
from relu_nmt.models.encoder_decoder import EncoderDecoder

needs_int8 = pytest.mark.skipif(not has_fast_int8(), reason="needs AVX512-VNNI")


@needs_int8
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("low", "high"), [(-3.0, 5.0), (0.0, 2.0), (-4.0, -1.0), (2.0, 3.0)])
def test_products_are_those_of_the_rounded_numbers(bias, low, high):
    torch.manual_seed(1)
    linear = nn.Linear(48, 40, bias=bias).requires_grad_(False)
    x = torch.empty(3, 7, 48).uniform_(low, high)
    # The definition, in float64: weights rounded by rows, what comes in by its range with 0.
    weight = linear.weight.double()
    row_scale = weight.abs().amax(1, keepdim=True) / 127
    scale = (max(x.max().item(), 0.0) - min(x.min().item(), 0.0)) / 254
    zero = round(-min(x.min().item(), 0.0) / scale)
    levels = (x.double() / scale + zero + 0.5).floor()
    assert levels.min() >= 0 and levels.max() <= 255
    expected = (levels - zero) * scale @ ((weight / row_scale).round() * row_scale).T
    if bias:
        expected += linear.bias.double()
    # A number on the border of two levels may fall to either.
    torch.testing.assert_close(Int8Linear(linear)(x).double(), expected, atol=0.02, rtol=0)
    assert (Int8Linear(linear)(x) - linear(x)).abs().max() < 0.02 * (high - min(low, 0))


@needs_int8
def test_rows_of_nothing_and_numbers_that_are_not_finite():
    linear = nn.Linear(8, 4).requires_grad_(False)
    linear.weight[1] = 0
    layer = Int8Linear(linear)
    assert torch.equal(layer(torch.zeros(2, 8)), linear.bias.expand(2, 4))
    for value in (torch.nan, torch.inf):
        assert layer(torch.full((2, 8), value)).isnan().all()


def small_model(attention="softmax"):
    torch.manual_seed(3)
    config = TransformerConfig(
        attention=attention,
        **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
        **{f"{side}_embed_dim": 32 for side in ("encoder", "decoder")},
        **{f"{side}_ffn_embed_dim": 64 for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    )
    return EncoderDecoder(config, 30, 30, pad_index=1).eval()


@needs_int8
@pytest.mark.parametrize("attention", ["softmax", "reluformer"])
def test_a_model_gives_nearly_the_same_logits(attention):
    model = small_model(attention)
    quantized = copy.deepcopy(model)
    use_int8(quantized)
    assert not any(isinstance(module, nn.Linear) for module in quantized.modules())
    source, target = torch.randint(4, 30, (5, 9)), torch.randint(4, 30, (5, 7))
    with torch.inference_mode():
        expected = model.logits(model(source, target))
        actual = quantized.logits(quantized(source, target))
    assert not torch.equal(actual, expected)
    torch.testing.assert_close(actual, expected, atol=0.05 * expected.abs().max().item(), rtol=0)


@needs_int8
def test_search_by_several_processes_gives_the_same_as_one():
    model = small_model()
    use_int8(model)
    symbols = Dictionary([f"w{i}" for i in range(26)])
    config = GenerationConfig(beam=2, max_len_b=6)
    source = torch.randint(4, 30, (3, 5))
    source[:, -1] = symbols.eos_index
    first = Generator([model], config, symbols).generate(source)
    # What is packed for the processor stays behind; the numbers go.
    again = Generator([pickle.loads(pickle.dumps(model))], config, symbols).generate(source)
    for one, other in zip(first, again, strict=True):
        assert one[0].tokens.tolist() == other[0].tokens.tolist()
        assert one[0].score == other[0].score


def test_processors_that_would_be_slow_are_told_of(monkeypatch):
    monkeypatch.setattr(int8, "has_fast_int8", lambda: False)
    with pytest.raises(ConfigError, match="--int8 needs an x86 processor with AVX512-VNNI"):
        use_int8(small_model())


def test_models_on_other_devices_are_refused():
    with pytest.raises(ConfigError, match="--int8 is for CPUs; add --cpu"):
        use_int8(small_model().to("meta"))


@pytest.mark.skipif(native.library() is None, reason="needs the kernels")
@pytest.mark.parametrize("size", [1, 15, 16, 17, 4099])
def test_the_kernel_gives_the_levels_that_pytorch_gives(size, monkeypatch):
    x = torch.randn(size, generator=torch.Generator().manual_seed(size)) + 0.3
    levels, scale, zero = int8.quantize(x)
    monkeypatch.setattr(int8, "library", lambda: None)
    expected, *rest = int8.quantize(x)
    assert [scale, zero] == rest
    # A number on the border of two levels may fall to either.
    assert (levels.int() - expected.int()).abs().max() <= 1
    assert (levels != expected).float().mean() < 0.01

"""The feed-forward network as a memory: softmax, softmax-ln and relu-ln, by plain loops."""

import math

import pytest
import torch

from relu_nmt.config import from_dict, to_dict
from relu_nmt.errors import ConfigError
from relu_nmt.modules import feed_forwards
from relu_nmt.modules.feed_forward import build_feed_forward
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.vision_transformer import VisionTransformer

MEMORIES = ["softmax", "softmax:temperature=4", "softmax-ln", "softmax-ln:temperature=2", "relu-ln"]
D, F = 6, 9


def make(text, dropout=0.0, dtype=torch.float64):
    torch.manual_seed(0)
    network = build_feed_forward(text, D, F, dropout).to(dtype)
    with torch.no_grad():
        for parameter in network.parameters():  # what starts at 0 or 1 must count, too
            parameter.add_(torch.randn_like(parameter))
    return network


def by_loops(network, text, x):
    """Return the output for one token, by the formula, in Python's numbers."""
    keys, values = network.inner.weight.tolist(), network.outer.weight.T.tolist()
    temperature = float(text.partition("=")[2] or 1)
    scores = [sum(a * b for a, b in zip(x.tolist(), key, strict=True)) for key in keys]
    if text.startswith("softmax"):
        exps = [math.exp(score / temperature) for score in scores]
        weights = [exp / sum(exps) for exp in exps]
    else:
        biased = zip(scores, network.inner.bias.tolist(), strict=True)
        weights = [max(score + bias, 0.0) for score, bias in biased]
    y = network.outer.bias.tolist()
    for weight, value in zip(weights, values, strict=True):
        y = [total + weight * element for total, element in zip(y, value, strict=True)]
    if "-ln" in text:
        mean = sum(y) / D
        deviation = math.sqrt(sum((element - mean) ** 2 for element in y) / D + 1e-5)
        parts = zip(y, network.norm.weight.tolist(), network.norm.bias.tolist(), strict=True)
        y = [(element - mean) / deviation * gain + bias for element, gain, bias in parts]
    return torch.tensor(y, dtype=torch.float64)


@pytest.mark.parametrize("text", MEMORIES)
def test_a_memory_equals_its_formula(text):
    network, x = make(text), torch.randn(2, 3, D, dtype=torch.float64)
    expected = torch.stack([by_loops(network, text, token) for token in x.flatten(0, 1)])
    torch.testing.assert_close(network(x).flatten(0, 1), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", MEMORIES)
def test_gradients(text):
    network = make(text)
    x = torch.randn(3, D, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*network.named_parameters(), strict=True)

    def of_all(x, *values):
        return torch.func.functional_call(network, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(of_all, (x, *parameters))


@pytest.mark.parametrize("size", [32, 1024, 4096])
def test_the_numbers_of_parameters_equal_those_of_the_paper(size):
    """12,300 d_h in 12 networks of width 512. 12 d_h less without the inner bias."""

    def count(text):
        return 12 * sum(p.numel() for p in build_feed_forward(text, 512, size, 0.0).parameters())

    assert count("relu") == 12_300 * size + 12 * 512
    assert count("softmax") == count("relu") - 12 * size
    assert count("softmax-ln") == count("softmax") + 12 * 1024
    assert count("relu-ln") == count("relu") + 12 * 1024


@pytest.mark.parametrize("text", ["softmax", "softmax-ln"])
def test_dropout_acts_on_the_weights_of_the_memory(text):
    network, x, read = make(text, dropout=0.5), torch.randn(50, D, dtype=torch.float64), []
    network.outer.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    network.eval()(x)
    network.train()(x)
    full, dropped = read
    torch.testing.assert_close(full.sum(-1), torch.ones(50, dtype=torch.float64))
    nonzero = dropped != 0
    torch.testing.assert_close(dropped[nonzero], 2 * full[nonzero])
    assert 0.3 < nonzero.double().mean() < 0.7


@pytest.mark.parametrize("text", MEMORIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(text, dtype):
    network, x = make(text, dtype=torch.float32), torch.randn(2, 3, D)
    exact = network(x)
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(network(x.to(dtype)).float(), exact, atol=0.2, rtol=0.05)
    halved = network.to(dtype)(x.to(dtype))
    assert halved.dtype == dtype
    torch.testing.assert_close(halved.float(), exact, atol=0.2, rtol=0.05)


def test_large_scores_do_not_overflow():
    network = make("softmax", dtype=torch.float32).half()
    with torch.no_grad():
        network.inner.weight.mul_(1000)
    assert network(torch.ones(2, D, dtype=torch.float16)).isfinite().all()


@pytest.mark.parametrize("text", MEMORIES)
def test_vision_transformers_accept_them_too(text):
    torch.manual_seed(0)
    shape = {"image_size": 8, "patch_size": 4, "embed_dim": 16, "layers": 2, "heads": 2}
    config = VisionTransformerConfig(feed_forward=text, checkpoint_activations=True, **shape)
    model = VisionTransformer(config, 3).train()
    model(torch.randn(2, 3, 8, 8)).logits.square().sum().backward()
    networks = [block.layer.feed_forward for block in model.blocks]
    expected = feed_forwards.get(text.partition(":")[0])(16, 64, 0.0)
    assert {(type(n), n.activation, n.normed) for n in networks} == {
        (type(expected), expected.activation, expected.normed)
    }
    assert all(p.grad.any() for network in networks for p in network.parameters())


def test_the_option_is_stored_and_checked():
    config = TransformerConfig.of(ffn="softmax:temperature=2")
    assert from_dict(TransformerConfig, to_dict(config)) == config
    assert config.feed_forward == "softmax:temperature=2"
    for text, message in (
        ("softmaxx", "did you mean softmax"),
        ("softmax:temperature", "'softmax:temperature': expected NAME or NAME:option=value"),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            TransformerConfig(feed_forward=text)
        assert str(error.value).startswith("--feed-forward: ")
    for text, message in (
        ("softmax:temperature=0", "temperature=0: expected more than 0"),
        ("softmax:heat=2", "heat"),
        ("relu:temperature=2", "relu has no options"),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            build_feed_forward(text, D, F, 0.0)
        assert str(error.value).startswith(f"--feed-forward {text}: ")
        assert "\n" not in str(error.value)


def test_networks_without_a_norm_start_from_the_same_weights_as_before():
    names = {"inner.weight", "inner.bias", "outer.weight", "outer.bias"}
    assert build_feed_forward("relu", D, F, 0.0).state_dict().keys() == names

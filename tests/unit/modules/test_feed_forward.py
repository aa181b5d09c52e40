"""The feed-forward network as a memory: softmax, softmax-ln and relu-ln, by plain loops."""

import numpy as np
import pytest
import torch

from relu_nmt.config import from_dict, to_dict
from relu_nmt.errors import ConfigError
from relu_nmt.modules import feed_forwards
from relu_nmt.modules.feed_forward import build_feed_forward
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.vision_transformer import VisionTransformer
from tests.tiny import num_parameters, without_gradient

MEMORIES = ["softmax", "softmax:temperature=4", "softmax-ln", "softmax-ln:temperature=2", "relu-ln"]
D = 6
F = 9


def make(text, dropout=0.0, dtype=torch.float64):
    torch.manual_seed(0)
    network = build_feed_forward(text, D, F, dropout).to(dtype)
    with torch.no_grad():
        for parameter in network.parameters():  # what starts at 0 or 1 must count, too
            parameter.add_(torch.randn_like(parameter))
    return network


def by_formula(network, text, x):
    """Return the output for one token, by the formula, in NumPy's numbers."""
    keys = network.inner.weight.detach().numpy()
    values = network.outer.weight.detach().numpy().T
    temperature = float(text.partition("=")[2] or 1)
    scores = keys @ x.numpy()
    if text.startswith("softmax"):
        weights = np.exp(scores / temperature)
        weights /= weights.sum()
    else:
        weights = np.maximum(scores + network.inner.bias.detach().numpy(), 0)
    y = network.outer.bias.detach().numpy() + weights @ values
    if "-ln" in text:
        y = (y - y.mean()) / np.sqrt(y.var() + 1e-5)
        y = y * network.norm.weight.detach().numpy() + network.norm.bias.detach().numpy()
    return torch.from_numpy(y)


@pytest.mark.parametrize("text", MEMORIES)
def test_a_memory_equals_its_formula(text):
    network = make(text)
    x = torch.randn(2, 3, D, dtype=torch.float64)
    expected = torch.stack([by_formula(network, text, token) for token in x.flatten(0, 1)])
    torch.testing.assert_close(network(x).flatten(0, 1), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", MEMORIES)
def test_gradients_of_feed_forward_networks_are_correct(text):
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
        return 12 * num_parameters(build_feed_forward(text, 512, size, 0.0))

    assert count("relu") == 12_300 * size + 12 * 512
    assert count("softmax") == count("relu") - 12 * size
    assert count("softmax-ln") == count("softmax") + 12 * 1024
    assert count("relu-ln") == count("relu") + 12 * 1024


@pytest.mark.parametrize("text", ["softmax", "softmax-ln"])
def test_dropout_acts_on_the_weights_of_the_memory(text):
    network = make(text, dropout=0.5)
    x = torch.randn(50, D, dtype=torch.float64)
    read = []
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
def test_feed_forward_networks_in_half_precision_are_near_float32(text, dtype):
    network = make(text, dtype=torch.float32)
    x = torch.randn(2, 3, D)
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
    expected = feed_forwards.get(text.partition(":")[0])(16, 64, 0.0)
    for block in model.blocks:
        network = block.layer.feed_forward
        assert type(network) is type(expected)
        assert (network.activation, network.normed) == (expected.activation, expected.normed)
        assert not without_gradient(network)


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

"""Optimizers against steps by hand, and the parts of a model that they train."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from relu_nmt.config import from_dict
from relu_nmt.errors import ConfigError
from relu_nmt.training import OPTIMIZERS
from relu_nmt.training.config import OptimizerConfig
from relu_nmt.training.optimizers import build_optimizer, freeze
from tests.unit.training.toy import parsed


def set_learning_rate(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


class Weights(nn.Module):
    def __init__(self, *values):
        super().__init__()
        self.weights = nn.ParameterList(map(torch.tensor, values))


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_three_steps_of_an_optimizer_equal_the_formula(name):
    model = Weights([1.0, -2.0])
    config = OptimizerConfig(optimizer=name, weight_decay=0.1, adam_eps=1e-9)
    optimizer = build_optimizer(model, config)
    set_learning_rate(optimizer, 0.01)
    expected = torch.tensor([1.0, -2.0], dtype=torch.float64)
    first = second = torch.zeros(2, dtype=torch.float64)
    for step in (1, 2, 3):
        gradient = torch.tensor([0.5, -0.1 * step])
        model.weights[0].grad = gradient.clone()
        optimizer.step()
        first = 0.9 * first + 0.1 * gradient
        second = 0.98 * second + 0.02 * gradient**2
        direction = (first / (1 - 0.9**step)) / ((second / (1 - 0.98**step)).sqrt() + 1e-9)
        expected = expected * (1 - 0.01 * 0.1) - 0.01 * direction
    torch.testing.assert_close(model.weights[0].detach().double(), expected, rtol=1e-6, atol=1e-6)


def test_two_steps_of_adafactor_by_hand():
    """Shazeer and Stern 2018, algorithm 5, with a factored second moment."""
    start = torch.tensor([[1.0, -2.0, 0.5], [0.1, 3.0, -1.0]])
    model = Weights(start.tolist())
    optimizer = build_optimizer(model, OptimizerConfig(optimizer="adafactor", weight_decay=0.1))
    set_learning_rate(optimizer, 0.01)
    expected = start.double()
    rows = torch.zeros(2, 1).double()
    columns = torch.zeros(1, 3).double()
    for step in (1, 2):
        gradient = torch.tensor([[0.5, -0.1, 0.2], [1.0, 0.3, -0.4]]) * step
        model.weights[0].grad = gradient.clone()
        optimizer.step()
        squares = gradient.double() ** 2
        share = step**-0.8
        rows = (1 - share) * rows + share * squares.mean(1, keepdim=True)
        columns = (1 - share) * columns + share * squares.mean(0, keepdim=True)
        change = gradient / (rows @ columns / rows.mean()).sqrt()
        change = change / change.square().mean().sqrt().clamp(min=1.0)
        rate = 0.01 * expected.square().mean().sqrt().clamp(min=1e-3)
        expected = expected * (1 - 0.01 * 0.1) - rate * change
    torch.testing.assert_close(model.weights[0].detach().double(), expected, rtol=1e-5, atol=1e-6)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.encoder = nn.Linear(2, 2)
        self.encoder_norm = nn.LayerNorm(2)


def test_parts_have_their_own_learning_rates():
    model = Parts()
    config = OptimizerConfig(lr_scales=("encoder=0.5", "embeddings=0.1"), weight_decay=0.5)
    scales = {}
    for group in build_optimizer(model, config).param_groups:
        scales |= dict.fromkeys(group["params"], group["lr_scale"])
    scale_of = {name: scales[parameter] for name, parameter in model.named_parameters()}
    assert scale_of == {
        "embedding.weight": 0.1,
        "encoder.weight": 0.5,
        "encoder.bias": 0.5,
        "encoder_norm.weight": 1.0,
        "encoder_norm.bias": 1.0,
    }


def test_frozen_parts_are_not_trained():
    model = Parts()
    freeze(model, OptimizerConfig(freeze=("embeddings", "encoder.bias")))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"encoder.weight", "encoder_norm.weight", "encoder_norm.bias"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": ("enc",)}, "--freeze enc: the model's parts are embeddings, embedding, enc"),
        ({"lr_scales": ("head=2",)}, "--lr-scales head: the model's parts are embeddings"),
        ({"freeze": ("embedding", "encoder", "encoder_norm")}, "nothing is left to train"),
        ({"lr_scales": ("encoder",)}, "--lr-scales encoder: expected PART=X"),
        ({"lr_scales": ("encoder=0",)}, "--lr-scales encoder=0: expected PART=X .*above 0"),
        ({"lr_scales": ("head=1", "head=2")}, "--lr-scales head=2: head has a factor already"),
        ({"lr_scales": ("encoder=nan",)}, "--lr-scales encoder=nan: expected PART=X"),
    ],
)
def test_wrong_parts_are_refused(settings, message):
    model = Parts()
    with pytest.raises(ConfigError, match=message):
        config = OptimizerConfig(**settings)
        freeze(model, config)
        build_optimizer(model, config)


def test_exempt_and_frozen_parameters():
    model = Weights([1.0], [1.0], [1.0])
    model.weights[1].no_weight_decay = True
    model.weights[2].requires_grad_(False)
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.5))
    set_learning_rate(optimizer, 0.1)
    for weight in model.weights[:2]:
        weight.grad = torch.zeros(1)
    optimizer.step()
    assert torch.cat(list(model.weights)).tolist() == pytest.approx([0.95, 1.0, 1.0])


def test_an_unknown_optimizer_is_an_error():
    with pytest.raises(ConfigError, match=r"--optimizer adamm: .*one of .*adam, adamw.*mean"):
        OptimizerConfig(optimizer="adamm")


@pytest.mark.parametrize("text", ["(0.9, 0.98)", "0.9,0.98", "[0.9,0.98]", " ( 0.9 , 0.98 ) "])
def test_fairseq_spellings_of_betas(text):
    assert parsed(OptimizerConfig, ["--adam-betas", text]).adam_betas == (0.9, 0.98)


@pytest.mark.parametrize("text", ["0.9", "(1.0, 0.9)", "__import__('os')", "", "(0.9, -1)"])
def test_wrong_betas_are_refused(text):
    with pytest.raises(ConfigError, match=r"--adam-betas .*: expected"):
        OptimizerConfig(adam_betas=text)


def test_options_after_the_colon_are_those_of_the_flags():
    config = parsed(OptimizerConfig, ["--optimizer", "adam:beta2=0.95,eps=1e-6"])
    assert config == OptimizerConfig(adam_betas=(0.9, 0.95), adam_eps=1e-6)
    assert config == from_dict(OptimizerConfig, {"optimizer": "adam:beta2=0.95,eps=1e-6"})
    (group,) = build_optimizer(Weights([1.0]), config).param_groups
    assert (group["betas"], group["eps"]) == ((0.9, 0.95), 1e-6)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--optimizer", "adam:beta2=0.9", "--adam-betas", "0.9,0.98"], "differ; leave one"),
        (["--optimizer", "adam:beta3=0.9"], r"adam:beta3=0.9: unknown option 'beta3'.*beta1"),
        (["--optimizer", "adam:beta2=1"], r"adam:beta2=1: beta2=1: expected 0 to below"),
        (["--optimizer", "adam:beta2"], "--optimizer: 'adam:beta2': expected NAME or NAME:option"),
    ],
)
def test_wrong_options_after_the_colon(argv, message):
    with pytest.raises(ConfigError, match=message):
        parsed(OptimizerConfig, argv)


def test_optimizers_are_known_before_their_file_is_read():
    names = [n for n in OPTIMIZERS.names() if OPTIMIZERS.get(n).__module__.startswith("relu_nmt.")]
    code = "from relu_nmt.training import OPTIMIZERS; print(*OPTIMIZERS.names())"
    words = [sys.executable, "-c", code]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert printed == names == ["adafactor", "adam", "adamw"]

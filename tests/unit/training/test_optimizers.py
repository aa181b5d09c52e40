import pytest
import torch
from torch import nn

from relu_nmt.errors import ConfigError
from relu_nmt.training.optimization import OPTIMIZERS, OptimizerConfig
from relu_nmt.training.optimizers import build_optimizer


def set_learning_rate(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


class Weights(nn.Module):
    def __init__(self, *values):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.tensor(v)) for v in values)


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_three_steps_by_hand(name):
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


def test_exempt_and_frozen_parameters():
    model = Weights([1.0], [1.0], [1.0])
    model.weights[1].no_weight_decay = True
    model.weights[2].requires_grad_(False)
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.5))
    set_learning_rate(optimizer, 0.1)
    for weight in model.weights[:2]:
        weight.grad = torch.zeros(1)
    optimizer.step()
    assert [w.item() for w in model.weights] == pytest.approx([0.95, 1.0, 1.0])


def test_unknown_name():
    with pytest.raises(ConfigError, match="expected one of adam, adamw"):
        OptimizerConfig(optimizer="sgdd")

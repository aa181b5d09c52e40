"""Linear maps in 8-bit integers against those in float32."""

import pytest
import torch
from torch import nn

from relu_nmt.models.int8 import Int8Linear, use_int8


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 64), (3, 5, 64), (200, 64)])
def test_products_are_as_exact_as_8_bits_allow(shape, bias):
    torch.manual_seed(0)
    linear = nn.Linear(64, 24, bias=bias)
    x = torch.randn(shape)
    with torch.no_grad():
        exact, found = linear(x), Int8Linear(linear)(x)
        # Half a step of x (7 bits over its range), and of each row of the weight.
        step = (x.max() - x.min()) / 127 / 2
        bound = step * linear.weight.abs().sum(1)
        bound = bound + linear.weight.abs().amax(1) / 254 * (x.abs() + step).sum(-1, keepdim=True)
    assert found.shape == exact.shape
    assert bool(((found - exact).abs() <= bound).all())
    assert not torch.equal(found, exact)


def test_all_linear_maps_are_replaced_and_nothing_else():
    model = nn.Sequential(nn.Linear(8, 8), nn.ModuleList([nn.Linear(8, 4)]), nn.LayerNorm(8))
    use_int8(model)
    kinds = [type(module).__name__ for module in model.modules()]
    assert kinds == ["Sequential", "Int8Linear", "ModuleList", "Int8Linear", "LayerNorm"]

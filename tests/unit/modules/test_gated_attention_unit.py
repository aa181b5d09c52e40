"""The gated attention unit against its formula, with masks and causality."""

import pytest
import torch
import torch.nn.functional as F

from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from relu_nmt.modules.gated_attention_unit import GatedAttentionUnit, GatedAttentionUnitConfig

ALL = Need(statistics=True, telemetry=True, weights=True)
SMALL = GatedAttentionUnitConfig(key_dim=6)


def make_unit(config=SMALL, embed_dim=4):
    torch.manual_seed(0)
    unit = GatedAttentionUnit(embed_dim, config).double().eval()
    for parameter in (unit.query_gain, unit.query_shift, unit.key_gain, unit.key_shift):
        parameter.data.normal_()
    return unit


def inputs(batch=2, length=5, embed_dim=4):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, embed_dim, generator=generator, dtype=torch.float64) * 2


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("causal", [False, True])
def test_output_is_the_formula(alpha, causal):
    unit = make_unit(GatedAttentionUnitConfig(key_dim=6, alpha=alpha))
    x = inputs()
    lengths = [3, 5]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    output = unit(x, Visibility(5, 5, key_mask=mask, causal=causal), ALL)
    w_u, w_v, w_b = unit.in_proj.weight.split([8, 8, 6])
    for b, length in enumerate(lengths):
        u, v, base = (F.silu(x[b] @ w.T) for w in (w_u, w_v, w_b))
        for i in range(length):
            n = i + 1 if causal else length
            row = torch.zeros(8, dtype=torch.float64)
            q = base[i] * unit.query_gain + unit.query_shift
            for j in range(n):
                k = base[j] * unit.key_gain + unit.key_shift
                weight = max((q @ k).item() / 6**0.5, 0) ** 2 / n**alpha
                assert output.weights[b, 0, i, j].item() == pytest.approx(weight, rel=1e-9)
                row += weight * v[j]
            expected = (u[i] * row) @ unit.out_proj.weight.T
            torch.testing.assert_close(output.values[b, i], expected, rtol=1e-9, atol=1e-12)
    assert not output.weights[0, 0, :, 3:].any()


def test_later_and_padded_positions_do_not_matter():
    unit, x = make_unit(), inputs()
    whole = unit(x, Visibility(5, 5, causal=True)).values
    changed = x.clone()
    changed[:, 3:] = 1e3
    again = unit(changed, Visibility(5, 5, causal=True)).values
    torch.testing.assert_close(again[:, :3], whole[:, :3])
    mask = torch.tensor([[True] * 3 + [False] * 2] * 2)
    padded = unit(changed, Visibility(5, 5, key_mask=mask)).values
    torch.testing.assert_close(padded[:, :3], unit(x[:, :3], Visibility(3, 3)).values)


def test_number_of_parameters():
    unit = GatedAttentionUnit(16)
    assert sum(p.numel() for p in unit.parameters()) == 6 * 16**2 + 128 * 16 + 4 * 128


def test_gradcheck_also_of_the_second_order():
    unit = make_unit(GatedAttentionUnitConfig(expansion=1, key_dim=3), embed_dim=2)
    x = inputs(1, 3, 2).requires_grad_()
    mask = torch.tensor([[True, True, False]])

    def values(x):
        return unit(x, Visibility(3, 3, key_mask=mask)).values

    assert torch.autograd.gradcheck(values, x)
    assert torch.autograd.gradgradcheck(values, x)


def test_it_learns_to_copy_from_another_position():
    torch.manual_seed(0)
    unit = GatedAttentionUnit(16, GatedAttentionUnitConfig(key_dim=16))
    optimizer = torch.optim.Adam(unit.parameters(), lr=3e-2)
    generator = torch.Generator().manual_seed(2)
    for _ in range(150):
        x = torch.randn(32, 4, 16, generator=generator)
        x[:, :, 4] = torch.tensor([3.0, 0.0, 0.0, 0.0])  # marks the first position
        x[:, :, 5] = 1.0  # what opens the gate u, which has no bias
        values = unit(x, Visibility(4, 4)).values
        loss = (values[:, :, :4] - x[:, :1, :4]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1  # the output 0 has a loss of 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_dim": 0}, "key_dim=0: expected 1 or more"),
        ({"expansion": 0}, "expansion=0: expected 1 or more"),
        ({"h": "tanh"}, "h=tanh: expected one of"),
    ],
)
def test_impossible_settings_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        GatedAttentionUnit(4, GatedAttentionUnitConfig(**options))

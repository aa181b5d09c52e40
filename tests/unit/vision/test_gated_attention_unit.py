"""The gated attention unit against its formula, with masks and causality."""

import pytest
import torch
import torch.nn.functional as F

from relu_nmt.attention.base import Need, build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import record_attention
from relu_nmt.config.registry import Spec
from relu_nmt.vision.gated_block import GatedAttentionUnit
from tests.tiny import num_parameters


def new_unit(embed_dim, inner_dim, key_dim, alpha=1.0):
    spec = Spec.parse(f"pointwise:h=relu2,alpha={alpha},qk_norm=false")
    attention = build_attention(spec, "encoder", 0, 1, key_dim, dropout=0.0)
    return GatedAttentionUnit(embed_dim, inner_dim, attention)


def make_unit(embed_dim=4, inner_dim=8, key_dim=6, alpha=1.0):
    torch.manual_seed(0)
    unit = new_unit(embed_dim, inner_dim, key_dim, alpha).double().eval()
    for parameter in (unit.query_gain, unit.query_shift, unit.key_gain, unit.key_shift):
        parameter.data.normal_()
    return unit


def inputs(batch=2, length=5, embed_dim=4):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, embed_dim, generator=generator, dtype=torch.float64) * 2


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("causal", [False, True])
def test_the_output_matches_the_formula(alpha, causal):
    unit = make_unit(alpha=alpha)
    x = inputs()
    lengths = [3, 5]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    with record_attention(unit, Need(weights=True)) as records:
        output = unit(x, Visibility(5, 5, key_mask=mask, causal=causal))
    weights = records[0].weights
    w_u, w_v, w_b = unit.in_proj.weight.split([8, 8, 6])
    for b, length in enumerate(lengths):
        u = F.silu(x[b] @ w_u.T)
        v = F.silu(x[b] @ w_v.T)
        base = F.silu(x[b] @ w_b.T)
        for i in range(length):
            n = i + 1 if causal else length
            row = torch.zeros(8, dtype=torch.float64)
            q = base[i] * unit.query_gain + unit.query_shift
            for j in range(n):
                k = base[j] * unit.key_gain + unit.key_shift
                weight = max((q @ k).item() / 6**0.5, 0) ** 2 / n**alpha
                assert weights[b, 0, i, j].item() == pytest.approx(weight, rel=1e-9)
                row += weight * v[j]
            expected = (u[i] * row) @ unit.out_proj.weight.T
            torch.testing.assert_close(output[b, i], expected, rtol=1e-9, atol=1e-12)
    assert not weights[0, 0, :, 3:].any()


def test_later_and_padded_positions_do_not_matter():
    unit = make_unit()
    x = inputs()
    output = unit(x, Visibility(5, 5, causal=True))
    changed = x.clone()
    changed[:, 3:] = 1e3
    again = unit(changed, Visibility(5, 5, causal=True))
    torch.testing.assert_close(again[:, :3], output[:, :3])
    mask = torch.tensor([[True] * 3 + [False] * 2] * 2)
    padded = unit(changed, Visibility(5, 5, key_mask=mask))
    torch.testing.assert_close(padded[:, :3], unit(x[:, :3], Visibility(3, 3)))


def test_a_unit_has_the_published_number_of_parameters():
    unit = new_unit(16, 32, 128)
    assert num_parameters(unit) == 6 * 16**2 + 128 * 16 + 4 * 128


def test_first_and_second_order_gradients_are_correct():
    unit = make_unit(embed_dim=2, inner_dim=2, key_dim=3)
    x = inputs(1, 3, 2).requires_grad_()
    mask = torch.tensor([[True, True, False]])

    def values(x):
        return unit(x, Visibility(3, 3, key_mask=mask))

    assert torch.autograd.gradcheck(values, x)
    assert torch.autograd.gradgradcheck(values, x)


def test_a_unit_learns_to_copy_from_another_position():
    torch.manual_seed(0)
    unit = new_unit(16, 32, 16)
    optimizer = torch.optim.Adam(unit.parameters(), lr=3e-2)
    generator = torch.Generator().manual_seed(2)
    for _ in range(150):
        x = torch.randn(32, 4, 16, generator=generator)
        x[:, :, 4] = torch.tensor([3.0, 0.0, 0.0, 0.0])  # marks the first position
        x[:, :, 5] = 1.0  # opens the gate u, which has no bias
        values = unit(x, Visibility(4, 4))
        loss = (values[:, :, :4] - x[:, :1, :4]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1  # the output 0 has a loss of 1

"""n^-alpha h(z) for the seven maps: moments, scale laws, qk-layernorm and gate."""

import math

import numpy as np
import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise import integer_power, pointwise_maps
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.modules.multihead import SelfAttention
from relu_nmt.modules.objective import RegularizedObjective
from tests.attention.helpers import fitted_slope, make_attention, random_qkv

ALL = Need(statistics=True, telemetry=True, weights=True)

MOMENTS = {
    "relu": (0.3989, 0.5),
    "relu2": (0.5, 1.5),
    "gelu": (0.2821, 0.4252),
    "softplus": (0.8061, 0.9212),
    "identity": (0.0, 1.0),
    "relu6": (0.3989, 0.5),
    "sigmoid": (0.5, 0.2934),
}


@pytest.mark.parametrize("exponent", range(10))
def test_a_power_by_products_has_the_value_and_slope_of_pow(exponent):
    z = torch.tensor(
        [-1.7, -1.0, -0.0, 0.0, 0.3, 1.0, 2.5], dtype=torch.float64, requires_grad=True
    )
    power = integer_power(z, exponent)
    expected = torch.tensor([number**exponent for number in z.tolist()], dtype=torch.float64)
    torch.testing.assert_close(power, expected, rtol=1e-15, atol=0)
    (slope,) = torch.autograd.grad(power.sum(), z)
    torch.testing.assert_close(slope, torch.autograd.grad(z.pow(exponent).sum(), z)[0])


@pytest.mark.parametrize("h", sorted(MOMENTS))
def test_moments_of_normal_scores(h):
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    density = (-0.5 * z * z).exp() / math.sqrt(2 * math.pi)
    value = pointwise_maps.get(h).value(z)
    first = torch.trapezoid(value * density, z).item()
    second = torch.trapezoid(value**2 * density, z).item()
    assert (first, second) == pytest.approx(MOMENTS[h], abs=1e-4)


def normal_scores(samples, n):
    """Queries along one axis, so that scores are standard normal whatever the head width."""
    q = torch.zeros(samples, 2, 1, 4, dtype=torch.float64)
    q[..., 0] = 2.0
    return q, *random_qkv(samples, 1, n, seed=n)[1:]


@pytest.mark.parametrize(("h", "alpha"), [("relu", 1.0), ("relu", 0.5), ("softplus", 0.75)])
def test_scale_laws_of_variance_and_row_sum(h, alpha):
    attend = make_attention(f"pointwise:h={h},alpha={alpha}")
    lengths = [16, 64, 256, 1024]
    variances = []
    sums = []
    for n in lengths:
        output = attend(*normal_scores(8000 // int(n**0.5), n), Visibility(1, n), need=ALL)
        variances.append(output.values.var().item())
        sums.append(output.statistics.total.mean().item())
        assert variances[-1] == pytest.approx(n ** (1 - 2 * alpha) * MOMENTS[h][1], rel=0.15)
        assert sums[-1] == pytest.approx(n ** (1 - alpha) * MOMENTS[h][0], rel=0.05)
    assert fitted_slope(lengths, variances) == pytest.approx(1 - 2 * alpha, abs=0.05)
    assert fitted_slope(lengths, sums) == pytest.approx(1 - alpha, abs=0.05)


def test_qk_norm_bounds_the_scores_and_has_two_gains():
    attend = make_attention("pointwise")
    assert [p.shape for p in attend.parameters()] == [(4,), (4,)]
    q, k, _ = random_qkv(1, 5, 6)
    generator = torch.Generator().manual_seed(3)
    for mapped, x, gain in (
        (attend.map_queries, q, attend.query_gain),
        (attend.map_keys, k, attend.key_gain),
    ):
        gain.data.normal_(generator=generator)
        y = mapped(x * 100)
        row = 100 * x[0, 1, 2].numpy()
        spread = np.sqrt(row.var() + 1e-6)
        expected = gain.detach().numpy() * (row - row.mean()) / spread
        assert y[0, 1, 2].tolist() == pytest.approx(expected, rel=1e-9)
        gain.data.fill_(1)
    z = attend.map_queries(q) @ attend.map_keys(k).transpose(-1, -2) / 2
    assert z.abs().max() <= 2
    assert not list(make_attention("pointwise:qk_norm=false").parameters())
    half = attend.float().map_queries(q.half())
    assert half.dtype == torch.float16


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_output_norm_takes_every_length_to_one_scale(dtype):
    attend = make_attention("pointwise:h=relu,alpha=0,qk_norm=false,output_norm=true").to(dtype)
    for n in (4, 400):
        values = attend(*random_qkv(3, n, n, dtype=dtype), Visibility(n, n)).values
        joined = values.transpose(1, 2).flatten(2)  # [B, N, D]
        mean = joined.double().mean(-1, True)
        spread = joined.double().var(-1, False, True)
        expected = (joined.double() - mean) / (spread + 1e-5).sqrt()
        output = attend.finish(joined, joined)
        assert output.dtype == dtype
        torch.testing.assert_close(
            output.double(), expected, rtol=0, atol=3e-2 if dtype == torch.bfloat16 else 1e-9
        )
    gated = make_attention("pointwise:gate=identity,output_norm=true")
    x = joined.double()
    product = gated.output_norm(x) * gated.gate(x)
    torch.testing.assert_close(gated.finish(x, x), product)


@pytest.mark.parametrize(("gate", "act"), [("silu", lambda y: y * y.sigmoid()), ("identity", None)])
def test_gate_multiplies_the_joined_heads(gate, act):
    torch.manual_seed(0)
    attend = make_attention(f"pointwise:gate={gate}")
    joined, x, _ = torch.stack(random_qkv(2, 3, 3, heads=1, dim=8))[:, :, 0]
    y = x @ attend.gate.weight.T
    expected = joined * (act(y) if act else y)
    torch.testing.assert_close(attend.finish(joined, x), expected)
    assert attend.gate.weight.shape == (8, 8) and attend.gate.bias is None


def test_gradcheck_of_the_whole_module():
    torch.manual_seed(0)
    attend = make_attention("pointwise:h=gelu,gate=silu")
    module = SelfAttention(8, attend).double()
    x = random_qkv(1, 4, 1, heads=1, dim=8)[0][:, 0].requires_grad_()

    def values(x):
        return module(x, Visibility(4, 4, causal=True))

    assert torch.autograd.gradcheck(values, x)
    assert torch.autograd.gradgradcheck(values, x)


def test_bfloat16_autocast_keeps_queries_and_values_of_one_dtype():
    torch.manual_seed(0)
    module = SelfAttention(8, make_attention("pointwise:gate=silu").float())
    tensors = []
    module.attention.register_forward_pre_hook(lambda _, inputs: tensors.extend(inputs[:3]))
    with torch.autocast("cpu", torch.bfloat16):
        module(torch.randn(1, 4, 8), Visibility(4, 4))
    q, k, v = tensors
    assert q.dtype == k.dtype == v.dtype == torch.bfloat16


@pytest.mark.parametrize("h", sorted(MOMENTS))
def test_only_maps_that_are_never_negative_can_be_regularized(h):
    attend = make_attention(f"pointwise:h={h}")
    assert attend.capabilities.non_negative == (h not in ("gelu", "identity"))
    config = AttentionRegularizerConfig(attention_norm_weight=1.0)
    if attend.capabilities.non_negative:
        assert RegularizedObjective(attend, 0.0, config).regularizer.active
    else:
        with pytest.raises(ConfigError, match="never negative"):
            RegularizedObjective(attend, 0.0, config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("h=tanh", "h=tanh: expected one of .*relu, relu2"),
        ("h=power", "h=power: expected one of"),
        ("gate=gelu", "gate=gelu: expected one of none, silu, identity"),
        ("alpha=inf", "alpha=inf: expected a number"),
        ("alpha=x", "alpha=x: expected a number"),
    ],
)
def test_unknown_values_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        make_attention(f"pointwise:{options}")

"""Polynomial attention: its scales and the rates of the theory."""

import math

import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.modules.objective import RegularizedObjective
from relu_nmt.training.config import OptimizerConfig
from relu_nmt.training.optimizers import build_optimizer
from tests.attention.helpers import fitted_slope, make_attention, random_qkv

ALL = Need(statistics=True, telemetry=True, weights=True)


def test_the_default_is_power_3_with_a_fixed_scale():
    q, k, v = random_qkv(1, 3, 5)
    stated = make_attention("polynomial:power=3,scale=fixed,per_head=false")
    expected = stated(q, k, v, Visibility(3, 5)).values
    assert torch.equal(make_attention("polynomial")(q, k, v, Visibility(3, 5)).values, expected)


@pytest.mark.parametrize("options", ["", ",length=9", ",per_head=true", ",per_head=true,length=9"])
def test_dynamic_scale_is_learned_without_decay(options):
    attend = make_attention(f"polynomial:scale=dynamic{options}")
    per_head = "per_head" in options
    constant = "length" in options
    assert attend.scale.tolist() == pytest.approx([1 / 3 if constant else 1.0] * (1 + per_head))
    q, k, v = random_qkv(1, 3, 5)
    visibility = Visibility(3, 5)
    before = attend(q, k, v, visibility).values
    with torch.no_grad():
        attend.scale.mul_(-2)
    output = attend(q, k, v, visibility, need=ALL)
    torch.testing.assert_close(output.values, -2 * before)
    torch.testing.assert_close(output.weights @ v, output.values)
    (slope,) = torch.autograd.grad(output.values[:, 0].sum(), attend.scale)
    expected = (output.values[:, 0].sum() / attend.scale[0]).item()
    assert slope[0].item() == pytest.approx(expected, rel=1e-9)
    (group,) = build_optimizer(attend, OptimizerConfig(weight_decay=0.1)).param_groups
    assert group["weight_decay"] == 0.0


@pytest.mark.parametrize("power", [1, 2, 3])
def test_frobenius_norms_grow_as_the_theorems_say(power):
    lengths = [16, 64, 256, 1024]
    unscaled = []
    scaled = []
    double_factorial = {1: 1, 2: 3, 3: 15}[power]
    plain = make_attention(f"polynomial:power={power},scale=none", heads=1, dim=1)
    fixed = make_attention(f"polynomial:power={power}", heads=1, dim=1)
    for n in lengths:
        samples = 4096 // n
        # Unit queries of width 1: every entry of the matrix is one standard normal key.
        q = torch.ones(n * samples, 1, 1, 1, dtype=torch.float64)
        _, k, v = random_qkv(n * samples, 1, n, heads=1, dim=1, seed=n)
        for attend, norms in ((plain, unscaled), (fixed, scaled)):
            squares = attend(q, k, v, Visibility(1, n), need=ALL).weights.square().sum()
            norms.append(math.sqrt(squares.item() / samples))
        assert unscaled[-1] == pytest.approx(n * math.sqrt(double_factorial), rel=0.05)
    assert fitted_slope(lengths, unscaled) == pytest.approx(1.0, abs=0.05)
    assert fitted_slope(lengths, scaled) == pytest.approx(0.5, abs=0.05)


def theory(samples, n, width=6, head=3, seed=0):
    """X [N, D], Q and K [D, d] of the theory, entries N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    x = torch.randn(samples, n, width, **options)
    wq = torch.randn(samples, width, head, **options)
    return x, wq, torch.randn(samples, width, head, **options)


def theory_weights(x, wq, wk, spec):
    """Weights of M = X Q K^T X^T, which has no 1/sqrt(d)."""
    attend = make_attention(spec, heads=1, dim=3)
    q = (x @ wq * 3**0.5)[:, None]
    k = (x @ wk)[:, None]
    return attend(q, k, k, Visibility(q.size(2), k.size(2)), need=ALL).weights[:, 0]


@pytest.mark.parametrize("n", [4, 32])
def test_theorem_4_2_and_4_4_exactly_for_power_1(n):
    x, wq, wk = theory(20_000 // n, n, seed=n)
    matrix = theory_weights(x, wq, wk, "polynomial:power=1,scale=none")
    expected = 3 * (n**2 * 36 + 2 * n * 6)
    assert matrix.square().sum((1, 2)).mean().item() == pytest.approx(expected, rel=0.1)
    gradient = x.square().sum((1, 2)) * (x @ wk).square().sum((1, 2))
    assert gradient.mean().item() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("power", [1, 2, 3])
def test_theorem_4_4_gradient_entries(power):
    x, wq, wk = theory(1, 3)
    spec = f"polynomial:power={power},scale=none"
    jacobian = torch.autograd.functional.jacobian(lambda w: theory_weights(x, w, wk, spec)[0], wq)
    matrix = x[0] @ wq[0] @ wk[0].T @ x[0].T
    inner = power * matrix ** (power - 1)
    expected = torch.einsum("ij,ia,jb->ijab", inner, x[0], x[0] @ wk[0])
    torch.testing.assert_close(jacobian[:, :, 0], expected)


@pytest.mark.parametrize(("scale", "rate"), [("none", 1.0), ("fixed", 0.5)])
def test_corollary_4_5_gradients_grow_as_the_theorem_says(scale, rate):
    lengths = [16, 64, 256, 1024]
    norms = []
    _, wq, wk = theory(4, 1, seed=2)
    for n in lengths:
        x = theory(4, n, seed=n)[0]
        c = 1.0 if scale == "none" else n**-0.5
        weights = theory_weights(x, wq, wk, f"polynomial:power=2,scale={scale}")  # c M^2
        inner = 4 * c * weights  # (2 c M)^2
        squares = torch.einsum("sij,si,sj->s", inner, x.square().sum(-1), (x @ wk).square().sum(-1))
        norms.append(squares.sqrt().mean().item())
    assert fitted_slope(lengths, norms) == pytest.approx(rate, abs=0.05)


def test_the_power_is_taken_element_by_element():
    attend = make_attention("polynomial:power=2,scale=none", heads=1, dim=1)
    q = torch.tensor([[[[1.0], [2.0]]]], dtype=torch.float64)
    k = torch.tensor([[[[3.0], [1.0]]]], dtype=torch.float64)
    weights = attend(q, k, k, Visibility(2, 2), need=ALL).weights[0, 0].tolist()
    assert weights == [[9.0, 1.0], [36.0, 4.0]]


@pytest.mark.parametrize(
    ("options", "non_negative"),
    [("power=2", True), ("power=3", False), ("power=6", True), ("power=2,scale=dynamic", False)],
)
def test_signed_weights_have_no_entropy_and_cannot_be_regularized(options, non_negative):
    attend = make_attention(f"polynomial:{options}")
    assert attend.capabilities.non_negative == non_negative
    rows = attend(*random_qkv(1, 3, 5), Visibility(3, 5), need=ALL).statistics
    assert (rows.entropy is not None) == non_negative
    config = AttentionRegularizerConfig(attention_entropy_weight=1.0)
    if non_negative:
        assert RegularizedObjective(attend, 0.0, config).regularizer.active
    else:
        with pytest.raises(ConfigError, match="never negative"):
            RegularizedObjective(attend, 0.0, config)


@pytest.mark.parametrize("power", [4, 6])
def test_float16_scores_of_20_do_not_overflow_in_high_powers(power):
    attend = make_attention(f"polynomial:power={power},length=65536", heads=1, dim=1).float()
    q = torch.full((1, 1, 1, 1), 20.0, dtype=torch.float16)
    unit = torch.ones(1, 1, 1, 1, dtype=torch.float16)
    output = attend(q, unit, unit * 2.0**-8, Visibility(1, 1), need=ALL)
    assert output.weights.item() == pytest.approx(20**power / 256, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("power=7", "power=7: expected 1 to 6"),
        ("power=0", "power=0: expected 1 to 6"),
        ("power=1.5", "power=1.5: expected a whole number"),
        ("scale=auto", "scale=auto: expected one of fixed, none, dynamic"),
        ("length=0", "length=0: expected 1 or more"),
        (
            "scale=none,length=9",
            "length=9 does nothing with scale=none; it needs scale=fixed or dynamic",
        ),
        ("per_head=true", "per_head=true does nothing with scale=fixed; it needs scale=dynamic"),
    ],
)
def test_unknown_values_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        make_attention(f"polynomial:{options}")

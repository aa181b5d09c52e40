"""Softmax, sparsemax and entmax: rows that sum to 1, against their definitions and facts."""

import math

import pytest
import torch

from relu_nmt.attention import attentions, naive
from relu_nmt.attention.base import AttentionConfig, Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.normalized import EntmaxAttention, entmax
from relu_nmt.errors import ConfigError
from tests.attention.helpers import leaves, make_attention, random_qkv

ALL = Need(statistics=True, telemetry=True, weights=True)
ALPHAS = [2.0, 1.5, 1.3, 1.05]


def scores(*shape, spread=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * spread


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_maps_equal_their_definition(alpha, spread):
    z = scores(4, 30, spread=spread).requires_grad_()
    maps = [entmax(z, alpha), naive.entmax(z, alpha)]
    if alpha == 2:
        maps.append(naive.sparsemax(z))
    [expected] = torch.autograd.grad(maps[0], z, scores(4, 30, seed=1))
    for p in maps[1:]:
        [gradient] = torch.autograd.grad(p, z, scores(4, 30, seed=1))
        torch.testing.assert_close(maps[0], p, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(expected, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spread", [0.001, 1.0, 100.0])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_float32_rows_of_4096_sum_to_1_and_agree_with_float64(alpha, spread):
    z = scores(3, 4096, spread=spread)
    p = entmax(z.float(), alpha)
    assert (p >= 0).all()
    assert (p.double().sum(-1) - 1).abs().max() < 2e-6
    # The rounding of a score of 300 is 3e-5, which no map can undo.
    torch.testing.assert_close(p.double(), entmax(z, alpha), rtol=0, atol=1e-6 + 1e-6 * spread)


@pytest.mark.parametrize("lead", [1.0, 1.5])
def test_sparsemax_is_one_hot_from_a_lead_of_one(lead):
    assert entmax(torch.tensor([0.25 + lead, 0.25, -3.0]), 2.0).tolist() == [1.0, 0.0, 0.0]
    assert entmax(torch.tensor([1.2, 0.25, -3.0]), 2.0).count_nonzero() == 2


def test_entmax15_threshold_in_closed_form():
    # Two keys, x = (0, -a): (0 - t)^2 + (-a - t)^2 = 1 gives t = -(a + sqrt(2 - a^2)) / 2.
    for gap in (0.0, 0.5, 1.9):
        a = gap / 2
        t = -(a + math.sqrt(2 - a * a)) / 2
        p = entmax(torch.tensor([gap, 0.0], dtype=torch.float64), 1.5).tolist()
        assert p == pytest.approx([t * t, (a + t) ** 2], abs=1e-12)
    assert entmax(torch.tensor([2.0, 0.0]), 1.5).tolist() == [1.0, 0.0]


def test_bisection_agrees_with_sorting_and_alpha_near_1_is_softmax():
    z = scores(5, 40)
    torch.testing.assert_close(entmax(z, 1.5 + 1e-13), entmax(z, 1.5), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(entmax(z, 2 - 1e-13), entmax(z, 2.0), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(entmax(z, 1.0005), z.softmax(-1), rtol=0, atol=1e-3)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_constant_changes_no_weight_and_hidden_scores_get_0(alpha):
    z = scores(5, 9)
    p = entmax(z, alpha)
    torch.testing.assert_close(entmax(z + 100, alpha), p, rtol=1e-9, atol=1e-11)
    hidden = torch.cat([z, torch.full((5, 3), -math.inf, dtype=torch.float64)], -1)
    q = entmax(hidden.requires_grad_(), alpha)
    assert not q[:, 9:].any()
    torch.testing.assert_close(q[:, :9], p, rtol=1e-9, atol=1e-12)
    (grad,) = torch.autograd.grad(q.square().sum(), hidden)
    assert grad.isfinite().all() and not grad[:, 9:].any()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_first_and_second_derivatives(alpha):
    z = scores(3, 6, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: entmax(z, alpha), z)
    assert torch.autograd.gradgradcheck(lambda z: entmax(z, alpha), z)


@pytest.mark.parametrize("spec", ["sparsemax", "entmax15", "entmax:alpha=1.3"])
def test_statistics_are_float32_under_autocast(spec):
    attend = make_attention(spec).float()
    q, k, v = random_qkv(1, 3, 40, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output = attend(q, k, v, Visibility(3, 40), need=ALL)
    assert output.weights.dtype == output.statistics.total.dtype == torch.float32
    assert (output.statistics.total - 1).abs().max() < 1e-6


@pytest.mark.parametrize("alpha", ["1", "2.5", "nan", "0.5"])
def test_alpha_out_of_range_is_an_error(alpha):
    with pytest.raises(ConfigError, match=f"alpha={alpha}: expected"):
        make_attention(f"entmax:alpha={alpha}")


def test_softmax_matrix_and_jacobian_norms():
    n = 24
    for spread in (0.0, 1.0, 30.0):
        attend = make_attention("softmax", dim=1)
        q, k, v = torch.stack(random_qkv(1, n, n, dim=1, seed=5))[:, :, :1]
        p = attend(q * spread, k, v, Visibility(n, n), need=ALL).weights[0, 0]
        squares = p.square().sum(-1)
        assert (squares >= 1 / n - 1e-12).all() and (squares <= 1 + 1e-12).all()
        assert 1 - 1e-12 <= p.norm().item() <= math.sqrt(n) + 1e-12
        rows = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]  # the Jacobian of each row
        assert rows.norm(dim=(1, 2)).max().item() <= 0.5 + 1e-12
        assert rows.norm().item() <= math.sqrt(n) / 2 + 1e-12 < 2 * math.sqrt(n)
    halves = torch.tensor([0.5, 0.5, 0.0])
    assert (torch.diag(halves) - halves[:, None] * halves).norm().item() == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_infinite_scores_give_nan(alpha, bad):
    z = scores(3, 5)
    z[1, 2] = bad
    z.requires_grad_()
    p = entmax(z, alpha)
    assert p[1].isnan().all() and p[[0, 2]].isfinite().all()
    torch.testing.assert_close(p[[0, 2]], entmax(z[[0, 2]], alpha))
    (gradient,) = torch.autograd.grad(p.square().sum(), z)
    assert gradient[1].isnan().all()


@pytest.mark.parametrize("need", [Need(), ALL], ids=["values", "all"])
@pytest.mark.parametrize("spec", ["softmax", "sparsemax", "entmax15", "entmax:alpha=1.3"])
def test_queries_that_overflow_float16_make_the_output_not_finite(spec, need):
    attend = make_attention(spec, dim=4).half()
    q, k, v = leaves(1, 3, 5, dtype=torch.float16)
    with torch.no_grad():
        q[0, 0, 1, 0] = torch.inf
    values = attend(q, k, v, Visibility(3, 5), need=need).values
    assert values[0, 0, 1].isnan().all() and values[0, 1].isfinite().all()
    gradients = torch.autograd.grad(values.float().sum(), (q, k, v))
    assert not all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("spec", ["softmax", "sparsemax", "entmax15", "entmax:alpha=1.3"])
def test_autocast_does_not_round_scores(spec):
    attend = make_attention(spec, dim=64)
    q, k, v = (4 * x.bfloat16() for x in random_qkv(1, 40, 300, dim=64))
    expected = attend(q.double(), k.double(), v.double(), Visibility(40, 300), need=ALL)
    with torch.autocast("cpu", torch.bfloat16):
        output = attend(q, k, v, Visibility(40, 300), need=ALL)
    assert output.weights.dtype == torch.float32
    torch.testing.assert_close(output.weights.double(), expected.weights, atol=1e-4, rtol=0)


def test_the_shared_option_qk_norm_is_keyword_only():
    assert EntmaxAttention.Config(1.3) == EntmaxAttention.Config(alpha=1.3, qk_norm=False)


def test_a_mechanism_keeps_its_alpha_without_a_registered_name():
    scores = torch.tensor([[1.0, 0.5, -1.0]])
    for name, alpha in (("sparsemax", 2.0), ("entmax15", 1.5)):
        kind = attentions.get(name)
        attend = type("Own", (kind,), {})(AttentionConfig(), num_heads=1, head_dim=1, dropout=0.0)
        assert torch.equal(attend.normalize(scores), entmax(scores, alpha))

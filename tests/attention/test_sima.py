"""SimA against its formula, its gradient and its scale laws."""

import math

import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from tests.attention.helpers import fitted_slope, make_attention, random_qkv

WEIGHTS = Need(weights=True)


def column_norms(x, order):
    return [
        sum(abs(float(value)) ** order for value in x[:, c]) ** (1 / order)
        for c in range(x.size(1))
    ]


@pytest.mark.parametrize("order", [1, 2])
def test_weights_are_the_printed_formula_over_the_real_tokens(order):
    attend = make_attention(f"sima:norm=l{order}")
    q, k, v = random_qkv(1, 6, 6)
    mask = torch.tensor([[True] * 5 + [False]])
    output = attend(q, k, v, Visibility(6, 6, key_mask=mask), need=WEIGHTS)
    for h in range(2):
        queries, keys = column_norms(q[0, h, :5], order), column_norms(k[0, h, :5], order)
        for i in range(5):
            for j in range(6):
                expected = sum(
                    float(q[0, h, i, c] / queries[c] * k[0, h, j, c] / keys[c]) for c in range(4)
                )
                weight = output.weights[0, h, i, j].item()
                assert weight == pytest.approx(expected if j < 5 else 0.0, rel=1e-10)
            value = output.weights[0, h, i] @ v[0, h]
            torch.testing.assert_close(output.values[0, h, i], value, rtol=1e-10, atol=1e-14)


def test_without_a_norm_the_weights_are_the_products_of_queries_and_keys():
    attend = make_attention("sima:norm=none")
    q, k, v = random_qkv(1, 6, 6)
    mask = torch.tensor([[True] * 5 + [False]])
    output = attend(q, k, v, Visibility(6, 6, key_mask=mask), need=WEIGHTS)
    for h in range(2):
        for i in range(5):
            for j in range(6):
                product = sum(float(a * b) for a, b in zip(q[0, h, i], k[0, h, j], strict=True))
                weight = output.weights[0, h, i, j].item()
                assert weight == pytest.approx(product if j < 5 else 0.0, rel=1e-10)


@pytest.mark.parametrize("tokens", [3, 40])
def test_both_orders_of_the_product_agree(tokens):
    attend = make_attention("sima", dim=8)
    q, k, v = (x.requires_grad_() for x in random_qkv(1, tokens, tokens, dim=8))
    outputs = [
        attend(q, k, v, Visibility(tokens, tokens), need=need).values for need in (Need(), WEIGHTS)
    ]
    torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-15)
    gradients = [torch.autograd.grad(x.square().sum(), (q, k, v)) for x in outputs]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-15)


def test_gradient_is_the_printed_one():
    attend = make_attention("sima")
    q, k, v = (x.requires_grad_() for x in random_qkv(1, 7, 7, seed=1))
    values = attend(q, k, v, Visibility(7, 7)).values
    upstream = torch.randn(values.shape, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(values, q, upstream)
    norms = q.abs().sum(2, keepdim=True)
    scaled = k / k.abs().sum(2, keepdim=True)
    # g is the gradient with respect to the normalised queries.
    g = upstream @ (v.transpose(-1, -2) @ scaled)
    along = (g * q / norms).sum(2, keepdim=True)
    torch.testing.assert_close(gradient, (g - q.sign() * along) / norms, rtol=1e-9, atol=1e-12)


def test_weights_are_bounded_and_shrink_with_the_square_of_the_length():
    lengths, deviations = [16, 64, 256, 1024], []
    attend = make_attention("sima", dim=16)
    for n in lengths:
        q, k, v = random_qkv(1, n, n, dim=16, seed=n)
        weights = attend(q, k, v, Visibility(n, n), need=WEIGHTS).weights
        assert weights.abs().sum((-1, -2)).max().item() <= 16
        deviations.append(weights.std().item())
        assert weights.std().item() == pytest.approx(math.pi / 2 * 4 / n**2, rel=0.2)
    assert fitted_slope(lengths, deviations) == pytest.approx(-2.0, abs=0.05)


def test_dead_channel_gives_nothing_and_has_no_gradient():
    attend = make_attention("sima")
    q, k, v = random_qkv(1, 5, 5)
    q[..., 1] = 0.0
    q.requires_grad_()
    values = attend(q, k, v, Visibility(5, 5)).values
    (gradient,) = torch.autograd.grad(values.sum(), q)
    assert gradient.isfinite().all() and not gradient[..., 1].any() and gradient[..., 0].any()


@pytest.mark.parametrize("slot", ["decoder", "cross"])
def test_where_it_cannot_work_the_error_says_why(slot):
    with pytest.raises(ConfigError, match=r"since it normalises .* whole token axis; choose one"):
        make_attention("sima", slot)
    with pytest.raises(ConfigError, match="norm=l3"):
        make_attention("sima:norm=l3")

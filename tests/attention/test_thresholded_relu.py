"""ReLU over a threshold against its defining equation, and moments of rows in every way."""

import math

import pytest
import torch

from relu_nmt.attention import row_moments
from relu_nmt.attention.base import Need
from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.masks import TreeVisibility, Visibility
from relu_nmt.attention.thresholded_relu import threshold
from tests.attention.helpers import make_attention, make_bias, random_qkv

ROWS = Need(statistics=True, telemetry=True)


def rows_of_normal_scores(power, n, deviation):
    """Return the statistics of 2,000 rows of n independent normal scores."""
    attend = make_attention(f"thresholded_relu:power={power}", "cross", dim=2)
    q = torch.zeros(1000, 2, 1, 2, dtype=torch.float64)
    q[..., 0] = deviation * math.sqrt(2)
    _, k, v = random_qkv(1000, 1, n, dim=2, seed=n)
    return attend(q, k, v, Visibility(1, n), need=ROWS).statistics


@pytest.mark.parametrize("deviation", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("power", [1, 2, 4, 8])
def test_rows_of_normal_scores_sum_to_1_on_average(power, deviation):
    rows = rows_of_normal_scores(power, 1024, deviation)
    assert rows.total.mean().item() == pytest.approx(1, rel=0.05)


def test_rows_get_sharper_as_their_scores_spread():
    largest = [rows_of_normal_scores(4, 64, deviation).largest.mean() for deviation in (0.5, 1, 2)]
    assert 0.04 < largest[0] < largest[1] / 1.5 < largest[2] / 2.5


@pytest.mark.parametrize("power", [1, 2, 4, 8])
def test_the_threshold_solves_its_equation(power):
    x = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    density = torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    for n in (1, 7, 3000):
        for deviation in (0.01, 0.6, 4.0):
            variance = torch.tensor([deviation**2], dtype=torch.float64)
            u = threshold(variance, torch.tensor([float(n)]), power)
            weights = (deviation * x / power - u).relu() ** power
            total = n * torch.trapezoid(weights * density, x)
            assert total.item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_equal_scores_give_the_mean_of_the_visible_values(causal):
    attend = make_attention("thresholded_relu", "decoder")
    _, k, v = random_qkv(2, 6, 6, seed=3)
    q = torch.zeros_like(k)
    values = attend(q, k, v, Visibility(6, 6, causal=causal)).values
    expected = v.mean(2, keepdim=True).expand_as(v)
    if causal:
        expected = v.cumsum(2) / torch.arange(1, 7)[:, None]
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-7)


def test_larger_powers_approach_exponentials():
    q, k, v = random_qkv(50, 3, 200, seed=8)
    k = 0.3 * k
    scores = (q / 2) @ k.mT
    mean = scores.mean(-1, keepdim=True)
    variance = scores.var(-1, keepdim=True, correction=0)
    exponentials = torch.exp(scores - mean - variance / 2) / 200
    distances = []
    for power in (2, 4, 8):
        attend = make_attention(f"thresholded_relu:power={power}", "cross")
        weights = attend(q, k, v, Visibility(3, 200), need=Need(weights=True)).weights
        distances.append((weights - exponentials).abs().sum(-1).mean())
    assert distances[2] < 0.5 * distances[1] < 0.3 * distances[0]


@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_is_added_to_shifted_scores(causal):
    q, k, v = random_qkv(2, 5, 5, dim=4, seed=6)
    visibility = Visibility(5, 5, causal=causal)
    bias = make_bias(visibility)
    attend = make_attention("thresholded_relu")
    shifted_q, shifted_k = attend.shifted_inputs(q / 2, k, visibility)
    weights = ((shifted_q @ shifted_k.mT + bias.values()).relu() / 4) ** 4
    if causal:
        weights = weights.tril()
    values = attend(q, k, v, visibility, bias=bias).values
    torch.testing.assert_close(values, weights @ v)


@pytest.mark.parametrize("kind", ["all keys", "padding", "causal", "tree"])
def test_mean_squares_are_equal_by_covariance_by_scores_and_by_blocks(kind, monkeypatch):
    q, k, _ = random_qkv(2, 9, 9, dim=4, seed=2)
    mask = torch.arange(9) < torch.tensor([[6], [9]])
    seen = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    visibility = Visibility(9, 9)
    if kind == "padding":
        visibility = Visibility(9, 9, key_mask=mask)
        seen = seen & mask[:, None, None]
    elif kind == "causal":
        visibility = Visibility(9, 9, key_mask=mask, causal=True)
        seen = (seen & mask[:, None, None]).tril()
    elif kind == "tree":
        ancestry = torch.rand(2, 9, 9, generator=torch.Generator().manual_seed(1)) < 0.5
        visibility = TreeVisibility(ancestry)
        seen = ancestry[:, None]
    q.requires_grad_()
    k.requires_grad_()
    squares = ((q @ k.mT) * seen).square().sum(-1, keepdim=True)
    expected = squares / seen.sum(-1, keepdim=True).clamp_min(1)
    gradients = torch.autograd.grad(expected.square().sum(), (q, k))
    for least_rows in (100, 2):
        monkeypatch.setattr(tuned, "ROWS_LEAST_ROWS", least_rows)
        monkeypatch.setattr(tuned, "ROWS_BLOCK_WEIGHTS", 1)
        result = row_moments.mean_squares(q, k, visibility)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result.square().sum(), (q, k)), gradients)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_rounds_inputs_and_outputs_only(backend, causal):
    attend = make_attention("thresholded_relu", "decoder", dim=64).float()
    attend.backend = backend
    visibility = Visibility(70, 70, causal=causal)
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v = (4 * x for x in random_qkv(2, 70, 70, dim=64, dtype=dtype))
        exact = attend(q.float(), k.float(), v.float(), visibility).values
        rounded = attend(q, k, v, visibility).values
        torch.testing.assert_close(rounded, exact.to(dtype))
        with torch.autocast("cpu", torch.bfloat16):
            mixed = attend(q, k, v, visibility).values
        torch.testing.assert_close(mixed, rounded)


def test_not_a_number_spreads_and_ends_nothing():
    attend = make_attention("thresholded_relu", "cross")
    q, k, v = random_qkv(1, 2, 3)
    q[0, 0, 0, 0] = math.nan
    values = attend(q, k, v, Visibility(2, 3)).values
    assert values[0, 0, 0].isnan().all()
    assert values[0, 0, 1].isfinite().all()

"""ReLUFormer attention against its theorem and its scale laws."""

import math

import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import TreeVisibility, Visibility
from tests.attention.helpers import SLOTS, fitted_slope, make_attention, make_bias, random_qkv

ALL = Need(statistics=True, telemetry=True, weights=True)


def outputs_of_normal_scores(name, n, causal, batch=12_500, dim=8):
    """Return outputs [batch, 2, Nq, dim] of independent standard normal scores and values.

    Queries are d^0.5 along one axis, so that the scores q k / d^0.5 are the keys' entries there.
    """
    attend = make_attention(name, SLOTS[causal], dim=dim).float()
    num_queries = n if causal else 1
    q = torch.zeros(batch, 2, num_queries, dim)
    q[..., 0] = math.sqrt(dim)
    _, k, v = random_qkv(batch, 1, n, dim=dim, seed=n, dtype=torch.float32)
    return attend(q, k, v, Visibility(num_queries, n, causal=causal)).values


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("pointwise:h=relu,alpha=0,qk_norm=false", lambda n: n / 2),  # without the factor
        ("rela", lambda n: n / 2),  # what its norm is given
        ("reluformer", lambda n: 1.0),
        ("reluformer:gamma=2", lambda n: 0.25),
        ("reluformer:gamma=2,power=2", lambda n: 0.25),
    ],
)
def test_theorem_4_1_gives_the_variance_of_outputs_at_every_length(name, variance, causal):
    # A causal pass has all lengths up to its own.
    for n in (16,) if causal else (1, 8, 32):
        values = outputs_of_normal_scores(name, n, causal)
        lengths = range(1, n + 1) if causal else [n]
        for row, visible in enumerate(lengths):
            measured = values[:, :, row].var().item()
            assert measured == pytest.approx(variance(visible), rel=0.06), visible


@pytest.mark.parametrize(("n", "kurtosis"), [(8, 4.88), (64, 3.23)])
def test_the_outputs_of_theorem_4_1_are_not_gaussian(n, kurtosis):
    y = outputs_of_normal_scores("reluformer", n, causal=False)
    assert ((y / y.std()) ** 4).mean().item() == pytest.approx(kurtosis, rel=0.06)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_centered_rows_with_one_visible_key_are_null_in_every_dtype(backend, dtype):
    attend = make_attention("reluformer:centered=true", "decoder", dim=64).to(dtype)
    attend.backend = backend
    q, k, v = random_qkv(16, 8, 8, dim=64, dtype=dtype)
    mask = torch.arange(8) != torch.arange(16)[:, None] % 2  # the first or second key is hidden
    ancestry = torch.eye(8, dtype=torch.bool).expand(16, 8, 8)
    for visibility, null_rows in (
        (Visibility(8, 8, causal=True), 1),
        (Visibility(8, 8, key_mask=mask, causal=True), 2),
        (TreeVisibility(ancestry, length=1), 8),
    ):
        output = attend(q, k, v, visibility, need=Need(statistics=True))
        assert not output.values[:, :, :null_rows].any()
        assert not output.statistics.total[:, :, :null_rows].any()
        assert output.statistics.total[:, :, null_rows:].all()


def test_a_shift_of_all_keys_does_not_change_centered_scores():
    attend = make_attention("reluformer:centered=true", "cross")
    q, k, v = random_qkv(2, 3, 7, seed=4)
    shared = 10 * torch.randn(2, 2, 1, 4, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(
        attend(q, k + shared, v, Visibility(3, 7)).values, attend(q, k, v, Visibility(3, 7)).values
    )


@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_is_added_to_centered_scores(causal):
    q, k, v = random_qkv(2, 4, 4, dim=4, seed=6)
    visibility = Visibility(4, 4, causal=causal)
    mask = torch.ones(4, 4, dtype=torch.float64).tril() if causal else torch.ones(4, 4).double()
    scores = q @ k.transpose(-1, -2)
    scores = scores - (scores * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
    units = torch.eye(4, dtype=torch.float64).expand(2, 2, 4, 4)
    bias = make_bias(visibility)
    output = make_attention("reluformer:centered=true")(q, k, v, visibility, bias=bias)
    expected = make_attention("reluformer")(scores, units, v, visibility, bias=bias)
    torch.testing.assert_close(output.values, expected.values)


def test_the_variance_is_constant_and_the_row_sum_grows_with_the_root_of_the_length():
    lengths = [16, 64, 256, 1024]
    attend = make_attention("reluformer", dim=16)
    variances = []
    sums = []
    for n in lengths:
        # With unit queries along one axis the scores are standard normal: z_j = 4 * k_j0 / 4.
        q = torch.zeros(1, 2, 1, 16, dtype=torch.float64)
        q[..., 0] = 4.0
        _, k, v = random_qkv(400, 1, n, dim=16, seed=n)
        output = attend(q.expand(400, -1, -1, -1), k, v, Visibility(1, n), need=ALL)
        variances.append(output.values.var().item())
        sums.append(output.statistics.total.mean().item())
        assert sums[-1] == pytest.approx(math.sqrt(n / math.pi), rel=0.05)
    assert fitted_slope(lengths, variances) == pytest.approx(0.0, abs=0.05)
    assert fitted_slope(lengths, sums) == pytest.approx(0.5, abs=0.05)


def test_first_causal_position_is_null_half_of_the_time():
    attend = make_attention("reluformer", "decoder")
    q, k, v = random_qkv(2000, 2, 2, seed=5)
    rows = attend(q, k, v, Visibility(2, 2, causal=True), need=ALL).statistics
    null = (rows.total <= 1e-6).double().mean((0, 1))
    assert null[0].item() == pytest.approx(0.5, abs=0.03)


def test_all_negative_scores_give_zero_output_and_finite_gradients():
    attend = make_attention("reluformer")
    q, k, v = random_qkv(1, 3, 4)
    q, k, v = (q.abs().requires_grad_(), (-k.abs()).requires_grad_(), v.requires_grad_())
    output = attend(q, k, v, Visibility(3, 4), need=ALL)
    assert (
        not output.values.any()
        and not output.statistics.total.any()
        and not output.statistics.entropy.any()
    )
    loss = output.values.sum() + output.statistics.total.sum() + output.statistics.entropy.sum()
    for gradient in torch.autograd.grad(loss, (q, k, v)):
        assert not gradient.any()

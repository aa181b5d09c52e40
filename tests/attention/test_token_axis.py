"""Mechanisms that normalize over the token axis: SimA and cross-covariance attention."""

import math

import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from tests.attention.helpers import fitted_slope, make_attention, random_qkv

WEIGHTS = Need(weights=True)


def test_weights_of_sima_are_bounded_and_shrink_with_the_square_of_the_length():
    lengths = [16, 64, 256, 1024]
    deviations = []
    attend = make_attention("sima", dim=16)
    for n in lengths:
        q, k, v = random_qkv(1, n, n, dim=16, seed=n)
        weights = attend(q, k, v, Visibility(n, n), need=WEIGHTS).weights
        assert weights.abs().sum((-1, -2)).max().item() <= 16
        deviations.append(weights.std().item())
        assert weights.std().item() == pytest.approx(math.pi / 2 * 4 / n**2, rel=0.2)
    assert fitted_slope(lengths, deviations) == pytest.approx(-2.0, abs=0.05)


def test_a_zero_channel_gives_0_and_has_no_gradient():
    attend = make_attention("sima")
    q, k, v = random_qkv(1, 5, 5)
    q[..., 1] = 0.0
    q.requires_grad_()
    values = attend(q, k, v, Visibility(5, 5)).values
    (gradient,) = torch.autograd.grad(values.sum(), q)
    assert gradient.isfinite().all() and not gradient[..., 1].any() and gradient[..., 0].any()


@pytest.mark.parametrize("slot", ["decoder", "cross"])
def test_an_impossible_slot_is_an_error_with_the_reason(slot):
    with pytest.raises(ConfigError, match=r"since it normalizes .* whole token axis; choose one"):
        make_attention("sima", slot)
    with pytest.raises(ConfigError, match="norm=l3"):
        make_attention("sima:norm=l3")


def test_options_of_the_polynomial_kernel_of_xca_need_it():
    with pytest.raises(ConfigError, match="kernel"):
        make_attention("xca:power=2")


def test_the_temperature_of_xca_is_learned_per_head_without_weight_decay():
    attend = make_attention("xca")
    assert attend.temperature.shape == (2,) and attend.temperature.no_weight_decay
    for kind in ("xca", "nystromformer"):
        scale = make_attention(f"{kind}:kernel=polynomial,scale=dynamic").scale
        assert scale.tolist() == [1.0] and scale.no_weight_decay
    q, k, v = random_qkv(1, 4, 4)
    attend(q, k, v, Visibility(4, 4)).values.square().sum().backward()
    assert attend.temperature.grad.abs().min() > 0

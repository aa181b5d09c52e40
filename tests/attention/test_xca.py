"""The options of cross-covariance attention."""

import pytest

from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from tests.attention.helpers import make_attention, random_qkv


def test_options_of_the_polynomial_without_it_are_an_error():
    with pytest.raises(ConfigError, match="kernel"):
        make_attention("xca:power=2")


def test_temperature_is_learnt_per_head_without_weight_decay():
    attend = make_attention("xca")
    assert attend.temperature.shape == (2,) and attend.temperature.no_weight_decay
    for kind in ("xca", "nystromformer"):
        scale = make_attention(f"{kind}:kernel=polynomial,scale=dynamic").scale
        assert scale.tolist() == [1.0] and scale.no_weight_decay
    q, k, v = random_qkv(1, 4, 4)
    attend(q, k, v, Visibility(4, 4)).values.square().sum().backward()
    assert attend.temperature.grad.abs().min() > 0

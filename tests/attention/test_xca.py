"""Cross-covariance attention against its formula."""

import math

import pytest
import torch

from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from tests.attention.helpers import make_attention, random_qkv


def test_values_are_the_printed_formula_over_the_real_tokens():
    attend = make_attention("xca")
    with torch.no_grad():
        attend.temperature.copy_(torch.tensor([0.5, 3.0]))
    q, k, v = random_qkv(1, 6, 6)
    mask = torch.tensor([[True] * 5 + [False]])
    values = attend(q, k, v, Visibility(6, 6, key_mask=mask)).values
    for h, temperature in enumerate([0.5, 3.0]):
        queries, keys = q[0, h, :5].T.tolist(), k[0, h, :5].T.tolist()  # channels
        for a in range(4):
            scores = [
                temperature
                * sum(x * y for x, y in zip(queries[a], keys[b], strict=True))
                / (math.hypot(*queries[a]) * math.hypot(*keys[b]))
                for b in range(4)
            ]
            total = sum(math.exp(score) for score in scores)
            for n in range(5):
                expected = sum(
                    math.exp(score) / total * v[0, h, n, b].item() for b, score in enumerate(scores)
                )
                assert values[0, h, n, a].item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("scale", ["none", "fixed", "dynamic"])
@pytest.mark.parametrize("count", ["tokens", "channels"])
@pytest.mark.parametrize("unit_norm", [True, False])
def test_both_readings_of_the_cube_are_their_formulas(scale, count, unit_norm):
    spec = f"xca:kernel=polynomial,scale={scale},unit_norm={unit_norm}".lower()
    attend = make_attention(spec + ("" if scale == "none" else f",count={count}"))
    q, k, v = random_qkv(1, 6, 6)
    mask = torch.tensor([[True] * 5 + [False]])
    with torch.no_grad():
        attend.temperature.copy_(torch.tensor([0.5, 3.0]))
        if scale == "dynamic":
            assert attend.scale.tolist() == [1.0] and attend.scale.no_weight_decay
            attend.scale.fill_(-2.0)
    values = attend(q, k, v, Visibility(6, 6, key_mask=mask)).values
    size = 5 if count == "tokens" else 4
    factor = {"none": 1.0, "fixed": size**-0.5, "dynamic": -2.0 * size**-0.5}[scale]
    for h, temperature in enumerate([0.5, 3.0]):
        queries, keys = q[0, h, :5].T.tolist(), k[0, h, :5].T.tolist()  # channels
        for a in range(4):
            expected = [0.0] * 5
            for b in range(4):
                product = sum(x * y for x, y in zip(queries[a], keys[b], strict=True))
                norms = math.hypot(*queries[a]) * math.hypot(*keys[b]) if unit_norm else 5**0.5
                weight = factor * (temperature * product / norms) ** 3
                expected = [e + weight * v[0, h, n, b].item() for n, e in enumerate(expected)]
            assert values[0, h, :5, a].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-13)


def test_options_of_the_polynomial_are_refused_without_it():
    with pytest.raises(ConfigError, match="kernel"):
        make_attention("xca:power=2")


def test_temperature_is_learnt_per_head_without_weight_decay():
    attend = make_attention("xca")
    assert attend.temperature.shape == (2,) and attend.temperature.no_weight_decay
    q, k, v = random_qkv(1, 4, 4)
    attend(q, k, v, Visibility(4, 4)).values.square().sum().backward()
    assert attend.temperature.grad.abs().min() > 0

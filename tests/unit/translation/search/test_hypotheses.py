import numpy as np
import pytest

from relu_nmt.config.fields import options_of
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.hypotheses import LengthPenalty


def test_the_two_forms_rank_the_hand_made_hypotheses_differently():
    # spec translation.md section 9, check 4
    short, long = (-6.0, 6), (-8.4, 9)
    power, gnmt = LengthPenalty(1.0), LengthPenalty(1.0, "gnmt")
    assert long[0] / power(long[1]) == pytest.approx(-0.933, abs=5e-4)
    assert long[0] / power(long[1]) > short[0] / power(short[1]) == -1.0
    assert short[0] / gnmt(short[1]) == pytest.approx(-3.27, abs=5e-3)
    assert long[0] / gnmt(long[1]) == pytest.approx(-3.60, abs=5e-3)
    assert short[0] / gnmt(short[1]) > long[0] / gnmt(long[1])


def test_unnormalized_is_exponent_0():
    assert LengthPenalty.of(GenerationConfig(unnormalized=True))(7) == 1.0
    assert LengthPenalty.of(GenerationConfig(lenpen=2.0))(7) == 49.0


@pytest.mark.parametrize("form", ["power", "gnmt"])
def test_the_strongest_penalties_have_room_in_float32(form):
    lenpen = options_of(GenerationConfig)["lenpen"]
    for exponent in (lenpen.least, lenpen.most):
        divisors = LengthPenalty(exponent, form)(np.array([1, 10**6])).astype(np.float32)
        scores = np.float32([-1e-3, -1e7]) / divisors
        assert np.isfinite(scores).all() and (scores < 0).all()


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.6, 1.1])
@pytest.mark.parametrize("form", ["power", "gnmt"])
def test_the_kindest_divisor_bounds_all_lengths(exponent, form):
    penalty = LengthPenalty(exponent, form)
    every = penalty(np.arange(3, 21))
    np.testing.assert_allclose(penalty.kindest(3, np.array([20])), [every.max()])

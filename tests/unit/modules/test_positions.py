"""Position schemes against their published formulas."""

import math

import pytest
import torch

from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.modules import position_schemes
from relu_nmt.modules.positions import PositionConfig, RelativePositions


def scheme(name, embed_dim=8, num_heads=2, causal=False, max_positions=8):
    config = PositionConfig(embed_dim, num_heads, causal, max_positions, "--max-source-positions")
    return position_schemes.get(name)(config)


def test_sinusoidal_positions_stay_the_same_when_the_table_grows():
    positions = scheme("sinusoidal", 6)
    early = positions.embed(3).clone()
    late = positions.embed(5, start=5000)
    assert late.shape == (5, 6)
    torch.testing.assert_close(positions.embed(3), early)
    assert early[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert late[0, 0].item() == pytest.approx(torch.tensor(5000.0).sin().item(), abs=1e-4)


def test_too_long_a_sequence_is_an_error_of_learned_positions():
    positions = scheme("learned", 4)
    assert positions.embed(8).shape == (8, 4)
    with pytest.raises(DataError, match="9 tokens does not fit --max-source-positions 8"):
        positions.embed(9)


def test_rotary_scores_depend_on_the_distance_alone_and_equal_complex_rotation():
    torch.manual_seed(0)
    rotary = scheme("rotary", 16).double()
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def rotated(x, index):
        return RelativePositions(rotary.rotation(torch.tensor([[index]])), None).rotate(x)[0]

    def score(i, j):
        return (rotated(q, i) * rotated(k, j)).sum()

    # Re(sum_c q_c conj(k_c) e^(i (m - n) theta_c)), Eq. 16 of RoFormer
    complex_q = torch.complex(*q[0, 0, 0].chunk(2))
    complex_k = torch.complex(*k[0, 0, 0].chunk(2))
    theta = 10000.0 ** (-2 * torch.arange(4, dtype=torch.float64) / 8)
    for i, j in ((0, 0), (3, 1), (1, 3), (1003, 1001)):
        turned = complex_q * complex_k.conj() * torch.exp(1j * (i - j) * theta)
        torch.testing.assert_close(score(i, j), turned.real.sum(), atol=1e-4, rtol=0)
    with pytest.raises(ConfigError, match="even width, not 3"):
        scheme("rotary", 6, 2)


@pytest.mark.parametrize(
    ("num_heads", "expected"),
    [
        (8, [2.0**-h for h in range(1, 9)]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        # The authors' code: the slopes of 4 heads, then every second slope of 8 heads.
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_alibi_biases_are_slopes_times_distances(num_heads, expected):
    alibi = scheme("alibi", 8 * num_heads, num_heads)
    assert alibi.slopes.tolist() == pytest.approx(expected)
    bias = alibi.bias(Visibility(4, 4)).values()  # [1, H, 4, 4]
    distances = (torch.arange(4)[:, None] - torch.arange(4)).abs()
    torch.testing.assert_close(bias[0], -torch.tensor(expected)[:, None, None] * distances)


def t5_bucket(key_minus_query, bidirectional):
    """The published function, for one number: 32 buckets, largest distance 128."""
    num_buckets = 32
    bucket = 0
    n = -key_minus_query
    if bidirectional:
        num_buckets = 16
        if n < 0:
            bucket = 16
            n = -n
    else:
        n = max(n, 0)
    exact = num_buckets // 2
    if n < exact:
        return bucket + n
    large = exact + int(math.log(n / exact) / math.log(128 / exact) * (num_buckets - exact))
    return bucket + min(large, num_buckets - 1)


@pytest.mark.parametrize("causal", [False, True])
def test_t5_buckets_are_the_published_ones(causal):
    offsets = torch.arange(-5000, 5001)
    buckets = scheme("t5", causal=causal).buckets(offsets)
    expected = [t5_bucket(-offset, not causal) for offset in offsets.tolist()]
    assert buckets.tolist() == expected


@pytest.mark.parametrize("causal", [False, True])
def test_t5_bias_is_looked_up_by_bucket(causal):
    positions = scheme("t5", causal=causal)
    torch.nn.init.normal_(positions.weight)
    bias = positions.bias(Visibility(5, 5, causal=causal)).values()
    for i in range(5):
        for j in range(i + 1 if causal else 5):
            expected = positions.weight[t5_bucket(j - i, not causal)]
            torch.testing.assert_close(bias[0, :, i, j], expected)

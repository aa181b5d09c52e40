"""ReLU attention over a threshold at which rows of normal scores sum to 1."""

import functools
import math

import numpy as np
import torch
from torch import Tensor

from relu_nmt.attention import attentions, row_moments
from relu_nmt.attention.base import AttentionConfig
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise import PointwiseAttention, rectified_power
from relu_nmt.config import option, settings

LEAST_VARIANCE = 1e-8
"""Variance of scores over p^2, below which all keys of a row get about the weight 1 / n."""
INTERVALS = 32
"""Intervals of a table of thresholds in a unit of its variable."""
LARGEST = 40.0
"""End of the table. Only 10^6 keys whose scores deviate by hundreds would reach it."""


@attentions.register("thresholded_relu")
class ThresholdedReLUAttention(PointwiseAttention):
    """w_ij = ReLU((z_ij - m_i) / p - u_i)^p with z = q k^T / sqrt(d), output sum_j w_ij v_j.

    m_i and s_i are the mean and the standard deviation of z_ij over the n_i keys that query i may
    see. The threshold u_i is such that n_i E ReLU(s_i x / p - u_i)^p = 1 for a standard normal x:
    rows of normal scores sum to 1 on average, at every length and spread of the scores. Unlike the
    rows of ReLUFormer they get sharper as their scores spread. A bias is added to z - m.

    It is alpha-entmax for alpha = 1 + 1 / p, except that the threshold is the one for normally
    distributed scores, not the exact one of the row. No sum of weights couples the keys, and memory
    is linear in the length. For large p the weights approach exp(z_ij - m_i - s_i^2 / 2) / n_i.

    docs/lab/study.md compares it with softmax. It is not in a paper. For ReLU, its square and
    entmax see Shen et al. 2023 (ReLUFormer) and Peters, Niculae and Martins 2019.

    Example:
        >>> from relu_nmt.attention.masks import Visibility
        >>> config = ThresholdedReLUAttention.Config()
        >>> attend = ThresholdedReLUAttention(config, num_heads=1, head_dim=1, dropout=0.0)
        >>> q, v = torch.zeros(1, 1, 2, 1), torch.tensor([[[[1.0], [3.0]]]])
        >>> attend(q, q, v, Visibility(2, 2)).values.flatten().round(decimals=5).tolist()
        [2.0, 2.0]
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention thresholded_relu:power=2``."""

        power: int = option(
            4, "exponent p: 1 has the most zeros, large ones approach softmax", least=1, most=8
        )

    shift_channels = 2  # for the mean and the threshold, where queries see different keys
    exact = True  # powers of small differences: 16-bit scores near 4 are rounded by 0.01

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout, rectified_power(config.power))
        self.degree = None  # the threshold depends on the size of the queries

    def shifted_inputs(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Return queries and keys with the products z_ij - m_i - p u_i."""
        q, k = row_moments.centered(q, k, visibility)
        variance = row_moments.mean_squares(q, k, visibility)
        thresholds = threshold(variance, visibility.positive_counts[..., None], self.config.power)
        return row_moments.shifted(q, k, self.config.power * thresholds)

    def row_scale(self, counts: Tensor) -> Tensor:
        """Return p^-p: (z / p)^p = z^p p^-p."""
        return torch.full_like(counts, float(self.config.power) ** -self.config.power)


def threshold(variance: Tensor, counts: Tensor, power: int) -> Tensor:
    """Return u with n E ReLU(s x / p - u)^p = 1 for a standard normal x.

    ``variance`` is s^2 [B, H, Nq, 1], float32 or wider, ``counts`` n [B or 1, 1, Nq or 1, 1], and
    ``power`` p. With c = u p / s and t = log(n (s / p)^p) the equation is log E ReLU(x - c)^p = -t,
    so u n^(1 / p) = c exp(t / p) depends on t alone.
    """
    size = counts.to(variance.dtype)
    spread = (variance / power**2).clamp_min(LEAST_VARIANCE)
    t = (size.log() + power / 2 * spread.log()).clamp_max(LARGEST - 1)
    # Evaluate the polynomial of the interval that holds t.
    position = (t - first_of_table(power)) * INTERVALS
    index = position.detach().nan_to_num().long()  # of NaN scores the result is NaN
    x = position - index
    coefficients = threshold_table(power, variance.dtype, variance.device)
    scaled = torch.zeros_like(x)
    for coefficient in coefficients[index].unbind(-1):
        scaled = scaled * x + coefficient
    return scaled * size.pow(-1 / power)


def first_of_table(power: int) -> float:
    """Return t of one key and the least variance, where the table begins."""
    return power / 2 * math.log(LEAST_VARIANCE)


@functools.cache
def threshold_table(power: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return polynomials of fifth degree for u n^(1 / p), by intervals of t, [T, 6].

    The highest power comes first. The variable of a polynomial goes from 0 to 1 in its interval. At
    both ends the polynomial has the value and the first two derivatives of u n^(1 / p).
    """
    first = first_of_table(power)
    t = first + np.arange((LARGEST - first) * INTERVALS) / INTERVALS
    # Solve for c by Newton's steps from a coarse table of log E ReLU(x - c)^p.
    coarse = np.concatenate([-np.geomspace(1e6, 9, 1000), np.linspace(-8.9, 10, 1000)])
    c = np.interp(t, -np.log(_moments(coarse, power)[2]), coarse)
    for _ in range(3):
        _, slope, moment = _moments(c, power)
        c = c - moment / slope * (t + np.log(moment))
    # Differentiate c by t, and then c exp(t / p).
    bend, slope, moment = _moments(c, power)
    c1 = -moment / slope
    c2 = c1 * (moment * bend / slope**2 - 1)
    factor = np.exp(t / power)
    value = factor * c
    first_derivative = factor * (c1 + c / power) / INTERVALS
    second_derivative = factor * (c2 + 2 * c1 / power + c / power**2) / INTERVALS**2
    # Fit the polynomials to both ends of each interval.
    start = value[:-1]
    start_slope = first_derivative[:-1]
    start_bend = second_derivative[:-1]
    value_gap = value[1:] - start - start_slope - start_bend / 2
    slope_gap = first_derivative[1:] - start_slope - start_bend
    bend_gap = second_derivative[1:] - start_bend
    fifth = 6 * value_gap - 3 * slope_gap + bend_gap / 2
    fourth = -15 * value_gap + 7 * slope_gap - bend_gap
    third = 10 * value_gap - 4 * slope_gap + bend_gap / 2
    coefficients = np.stack([fifth, fourth, third, start_bend / 2, start_slope, start], 1)
    return torch.from_numpy(coefficients).to(device, dtype)


def _moments(c: np.ndarray, power: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the second and first derivative by c, and the value, of E ReLU(x - c)^p, each [T].

    x is standard normal. Gauss-Legendre quadrature from c on, or from where the density is 0.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    low = np.maximum(c, -9)
    half = (np.maximum(c, 0) + 9 - low) / 2
    x = low[:, None] + half[:, None] * (nodes + 1)
    above = x - c[:, None]
    products = half[:, None] * np.exp(-x * x / 2) * (weights / math.sqrt(2 * math.pi))
    moments = [products.sum(1)]
    for _ in range(power):
        products = products * above
        moments.append(products.sum(1))
    slope = -power * moments[power - 1]
    if power == 1:
        bend = np.exp(-c * c / 2) / math.sqrt(2 * math.pi)
    else:
        bend = power * (power - 1) * moments[power - 2]
    return bend, slope, moments[power]

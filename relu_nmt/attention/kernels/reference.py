"""Pointwise attention by the definition, and the statistics of rows of any weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from relu_nmt.attention.base import AttentionProblem, Need, RowStatistics
from relu_nmt.attention.masks import Visibility, biased, dropout
from relu_nmt.attention.pointwise_maps import PointwiseMap
from relu_nmt.attention.regulariser import entropy
from relu_nmt.attention.statistics import NULL_SUM
from relu_nmt.errors import ConfigError


@dataclass
class RowSums:
    """Sums over the weights w of each row, [B, H, Nq] float32; sums of blocks of keys add up."""

    total: Tensor  # sum_j w_j, differentiable
    # Sum_j w_j log w_j with 0 log 0 = 0, differentiable; None where weights may be negative.
    weighted_logs: Tensor | None = None
    nonzero: Tensor | None = None  # number of weights other than 0, with telemetry
    largest: Tensor | None = None  # max_j |w_j|, with telemetry

    @staticmethod
    def joined(parts: "Sequence[RowSums]") -> "RowSums":
        """Return the sums of all rows, from parts that hold some of the rows."""

        def all_rows(name: str) -> Any:
            found = [getattr(part, name) for part in parts]
            return None if found[0] is None else torch.cat(found, 2)

        return RowSums(*(all_rows(each.name) for each in fields(RowSums)))


def row_sums(weights: Tensor, need: Need, non_negative: bool = True) -> RowSums:
    """Return the sums over the last dimension of weights [B, H, Nq, Nk], 0 where masked."""
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if not need.statistics:  # without gradients autograd keeps no matrix
        weights = weights.detach()
    sums = RowSums(weights.sum(-1))
    if non_negative:
        # Clamp inside the logarithm, as 0 log(0) is NaN. At an exact zero the gradient is then
        # finite, and the mechanism's own zero derivative removes it.
        tiny = torch.finfo(weights.dtype).tiny
        sums.weighted_logs = (weights * weights.clamp_min(tiny).log()).sum(-1)
    if need.telemetry:
        with torch.no_grad():
            sums.nonzero = (weights != 0).sum(-1, dtype=torch.float32)
            sums.largest = weights.abs().amax(-1)
    return sums


def row_statistics(
    sums: RowSums, visibility: Visibility, row_scale: Tensor | float = 1.0
) -> RowStatistics:
    """Return the statistics of rows with these sums times ``row_scale`` [B or 1, H or 1, Nq or 1].

    Scaling a row does not change its entropy.
    """
    total = sums.total * row_scale
    statistics = RowStatistics(total, None)
    if sums.weighted_logs is not None:
        statistics.entropy = entropy(sums.total, sums.weighted_logs, total <= NULL_SUM)
    if sums.nonzero is not None and sums.largest is not None:
        with torch.no_grad():
            statistics.zero_fraction = 1 - sums.nonzero / visibility.positive_counts
            # Take the absolute scale, since a learnt factor may be negative.
            scale = row_scale.abs() if isinstance(row_scale, Tensor) else abs(row_scale)
            statistics.largest = sums.largest * scale
    return statistics


@dataclass(slots=True)
class PointwiseProblem(AttentionProblem):
    """out_i = c_i sum_j h(z_ij) m_ij v_j and the row sums of h(z_ij) m_ij, z_ij = q_i k_j + b_ij.

    The queries are already scaled by d^(-1/2), m is the visibility and b the bias. The c_i are
    constants; a learnt factor is multiplied afterwards.
    """

    map: PointwiseMap  # h
    row_scale: Tensor  # c, [B or 1, 1, Nq or 1] float32, no gradient
    # Subtract from z the mean of its row over the visible keys, before the bias. Only back ends
    # that centers see True: for all others q and k are centered beforehand.
    centered: bool = False
    # Returns c(n) h(z) of z and n, for the weights themselves.
    weigh: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(slots=True)
class PointwiseResult:
    """The outputs [B, H, Nq, dv] in the dtype of v, and if wanted sums and weights.

    The sums are those of the rows of h(z) m, without the scale c. The weights [B, H, Nq, Nk] are
    c_i h(z_ij) m_ij in float32.
    """

    values: Tensor
    sums: RowSums | None = None
    weights: Tensor | None = None


def pointwise(problem: PointwiseProblem) -> PointwiseResult:
    """Return the outputs of pointwise attention, and the sums and weights that are wanted."""
    q, k, v, need = problem.q, problem.k, problem.v, problem.need
    # Weights h(z) m. Mask after the map, as softplus(0) and sigmoid(0) are not 0.
    scores = biased(q @ k.transpose(-1, -2), problem.bias)  # [B, H, Nq, Nk]
    weights = problem.map.value(scores)
    if problem.visibility.hidden is not None:
        weights = weights.masked_fill(problem.visibility.hidden, 0.0)
    sums = row_sums(weights, need, problem.map.non_negative) if need.rows else None
    # Outputs c sum_j h(z) m v.
    scale = problem.row_scale[..., None]
    if v.dtype == torch.float16:
        # Unscaled sums over many keys would overflow.
        values = dropout((weights * scale).to(v.dtype), problem.dropout) @ v
    else:
        # One factor a row is cheaper on the output than on the weights.
        values = (dropout(weights, problem.dropout).to(v.dtype) @ v * scale).to(v.dtype)
    # The weights themselves, by the formula of the mechanism.
    scaled = None
    if need.weights:
        assert problem.weigh is not None, "the mechanism sets it"
        scaled = problem.weigh(scores, problem.visibility.positive_counts[..., None].to(scale))
        if problem.visibility.hidden is not None:
            scaled = scaled.masked_fill(problem.visibility.hidden, 0.0)
    return PointwiseResult(values, sums, scaled)


def centered(q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
    """Return queries and keys whose products are q_i (k_j - c_i), c_i the mean of i's visible keys.

    q [B, H, Nq, d] and k [B, H, Nk, d] keep their shapes, or get d + 1 channels, where queries see
    different keys.
    """
    # Sum the visible keys of each query, [B, H, Nq or 1, d].
    exact = visibility.without_padding(k.to(torch.promote_types(k.dtype, torch.float32)))
    if visibility.ancestry is not None:
        sums = visibility.ancestry[:, None].to(exact.dtype) @ exact
    elif visibility.hides_later:
        sums = exact.cumsum(2)[:, :, visibility.num_keys - visibility.num_queries :]
    else:
        sums = exact.sum(2, keepdim=True)
    means = (sums / visibility.positive_counts[..., None]).to(k.dtype)
    # If all queries see the same keys, shift the keys.
    if means.size(2) == 1:
        return q, k - means
    # Otherwise subtract q_i c_i by one more channel. A row that sees one key gets score 0, which
    # the rounded difference of two products would miss.
    q = q.masked_fill((visibility.counts == 1)[..., None], 0.0)
    # Append the shift as a channel, times -1 in the keys.
    shifts = (q * means).sum(-1, keepdim=True)
    return torch.cat([q, shifts], -1), torch.cat([k, -torch.ones_like(k[..., :1])], -1)


def refuse_second_derivatives(backend: str) -> None:
    """Raise a ConfigError in a backward pass with ``create_graph``.

    ``once_differentiable`` would drop a second derivative silently where the loss is linear in the
    outputs.
    """
    if torch.is_grad_enabled():
        raise ConfigError(
            f"--attention-backend {backend} has no second derivatives; choose reference"
        )


def in_one_dtype(problem: PointwiseProblem) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v in the dtype that the products of :func:`pointwise` have."""
    q, k, v = problem.q, problem.k, problem.v
    dtype = v.dtype
    if torch.is_autocast_enabled(v.device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(v.device.type)
    return q.to(dtype), k.to(dtype), v.to(dtype)

"""Pointwise attention by the definition, with the whole matrix of weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relu_nmt.attention.base import AttentionProblem
from relu_nmt.attention.bias import biased
from relu_nmt.attention.pointwise_maps import PointwiseMap
from relu_nmt.attention.stats import RowSums, row_sums
from relu_nmt.dropout import dropout


@dataclass
class PointwiseProblem(AttentionProblem):
    """out_i = c_i sum_j h(z_ij) m_ij v_j and the row sums of h(z_ij) m_ij, z_ij = q_i k_j + b_ij.

    The queries are already scaled by d^(-1/2), m is the visibility and b the bias. The c_i are
    constants of the rows; what is learnt about the scale is multiplied afterwards.

    Args:
        map: h.
        row_scale: c, [B or 1, 1, Nq or 1] float32, no gradient.
    """

    map: PointwiseMap
    row_scale: Tensor


@dataclass(slots=True)
class PointwiseResult:
    """The answer.

    Args:
        values: out, [B, H, Nq, dv], in the dtype of v.
        sums: of the rows of h(z) m, without the scale c, if asked for.
        weights: [B, H, Nq, Nk], c_i h(z_ij) m_ij in float32, if asked for.
    """

    values: Tensor
    sums: RowSums | None = None
    weights: Tensor | None = None


def pointwise(problem: PointwiseProblem) -> PointwiseResult:
    """Return the outputs of pointwise attention and what else is asked for."""
    q, k, v, need = problem.q, problem.k, problem.v, problem.need
    scores = biased(q @ k.transpose(-1, -2), problem.bias)  # [B, H, Nq, Nk]
    weights = problem.map.value(scores)
    if problem.visibility.hidden is not None:
        # After the map: softplus(0) and sigmoid(0) are not 0.
        weights = weights.masked_fill(problem.visibility.hidden, 0.0)
    sums = row_sums(weights, need, problem.map.non_negative) if need.rows else None
    scale = problem.row_scale[..., None]
    if v.dtype == torch.float16:
        # Unscaled sums over many keys would overflow.
        values = dropout((weights * scale).to(v.dtype), problem.dropout) @ v
    else:
        # The scale is one factor a row, so it is cheaper on the output than on the weights.
        values = (dropout(weights, problem.dropout).to(v.dtype) @ v * scale).to(v.dtype)
    scaled = None
    if need.weights:
        scaled = weights.to(torch.promote_types(weights.dtype, torch.float32)) * scale
    return PointwiseResult(values, sums, scaled)

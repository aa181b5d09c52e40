"""Pointwise attention by the definition, with the whole matrix of weights."""

import torch

from relu_nmt.attention.backends.problem import PointwiseProblem, PointwiseResult
from relu_nmt.attention.bias import biased
from relu_nmt.attention.stats import row_sums
from relu_nmt.dropout import dropout


def pointwise(problem: PointwiseProblem) -> PointwiseResult:
    """Return the outputs of pointwise attention and what else is asked for."""
    q, k, v, need = problem.q, problem.k, problem.v, problem.need
    scores = biased(q @ k.transpose(-1, -2), problem.bias)  # [B, H, Nq, Nk]
    weights = problem.map.value(scores)
    if problem.visibility.mask is not None:
        # After the map: softplus(0) and sigmoid(0) are not 0.
        weights = weights.masked_fill(~problem.visibility.mask, 0.0)
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

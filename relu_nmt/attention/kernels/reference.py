"""Attention by the definition: pointwise weights, whole rows of weights, statistics of rows.

Where the weights of a query depend on all its keys, as in softmax, ``Attention.weights`` turns
queries and keys into rows of weights, for all queries at once or for a block of queries. PyTorch
has a fused kernel for softmax.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from relu_nmt.attention.base import AttentionOutput, AttentionProblem, Need, RowStatistics, RowSums
from relu_nmt.attention.dropout import dropout
from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.regularizer import NULL_SUM, entropy


def pointwise(problem: AttentionProblem) -> AttentionOutput:
    """Return the outputs sum_j w_ij v_j of pointwise attention, by its formula.

    The weights are w_ij = c(n_i) h(z_ij) of the scores z_ij = q_i k_j + b_ij. The queries come
    divided by sqrt(d), h is the mechanism's map, b the bias, and c(n_i) the ``row_scale``. The sums
    are of h(z_ij).
    """
    visibility = problem.visibility
    q, k = problem.attention.shifted_inputs(problem.q, problem.k, visibility)
    scores = q @ k.transpose(-1, -2)  # [B, H, Nq, Nk]
    if problem.bias is not None:
        scores = scores + problem.bias.values()
    mapped = problem.attention.map.value(scores)  # h(z)
    # Mask after the map, as softplus(0) and sigmoid(0) are not 0.
    if visibility.hidden is not None:
        mapped = mapped.masked_fill(visibility.hidden, 0.0)
    weights = mapped * problem.row_scale[..., None]
    output = AttentionOutput(weighted_values(weights, problem).to(problem.v.dtype))
    if problem.need.any_statistics:
        output.sums = row_sums(mapped, problem.need, problem.attention.map.non_negative)
    if problem.need.weights:
        output.weights = weights
    return output


def weighted_values(weights: Tensor, problem: AttentionProblem) -> Tensor:
    """Return the sums of the values [B, H, Nq, dv] by weights [B, H, Nq, Nk], after dropout."""
    if problem.dropout > 0:
        weights = dropout(weights, problem.dropout)
    return weights.to(problem.v.dtype) @ problem.v


def row_sums(weights: Tensor, need: Need, non_negative: bool = True) -> RowSums:
    """Return the sums over the last dimension of weights [B, H, Nq, Nk], 0 where masked."""
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if not need.statistics:  # without gradients autograd keeps no matrix
        weights = weights.detach()
    logs = nonzero = largest = None
    if non_negative:
        # Clamp inside the logarithm, as 0 log(0) is NaN. At an exact zero the gradient is then
        # finite, and the mechanism's own zero derivative removes it.
        tiny = torch.finfo(weights.dtype).tiny
        logs = (weights * weights.clamp_min(tiny).log()).sum(-1)
    if need.telemetry:
        with torch.no_grad():
            nonzero = (weights != 0).sum(-1, dtype=torch.float32)
            largest = weights.abs().amax(-1)
    return RowSums(weights.sum(-1), logs, nonzero, largest)


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
            # Take absolute values, since a learned factor may be negative.
            statistics.largest = (sums.largest * row_scale).abs()
    return statistics


def whole_rows(problem: AttentionProblem) -> AttentionOutput:
    """Solve a problem by the definition, with the whole matrix of weights."""
    need = problem.need
    weights = problem.attention.weights(problem)
    statistics = None
    if need.any_statistics:
        sums = row_sums(weights, need, problem.attention.capabilities.non_negative)
        statistics = row_statistics(sums, problem.visibility)
    output = AttentionOutput(weighted_values(weights, problem), statistics=statistics)
    if need.weights:
        output.weights = weights
    return output


def blocks_of_rows(problem: AttentionProblem) -> AttentionOutput:
    """Solve a problem by blocks of queries: memory linear in the length, in both directions.

    The backward pass computes the weights of a block again, and has second derivatives.
    """
    visibility = problem.visibility
    bias = problem.bias
    need = problem.need
    positive = problem.attention.capabilities.non_negative
    num_queries = problem.q.size(2)
    fitting = tuned.ROWS_BLOCK_WEIGHTS * num_queries // max(1, _num_weights(problem))
    rows_per_block = max(tuned.ROWS_LEAST_ROWS, fitting)

    def block(q: Tensor, k: Tensor, v: Tensor, queries: slice) -> tuple[Tensor, RowSums | None]:
        part_bias = None if bias is None else bias.block(queries, slice(k.size(2)))
        visible = visibility.block(queries)
        part = replace(problem, q=q, k=k, v=v, visibility=visible, bias=part_bias)
        weights = problem.attention.weights(part)
        values = weighted_values(weights, part)
        return values, row_sums(weights, need, positive) if need.any_statistics else None

    # Solve block by block. With gradients, keep only the inputs of each.
    solve: Any = block
    if torch.is_grad_enabled():
        solve = partial(checkpoint, block, use_reentrant=False)
    outputs = []
    sums = []
    for start in range(0, num_queries, rows_per_block):
        queries = slice(start, min(start + rows_per_block, num_queries))
        # Leave out keys behind the last query's own.
        keys = slice(visibility.block(queries).num_keys)
        q, k, v = problem.q[:, :, queries], problem.k[:, :, keys], problem.v[:, :, keys]
        values, block_sums = solve(q, k, v, queries)
        outputs.append(values)
        sums.append(block_sums)
    statistics = None
    if need.any_statistics:
        # Join each kind of sums over the blocks.
        tables: list[Any] = [
            None if parts[0] is None else torch.cat(parts, 2) for parts in zip(*sums, strict=True)
        ]
        statistics = row_statistics(RowSums(*tables), visibility)
    return AttentionOutput(torch.cat(outputs, 2), None, statistics)


def solve_rows(problem: AttentionProblem) -> AttentionOutput:
    """Solve a problem by blocks if its matrix is large and not wanted, otherwise at once."""
    if is_large(problem) and not problem.need.weights:
        return blocks_of_rows(problem)
    return whole_rows(problem)


def is_large(problem: AttentionProblem) -> bool:
    """Return True if the matrix of weights is larger than a block."""
    return _num_weights(problem) > tuned.ROWS_BLOCK_WEIGHTS


def needs_blocks(problem: AttentionProblem) -> bool:
    """Return True if the matrix is large and statistics or a bias would need all of it."""
    return is_large(problem) and (problem.need.any_statistics or problem.bias is not None)


def _num_weights(problem: AttentionProblem) -> int:
    """Return B H Nq Nk."""
    return problem.q[..., 0].numel() * problem.k.size(2)


def fused(problem: AttentionProblem) -> AttentionOutput:
    """Return the outputs of softmax attention by PyTorch's fused kernel."""
    visibility = problem.visibility
    # Use the kernel's causal mode only where its triangle fits ours.
    is_square = visibility.num_queries == visibility.num_keys
    only_causal = visibility.hides_later and visibility.key_mask is None and is_square
    mask = None
    if not only_causal:
        mask = visibility.score_mask(problem.q.dtype)
    values = F.scaled_dot_product_attention(
        problem.q,
        problem.k,
        problem.v,
        attn_mask=mask,
        dropout_p=problem.dropout,
        is_causal=only_causal,
    )
    return AttentionOutput(visibility.without_empty_rows(values))


def supports_fused(problem: AttentionProblem) -> bool:
    """Return True if only outputs are wanted, without a bias, which would be a whole matrix."""
    return problem.bias is None and not (problem.need.any_statistics or problem.need.weights)

"""Attention whose weights are made for whole rows: all at once, or for some queries at a time.

It serves mechanisms whose weights of one query depend on all its keys, such as softmax; what is
here knows of them only that they turn queries and keys into rows of weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from relu_nmt.attention.base import AttentionOutput, AttentionProblem
from relu_nmt.attention.stats import RowSums, row_statistics, row_sums
from relu_nmt.dropout import dropout

BLOCK_WEIGHTS = 1 << 22
"""Weights of a block, of all samples and heads together; up to so many are made at once."""
LEAST_ROWS = 16


@dataclass
class RowsProblem(AttentionProblem):
    """out_i = sum_j w_ij v_j, with rows of weights w of which each depends on one query.

    Args:
        weights: returns the weights [B, H, Nq, Nk] of a problem, float32 or wider, 0 where hidden;
            also of one with some of the queries.
        non_negative: whether weights are never negative.
    """

    weights: Callable[[AttentionProblem], Tensor]
    non_negative: bool

    @property
    def num_weights(self) -> int:
        """B H Nq Nk."""
        return self.q[..., 0].numel() * self.k.size(2)


def reference(problem: RowsProblem) -> AttentionOutput:
    """Compute it by the definition, with the whole matrix of weights."""
    need, visibility = problem.need, problem.visibility
    weights = problem.weights(problem)
    rows = None
    if need.rows:
        rows = row_statistics(row_sums(weights, need, problem.non_negative), visibility)
    values = dropout(weights, problem.dropout).to(problem.v.dtype) @ problem.v
    return AttentionOutput(values, weights if need.weights else None, rows)


def blockwise(problem: RowsProblem) -> AttentionOutput:
    """Compute it by blocks of queries: memory linear in the length, in both directions.

    The backward pass makes the weights of a block again, so it has no second derivatives.
    """
    visibility, bias, need = problem.visibility, problem.bias, problem.need
    num_queries = problem.q.size(2)
    size = max(LEAST_ROWS, BLOCK_WEIGHTS * num_queries // max(1, problem.num_weights))

    def block(q: Tensor, k: Tensor, v: Tensor, rows: slice) -> tuple[Tensor, RowSums | None]:
        some_bias = None if bias is None else bias.block(rows, slice(k.size(2)))
        seen = visibility.block(rows)
        weights = problem.weights(replace(problem, q=q, k=k, visibility=seen, bias=some_bias))
        values = dropout(weights, problem.dropout).to(v.dtype) @ v
        return values, row_sums(weights, need, problem.non_negative) if need.rows else None

    parts = []
    for start in range(0, num_queries, size):
        rows = slice(start, min(start + size, num_queries))
        seen = visibility.block(rows).num_keys
        inputs = problem.q[:, :, rows], problem.k[:, :, :seen], problem.v[:, :, :seen], rows
        if torch.is_grad_enabled():
            parts.append(checkpoint(block, *inputs, use_reentrant=False))
        else:
            parts.append(block(*inputs))
    sums = [some for _, some in parts if some is not None]
    statistics = row_statistics(RowSums.joined(sums), visibility) if sums else None
    return AttentionOutput(torch.cat([values for values, _ in parts], 2), None, statistics)


def solve(problem: RowsProblem) -> AttentionOutput:
    """Compute it by blocks if its matrix is large and nobody wants it."""
    solver = blockwise if supports_blocks(problem) and is_large(problem) else reference
    return solver(problem)


def supports_blocks(problem: RowsProblem) -> bool:
    """Whether blocks can solve it: they have no matrix of weights to return."""
    return not problem.need.weights


def is_large(problem: RowsProblem) -> bool:
    """Whether its matrix of weights is more than a block."""
    return problem.num_weights > BLOCK_WEIGHTS

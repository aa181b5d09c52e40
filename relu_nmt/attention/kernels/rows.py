"""Attention whose weights are made for whole rows: all at once, or for some queries at a time.

It serves mechanisms whose weights of one query depend on all its keys, such as softmax; what is
here knows of them only that they turn queries and keys into rows of weights.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from relu_nmt.attention.base import AttentionOutput, AttentionProblem
from relu_nmt.attention.dropout import dropout
from relu_nmt.attention.kernels.reference import RowSums, row_statistics, row_sums

BLOCK_WEIGHTS = 1 << 22
"""Weights of a block, of all samples and heads together; up to so many are made at once."""
LEAST_ROWS = 16


def reference(problem: AttentionProblem) -> AttentionOutput:
    """Compute it by the definition, with the whole matrix of weights."""
    need, visibility = problem.need, problem.visibility
    positive = problem.attention.capabilities.non_negative
    weights = problem.attention.weights(problem)
    rows = None
    if need.rows:
        rows = row_statistics(row_sums(weights, need, positive), visibility)
    values = dropout(weights, problem.dropout).to(problem.v.dtype) @ problem.v
    return AttentionOutput(values, weights if need.weights else None, rows)


def blockwise(problem: AttentionProblem) -> AttentionOutput:
    """Compute it by blocks of queries: memory linear in the length, in both directions.

    The backward pass makes the weights of a block again. It can be differentiated, too.
    """
    visibility, bias, need = problem.visibility, problem.bias, problem.need
    positive = problem.attention.capabilities.non_negative
    num_queries = problem.q.size(2)
    size = max(LEAST_ROWS, BLOCK_WEIGHTS * num_queries // max(1, _num_weights(problem)))

    def block(q: Tensor, k: Tensor, v: Tensor, rows: slice) -> tuple[Tensor, RowSums | None]:
        some_bias = None if bias is None else bias.block(rows, slice(k.size(2)))
        seen = visibility.block(rows)
        weights = problem.attention.weights(
            replace(problem, q=q, k=k, visibility=seen, bias=some_bias)
        )
        values = dropout(weights, problem.dropout).to(v.dtype) @ v
        return values, row_sums(weights, need, positive) if need.rows else None

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


def solve(problem: AttentionProblem) -> AttentionOutput:
    """Compute it by blocks if its matrix is large and nobody wants it."""
    solver = blockwise if supports_blocks(problem) and is_large(problem) else reference
    return solver(problem)


def supports_blocks(problem: AttentionProblem) -> bool:
    """Return whether blocks can solve it: they have no matrix of weights to return."""
    return not problem.need.weights


def is_large(problem: AttentionProblem) -> bool:
    """Return whether its matrix of weights is more than a block."""
    return _num_weights(problem) > BLOCK_WEIGHTS


def _num_weights(problem: AttentionProblem) -> int:
    """B H Nq Nk."""
    return problem.q[..., 0].numel() * problem.k.size(2)

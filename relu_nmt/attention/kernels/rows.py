"""Attention by whole rows of weights: for all queries at once, or for a block of queries.

It serves mechanisms whose weights of one query depend on all its keys, such as softmax. All it
needs is ``Attention.weights``, which turns queries and keys into rows of weights. For softmax
PyTorch has a fused kernel.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from relu_nmt.attention.base import AttentionOutput, AttentionProblem
from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.kernels.reference import RowSums, row_statistics, row_sums
from relu_nmt.attention.masks import dropout


def reference(problem: AttentionProblem) -> AttentionOutput:
    """Solve a problem by the definition, with the whole matrix of weights."""
    need, visibility = problem.need, problem.visibility
    positive = problem.attention.capabilities.non_negative
    weights = problem.attention.weights(problem)
    rows = None
    if need.rows:
        rows = row_statistics(row_sums(weights, need, positive), visibility)
    values = dropout(weights, problem.dropout).to(problem.v.dtype) @ problem.v
    return AttentionOutput(values, weights if need.weights else None, rows)


def blockwise(problem: AttentionProblem) -> AttentionOutput:
    """Solve a problem by blocks of queries: memory linear in the length, in both directions.

    The backward pass computes the weights of a block again, and has second derivatives.
    """
    visibility, bias, need = problem.visibility, problem.bias, problem.need
    positive = problem.attention.capabilities.non_negative
    num_queries = problem.q.size(2)
    # Choose the rows that fill a block of the largest size.
    rows_of_block = tuned.ROWS_BLOCK_WEIGHTS * num_queries // max(1, _num_weights(problem))
    size = max(tuned.ROWS_LEAST_ROWS, rows_of_block)

    def block(q: Tensor, k: Tensor, v: Tensor, rows: slice) -> tuple[Tensor, RowSums | None]:
        # Cut bias and visibility to these rows and the keys they see.
        some_bias = None if bias is None else bias.block(rows, slice(k.size(2)))
        seen = visibility.block(rows)
        weights = problem.attention.weights(
            replace(problem, q=q, k=k, visibility=seen, bias=some_bias)
        )
        values = dropout(weights, problem.dropout).to(v.dtype) @ v
        return values, row_sums(weights, need, positive) if need.rows else None

    # Solve block by block. With gradients, keep only the inputs of each.
    parts = []
    for start in range(0, num_queries, size):
        rows = slice(start, min(start + size, num_queries))
        # Leave out keys behind the last query's own.
        seen = visibility.block(rows).num_keys
        inputs = problem.q[:, :, rows], problem.k[:, :, :seen], problem.v[:, :, :seen], rows
        if torch.is_grad_enabled():
            parts.append(checkpoint(block, *inputs, use_reentrant=False))
        else:
            parts.append(block(*inputs))
    # Join the row sums and outputs of all blocks.
    sums = [some for _, some in parts if some is not None]
    statistics = row_statistics(RowSums.joined(sums), visibility) if sums else None
    return AttentionOutput(torch.cat([values for values, _ in parts], 2), None, statistics)


def solve(problem: AttentionProblem) -> AttentionOutput:
    """Solve a problem by blocks if its matrix is large and not wanted, otherwise at once."""
    solver = blockwise if supports_blocks(problem) and is_large(problem) else reference
    return solver(problem)


def supports_blocks(problem: AttentionProblem) -> bool:
    """Return True if the matrix of weights is not wanted, which blocks do not have."""
    return not problem.need.weights


def is_large(problem: AttentionProblem) -> bool:
    """Return True if the matrix of weights is larger than a block."""
    return _num_weights(problem) > tuned.ROWS_BLOCK_WEIGHTS


def needs_blocks(problem: AttentionProblem) -> bool:
    """Return True if the matrix is large and statistics or a bias would need all of it."""
    return is_large(problem) and (problem.need.rows or problem.bias is not None)


def _num_weights(problem: AttentionProblem) -> int:
    """Return B H Nq Nk."""
    return problem.q[..., 0].numel() * problem.k.size(2)


def fused(problem: AttentionProblem) -> AttentionOutput:
    """Return the outputs of softmax attention by PyTorch's fused kernel."""
    q, k, visibility = problem.q, problem.k, problem.visibility
    # Use the kernel's causal mode only where its triangle fits ours.
    only_causal = visibility.hides_later and visibility.key_mask is None and q.size(2) == k.size(2)
    values = F.scaled_dot_product_attention(
        q,
        k,
        problem.v,
        attn_mask=None if only_causal else visibility.score_mask(q.dtype),
        dropout_p=problem.dropout,
        is_causal=only_causal,
    )
    return AttentionOutput(visibility.without_empty_rows(values))


def supports_fused(problem: AttentionProblem) -> bool:
    """Return True if only outputs are wanted, without a bias, which would be a whole matrix."""
    return problem.bias is None and not (problem.need.rows or problem.need.weights)


def prefers_fused(problem: AttentionProblem) -> bool:
    """Return True if the fused kernel is faster than two products."""
    return tuned.fused_pays(problem.q, problem.k)

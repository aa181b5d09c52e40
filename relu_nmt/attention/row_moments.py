"""Means of the scores of each row over its visible keys, and shifts of the rows.

The scores are products q_i k_j. If all queries see the same keys, the means come from means of keys
and of products of keys. Memory is linear in the length.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from relu_nmt.attention.base import without_autocast
from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.masks import Visibility


def centered(q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
    """Return queries and keys with the products q_i (k_j - c_i).

    c_i is the mean of the keys that query i may see. q [B, H, Nq, d] and k [B, H, Nk, d] keep
    their shapes, or get d + 1 channels, where queries see different keys.
    """
    sums = visibility.visible_sums(k.to(torch.promote_types(k.dtype, torch.float32)))
    means = (sums / visibility.positive_counts[..., None]).to(k.dtype)  # [B, H, Nq or 1, d]
    # If all queries see the same keys, shift the keys.
    if means.size(2) == 1:
        return q, k - means
    # Otherwise shift the rows. A row that sees one key gets score 0, which the rounded difference
    # of two products would miss.
    q = q.masked_fill((visibility.counts == 1)[..., None], 0.0)
    return shifted(q, k, (q * means).sum(-1, keepdim=True))


def shifted(q: Tensor, k: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys of d + 1 channels, with the products q_i k_j - s_i.

    The shifts s are [B, H, Nq, 1].
    """
    minus_one = -torch.ones_like(k[..., :1])
    return torch.cat([q, shifts.to(q.dtype)], -1), torch.cat([k, minus_one], -1)


def mean_squares(q: Tensor, k: Tensor, visibility: Visibility) -> Tensor:
    """Return the mean of (q_i k_j)^2 over the visible keys of each query, [B, H, Nq, 1].

    It is float32 or wider, and 0 for a query that sees no key.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with without_autocast(q.device):
        q = q.to(dtype)
        k = k.to(dtype)
        # For many queries of the same keys, q^T (sum_j k_j k_j^T) q has fewer products.
        if visibility.shares_keys and q.size(2) > q.size(3):
            k = visibility.without_padding(k)
            sums = ((q @ (k.mT @ k)) * q).sum(-1, keepdim=True)
        else:
            sums = _sums_of_squares(q, k, visibility)
    return sums / visibility.positive_counts[..., None]


def _sums_of_squares(q: Tensor, k: Tensor, visibility: Visibility) -> Tensor:
    """Return the sums by blocks of queries, [B, H, Nq, 1]."""

    def block_sums(q: Tensor, k: Tensor, hidden: Tensor | None) -> Tensor:
        products = q @ k.mT
        if hidden is not None:
            products = products.masked_fill(hidden, 0.0)
        return products.square().sum(-1, keepdim=True)

    num_queries = q.size(2)
    products_of_row = max(1, q[..., 0, 0].numel() * k.size(2))
    size = max(tuned.ROWS_LEAST_ROWS, tuned.ROWS_BLOCK_WEIGHTS // products_of_row)
    if num_queries <= size:
        return block_sums(q, k, visibility.hidden)
    sums = []
    for start in range(0, num_queries, size):
        queries = slice(start, min(start + size, num_queries))
        block = visibility.block(queries)
        x, y = q[:, :, queries], k[:, :, : block.num_keys]
        sums.append(checkpoint(block_sums, x, y, block.hidden, use_reentrant=False))
    return torch.cat(sums, 2)

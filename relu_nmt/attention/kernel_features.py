"""Attention by feature maps, in linear time: the base class, linear and efficient attention.

Because the weights f(q_i) g(k_j) factor, sum_j f(q_i) g(k_j)^T v_j is f(q_i) (sum_j g(k_j)^T v_j),
which needs no matrix [Nq, Nk]. ``R`` is the number of features.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Attention, AttentionOutput, AttentionProblem, Capabilities
from relu_nmt.attention.kernels import reference, tuned
from relu_nmt.attention.masks import Visibility

LINEAR_EPSILON = 1e-6


class FeatureAttention(Attention):
    """w_ij = f(q_i) g(k_j) m_ij / D(sum_j f(q_i) g(k_j) m_ij), output sum_j w_ij v_j.

    A subclass defines :meth:`features` (f and g) and may define :meth:`divisor` (D). The matrix of
    weights is computed only for weights, statistics or dropout; for long sequences by blocks of
    queries.
    """

    exact = True

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Return f(q) [B, H, Nq, R] and g(k) [B, H, Nk, R]; those of padded keys do not matter.

        q [B, H, Nq, d] and k [B, H, Nk, d] are float32 or float64.
        """
        raise TypeError(f"{type(self).__name__} must define features")

    def divisor(self, totals: Tensor) -> Tensor:
        """Return D of the row sums, of the same shape."""
        return totals

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """See :meth:`Attention.attend`."""
        visibility = problem.visibility
        queries, keys = self.features(problem.q, problem.k, visibility)
        keys = visibility.without_padding(keys)
        # With the matrix of weights, if it is needed.
        if problem.need.rows or problem.need.weights or problem.dropout > 0:
            problem.q, problem.k = queries, keys
            return reference.solve_rows(problem)
        # A column of ones in v sums the weights of each row.
        extended = F.pad(problem.v, (0, 1), value=1.0)
        sums = masked_sums(queries, keys, extended, visibility)
        # Divide the weighted sums by the row sums in their last channel.
        values = sums[..., :-1] / self.divisor(visibility.without_empty_rows(sums[..., -1:], 1.0))
        return AttentionOutput(visibility.without_empty_rows(values))

    def weights(self, problem: AttentionProblem) -> Tensor:
        """See :meth:`Attention.weights`; q and k are features here."""
        visibility = problem.visibility
        weights = problem.q @ problem.k.transpose(-1, -2)  # [B, H, Nq, Nk]
        if visibility.hidden is not None:
            weights = weights.masked_fill(visibility.hidden, 0.0)
        totals = weights.sum(-1, keepdim=True)
        return weights / self.divisor(visibility.without_empty_rows(totals, 1.0))


@attentions.register("linear")
class LinearAttention(FeatureAttention):
    """out_i = f(q_i) sum_j f(k_j)^T v_j / (f(q_i) sum_j f(k_j) + 1e-6), f(x) = elu(x) + 1.

    Queries are not scaled by d^(-1/2).

    Reference: Katharopoulos et al. 2020, "Transformers are RNNs", Eq. 7 (map), 5 and 9 (causal);
    the 1e-6 comes from the public code.
    """

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """See :meth:`FeatureAttention.features`."""
        return F.elu(q) + 1, F.elu(k) + 1

    def divisor(self, totals: Tensor) -> Tensor:
        """Return the sums plus 1e-6."""
        return totals + LINEAR_EPSILON


@attentions.register("efficient")
class EfficientAttention(FeatureAttention):
    """out = softmax_channels(q) (softmax_tokens(k)^T v), without d^(-1/2).

    The matrix softmax_channels(q) softmax_tokens(k)^T, which is never computed, has rows that sum
    to 1.

    Reference: Shen et al. 2021, "Efficient Attention: Attention with Linear Complexities",
    section 3.2 (softmax normalisation).
    """

    capabilities = Capabilities(
        causal=False, reason="it normalises each channel of the keys over the whole token axis"
    )

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """See :meth:`FeatureAttention.features`."""
        real = visibility.key_column
        if real is not None:
            # Let a sample without keys see all of them: its softmax would be NaN.
            seen = real | ~real.any(2, keepdim=True)
            k = k.masked_fill(~seen, -math.inf)
        return q.softmax(-1), k.softmax(2)

    def divisor(self, totals: Tensor) -> Tensor:
        """Return ones: the rows already sum to 1."""
        return torch.ones_like(totals)


def masked_sums(queries: Tensor, keys: Tensor, v: Tensor, visibility: Visibility) -> Tensor:
    """Return sum_j (queries_i keys_j) m_ij v_j, [B, H, Nq, dv], in the cheapest order.

    queries [B, H, Nq, R] and keys [B, H, Nk, R] are features; keys must be 0 where padding, which
    the visibility m does not hide here.
    """
    # Choose the order by its number of products; an exported graph, which serves all lengths,
    # cannot choose.
    num_queries, num_keys, rank, width = queries.size(2), keys.size(2), keys.size(3), v.size(3)
    by_matrix = num_queries * num_keys * (rank + width)
    ancestry = visibility.ancestry
    is_cheaper = (
        torch.compiler.is_exporting() or by_matrix <= (num_queries + num_keys) * rank * width
    )
    if ancestry is not None or is_cheaper:
        products = queries @ keys.transpose(-1, -2)
        if ancestry is not None:
            products = products * ancestry[:, None]
        elif visibility.hides_later:
            products = products.tril(num_keys - num_queries)
        return products @ v
    # Multiply keys and values first, which is linear in both lengths.
    if not visibility.hides_later:
        return queries @ (keys.transpose(-1, -2) @ v)
    # Sum by chunks, so that causal use stays linear in the length.
    return _causal_sums(queries, keys, v)


def _causal_sums(queries: Tensor, keys: Tensor, v: Tensor) -> Tensor:
    """Return the sums over the keys up to each query's own; the last query's is the last key."""
    # Each chunk of C positions attends to itself by a small matrix, and to all earlier chunks by
    # the running sum of keys^T v, [B, H, chunks, R, dv].
    # Split keys into those before the first query's own and the rest, which form chunks.
    num_queries = queries.size(2)
    old = keys.size(2) - num_queries
    before = keys[:, :, :old].transpose(-1, -2) @ v[:, :, :old]  # [B, H, R, dv]
    queries, keys, v = (_in_chunks(x) for x in (queries, keys[:, :, old:], v[:, :, old:]))
    within = (queries @ keys.transpose(-1, -2)).tril() @ v  # [B, H, chunks, C, dv]
    sums = keys[:, :, :-1].transpose(-1, -2) @ v[:, :, :-1]  # the last chunk is before no other
    # Sum the chunks before each one, earlier keys included.
    running = torch.cat([before[:, :, None], sums], 2).cumsum(2)  # [B, H, chunks, R, dv]
    return (within + queries @ running).flatten(2, 3)[:, :, :num_queries]


def _in_chunks(x: Tensor) -> Tensor:
    padded = F.pad(x, (0, 0, 0, -x.size(2) % tuned.FEATURE_CHUNK))
    return padded.unflatten(2, (-1, tuned.FEATURE_CHUNK))  # [B, H, chunks, C, features]

"""SimA: softmax-free attention with queries and keys normalised over the tokens."""

import torch
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import (
    Attention,
    AttentionConfig,
    AttentionOutput,
    AttentionProblem,
    Capabilities,
)
from relu_nmt.attention.kernels import rows
from relu_nmt.config import option, settings

DEAD_CHANNEL = 1e-12
"""A channel with a norm over the tokens below this counts as zero."""


@settings(flags=False)
class SimAConfig(AttentionConfig):
    """Settings of :class:`SimAAttention`."""

    norm: str = option(
        "l1",
        "norm over the tokens: l1, l2 or none",
        choices=("l1", "l2", "none"),
    )


@attentions.register("sima")
class SimAAttention(Attention):
    """out = (q' k'^T) v, where q'_ic = q_ic / sum_j |q_jc|, the same for k'; no d^(-1/2).

    The order q' (k'^T v) is used where it takes no more products and the weights q' k'^T are not
    needed; with as many keys as queries, from d tokens on. The weights are signed and tiny:
    sum_ij |w_ij| <= d. So everything is float32, as float16 would underflow at 4096 tokens.
    ``norm=none`` leaves q and k as they are; in the paper its loss becomes NaN.

    Reference: Koohpayegani and Pirsiavash 2024, "SimA: Simple Softmax-free Attention for Vision
    Transformers", Eq. 4-6; order of the products: algorithm 1; norms: its ablations.
    """

    Config = SimAConfig
    exact = True
    capabilities = Capabilities(
        causal=False,
        cross=False,
        fewer_keys=True,
        non_negative=False,
        reason="it normalises each channel of queries and keys over the whole token axis",
    )

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """See :meth:`Attention.attend`."""
        need = problem.need
        # Zero the padding, so that norms over the tokens leave it out.
        q, k = map(problem.visibility.without_padding, (problem.q, problem.k))
        if self.config.norm != "none":
            q, k = (normalized_over_tokens(x, int(self.config.norm[1])) for x in (q, k))
        # Make the matrix of weights where it is needed or cheaper.
        wanted = need.rows or need.weights or problem.dropout > 0
        if wanted or not self.channels_first(q.size(2), k.size(2)):
            problem.q, problem.k = q, k
            return rows.solve(problem)
        # Multiply keys and values first, without a matrix of weights.
        return AttentionOutput(q @ (k.transpose(-1, -2) @ problem.v))

    def channels_first(self, num_queries: int, num_keys: int) -> bool:
        """Return True if q' (k'^T v) takes no more products than (q' k'^T) v."""
        return self.head_dim * (num_queries + num_keys) <= 2 * num_queries * num_keys

    def weights(self, problem: AttentionProblem) -> Tensor:
        """See :meth:`Attention.weights`."""
        return problem.q @ problem.k.transpose(-1, -2)  # 0 for padded keys


def normalized_over_tokens(x: Tensor, order: int) -> Tensor:
    """Divide each channel of x [B, H, N, d] by its norm of order 1 or 2 over the tokens.

    x is 0 where padding. A zero channel gives 0 and has no gradient; x / max(norm, eps) would have
    the gradient 1 / eps.
    """
    norms = torch.linalg.vector_norm(x, order, dim=2, keepdim=True)  # [B, H, 1, d]
    return x / norms.masked_fill(norms < DEAD_CHANNEL, torch.inf)

"""SimA: softmax-free attention with queries and keys normalised over the tokens."""

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
from relu_nmt.attention.token_axis import normalized_over_tokens, without_padding
from relu_nmt.config import option, settings


@settings(flags=False)
class SimAConfig(AttentionConfig):
    """Settings of :class:`SimAAttention`."""

    norm: str = option(
        "l1",
        "norm over the tokens: l1, l2 (an ablation), or none, which the paper shows to diverge",
        choices=("l1", "l2", "none"),
    )


@attentions.register("sima")
class SimAAttention(Attention):
    """out = (q' k'^T) v, where q'_ic = q_ic / sum_j |q_jc|, the same for k'; no d^(-1/2).

    It is computed as q' (k'^T v) if that takes no more products, with as many keys as queries from
    as many tokens as channels on, unless the weights q' k'^T are needed. They are signed, and tiny:
    sum_ij |w_ij| <= d, so everything is float32 (at 4096 tokens float16 would underflow). With
    ``norm=none`` q' is q and k' is k, the control whose loss becomes NaN in the paper.

    Reference: Koohpayegani and Pirsiavash 2024, "SimA: Simple Softmax-free Attention for Vision
    Transformers", Eq. 4-6; the order of the products is that of its algorithm 1, the norms those of
    its ablations.

    Example:
        >>> import torch
        >>> from relu_nmt.attention.masks import Visibility
        >>> attend = SimAAttention(SimAConfig(), num_heads=1, head_dim=1, dropout=0.0)
        >>> ones = torch.ones(1, 1, 2, 1)
        >>> attend(ones, ones, ones, Visibility(2, 2)).values.flatten().tolist()
        [0.5, 0.5]
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
        q, k = (without_padding(x, problem.visibility) for x in (problem.q, problem.k))
        if self.config.norm != "none":
            q, k = (normalized_over_tokens(x, int(self.config.norm[1])) for x in (q, k))
        wanted = need.rows or need.weights or problem.dropout > 0
        if wanted or not self.channels_first(q.size(2), k.size(2)):
            problem.q, problem.k = q, k
            return rows.solve(problem)
        return AttentionOutput(q @ (k.transpose(-1, -2) @ problem.v))

    def channels_first(self, num_queries: int, num_keys: int) -> bool:
        """Return whether q' (k'^T v) takes no more products than (q' k'^T) v."""
        return self.head_dim * (num_queries + num_keys) <= 2 * num_queries * num_keys

    def weights(self, problem: AttentionProblem) -> Tensor:
        """See :meth:`Attention.weights`."""
        return problem.q @ problem.k.transpose(-1, -2)  # 0 for padded keys

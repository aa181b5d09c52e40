"""SimA: softmax-free attention with queries and keys normalised over the tokens."""

import torch
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.backends import rows
from relu_nmt.attention.base import (
    NOTHING,
    Attention,
    AttentionConfig,
    AttentionOutput,
    Capabilities,
    Need,
)
from relu_nmt.attention.bias import ScoreBias
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.token_axis import exact, normalized_over_tokens, without_padding
from relu_nmt.config import option, settings


@settings(flags=False)
class SimAConfig(AttentionConfig):
    """Settings of :class:`SimAAttention`."""

    norm: str = option("l1", "norm over the tokens: l1 or l2 (an ablation)", choices=("l1", "l2"))


@attentions.register("sima")
class SimAAttention(Attention):
    """out = (q' k'^T) v, where q'_ic = q_ic / sum_j |q_jc|, the same for k'; no d^(-1/2).

    It is computed as q' (k'^T v) if there are at least as many tokens as channels, unless the
    weights q' k'^T are needed. They are signed, and tiny: sum_ij |w_ij| <= d, so everything is
    float32 (at 4096 tokens float16 would underflow).

    Reference: Koohpayegani and Pirsiavash 2024, "SimA: Simple Softmax-free Attention for Vision
    Transformers", Eq. 4-6; the order of the products is that of its algorithm 1.

    Example:
        >>> attend = SimAAttention(SimAConfig(), num_heads=1, head_dim=1, dropout=0.0)
        >>> ones = torch.ones(1, 1, 2, 1)
        >>> attend(ones, ones, ones, Visibility(2, 2)).values.flatten().tolist()
        [0.5, 0.5]
    """

    Config = SimAConfig
    capabilities = Capabilities(
        causal=False,
        cross=False,
        non_negative=False,
        reason="it normalises each channel of queries and keys over the whole token axis",
    )

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visibility: Visibility,
        *,
        bias: ScoreBias | None = None,
        need: Need = NOTHING,
    ) -> AttentionOutput:
        """See :meth:`Attention.forward`."""
        self.check_request(bias, need)
        order = int(self.config.norm[1])
        with torch.autocast(q.device.type, enabled=False):
            q, k = (
                normalized_over_tokens(without_padding(exact(x), visibility), order) for x in (q, k)
            )
            dropout = self.active_dropout
            if need.rows or need.weights or dropout > 0 or q.size(2) < self.head_dim:
                problem = rows.RowsProblem(
                    q, k, exact(v), visibility, None, _products, False, dropout, need
                )
                output = rows.solve(problem)
            else:
                output = AttentionOutput(q @ (k.transpose(-1, -2) @ exact(v)))
        output.values = output.values.to(v.dtype)
        return output


def _products(q: Tensor, k: Tensor, visibility: Visibility, bias: ScoreBias | None) -> Tensor:
    return q @ k.transpose(-1, -2)  # 0 for padded keys

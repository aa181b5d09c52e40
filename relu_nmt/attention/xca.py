"""Cross-covariance attention: attention between channels instead of tokens."""

from dataclasses import replace

import torch
from torch import nn

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Attention, AttentionConfig, AttentionOutput, AttentionProblem
from relu_nmt.attention.token_axis import MIXES_TOKENS, normalized_over_tokens, without_padding


@attentions.register("xca")
class CrossCovarianceAttention(Attention):
    """out^T = softmax(t q'^T k') v^T, with the channels of q' and k' of l2 norm 1 over the tokens.

    The matrix is [d, d]; t is a learnt temperature per head that starts at 1.

    Reference: El-Nouby et al. 2021, "XCiT: Cross-Covariance Image Transformers", Eq. 2 (its
    transpose, as in the public code).

    Example:
        >>> from relu_nmt.attention.masks import Visibility
        >>> config = AttentionConfig()
        >>> attend = CrossCovarianceAttention(config, num_heads=1, head_dim=1, dropout=0.0)
        >>> v = torch.tensor([[[[1.0], [3.0]]]])
        >>> attend(v, v, v, Visibility(2, 2)).values.flatten().tolist()
        [1.0, 3.0]
    """

    exact = True
    capabilities = replace(
        MIXES_TOKENS,
        reason="it attends between channels, which it normalises over the whole token axis",
    )

    def __init__(
        self, config: AttentionConfig, num_heads: int, head_dim: int, dropout: float
    ) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        self.temperature = nn.Parameter(torch.ones(num_heads))
        self.temperature.no_weight_decay = True  # type: ignore[attr-defined]

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """See :meth:`Attention.attend`."""
        visibility = problem.visibility
        q, k, v = (without_padding(x, visibility) for x in (problem.q, problem.k, problem.v))
        queries = normalized_over_tokens(q, 2)
        keys = normalized_over_tokens(k, 2)
        covariance = queries.transpose(-1, -2) @ keys  # [B, H, d, d]
        weights = (self.temperature[:, None, None] * covariance).softmax(-1)
        return AttentionOutput(v @ weights.transpose(-1, -2))

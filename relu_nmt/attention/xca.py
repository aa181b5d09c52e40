"""Cross-covariance attention: attention between channels instead of tokens."""

from dataclasses import replace

import torch
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import (
    MIXES_TOKENS,
    Attention,
    AttentionConfig,
    AttentionOutput,
    AttentionProblem,
    without_decay,
)
from relu_nmt.attention.polynomial import MAX_POWER, SCALES
from relu_nmt.attention.sima import normalized_over_tokens
from relu_nmt.config import option, settings

POLYNOMIAL = ("kernel", "polynomial")


@settings(flags=False)
class CrossCovarianceConfig(AttentionConfig):
    """Settings of :class:`CrossCovarianceAttention`."""

    kernel: str = option(
        "softmax", "map of the scores: softmax or polynomial", choices=("softmax", "polynomial")
    )
    power: int = option(
        3,
        f"exponent of the polynomial, 1 to {MAX_POWER}",
        least=1,
        most=MAX_POWER,
        needs=POLYNOMIAL,
    )
    scale: str = option(
        "dynamic",
        "of the polynomial: fixed 1/sqrt(N), dynamic (learnt) or none",
        choices=SCALES,
        needs=POLYNOMIAL,
    )
    count: str = option(
        "tokens",
        "N: number of tokens, or of channels of a head",
        choices=("tokens", "channels"),
        needs=[POLYNOMIAL, ("scale", "fixed", "dynamic")],
    )
    unit_norm: bool = option(
        True, "channels of l2 norm 1 over the tokens; else scores / sqrt(tokens)"
    )


@attentions.register("xca")
class CrossCovarianceAttention(Attention):
    """out^T = softmax(t q'^T k') v^T, with the channels of q' and k' of l2 norm 1 over the tokens.

    The matrix is [d, d]; t is a learnt temperature per head that starts at 1.

    With ``kernel=polynomial`` softmax(z) becomes c z^power, element by element, for z = t q'^T k'.
    "Rethinking Softmax" prints c = 1/14 for XCiT too, which is 1/sqrt(N) of its 196 tokens. In its
    theory N is the side of the matrix, which gives 1/sqrt(d); ``count`` chooses. The paper leaves
    open if the norm stays. With it entries of z are of order N^(-1/2); with ``unit_norm=false``,
    z = t q^T k / sqrt(N), they are of order 1. The dynamic scale is c = g / sqrt(N), with a learnt
    g that starts at 1, without weight decay.

    Reference: El-Nouby et al. 2021, "XCiT: Cross-Covariance Image Transformers", Eq. 2 (its
    transpose, as in the public code); Saratchandran et al. 2024, "Rethinking softmax:
    self-attention with polynomial activations", Corollary 4.3 and Table 2.
    """

    Config = CrossCovarianceConfig
    exact = True
    capabilities = replace(
        MIXES_TOKENS,
        reason="it attends between channels, which it normalises over the whole token axis",
    )

    def __init__(
        self, config: CrossCovarianceConfig, num_heads: int, head_dim: int, dropout: float
    ) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        self.temperature = without_decay(torch.ones(num_heads))
        has_scale = config.kernel == "polynomial" and config.scale == "dynamic"
        self.scale = without_decay(torch.ones(1)) if has_scale else None  # g

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """See :meth:`Attention.attend`."""
        visibility = problem.visibility
        q, k, v = map(visibility.without_padding, (problem.q, problem.k, problem.v))
        # Normalise the channels, and compare them by their tokens.
        num_tokens = visibility.positive_counts[..., None].to(q)  # [B or 1, 1, 1, 1]
        if self.config.unit_norm:
            q, k = normalized_over_tokens(q, 2), normalized_over_tokens(k, 2)
        else:
            q = q * num_tokens.rsqrt()
        scores = self.temperature[:, None, None] * (q.transpose(-1, -2) @ k)  # [B, H, d, d]
        return AttentionOutput(v @ self._map(scores, num_tokens).transpose(-1, -2))

    def _map(self, scores: Tensor, num_tokens: Tensor) -> Tensor:
        """Return the weights [B, H, d, d] of scores of the same shape."""
        if self.config.kernel == "softmax":
            return scores.softmax(-1)
        weights = scores.pow(self.config.power)
        if self.config.scale == "none":
            return weights
        if self.config.count == "tokens":
            weights = weights * num_tokens.rsqrt()
        else:
            weights = weights * self.head_dim**-0.5
        return weights if self.scale is None else weights * self.scale

"""Attention that normalizes channels over the token axis: SimA and cross-covariance attention."""

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
    Capabilities,
    without_decay,
)
from relu_nmt.attention.kernels import reference
from relu_nmt.attention.pointwise import integer_power
from relu_nmt.attention.polynomial import MAX_POWER, SCALES
from relu_nmt.config import option, settings

DEAD_CHANNEL = 1e-12
"""A channel with a norm over the tokens below this counts as zero."""
POLYNOMIAL = ("kernel", "polynomial")


def normalized_over_tokens(x: Tensor, order: int) -> Tensor:
    """Divide each channel of x [B, H, N, d] by its norm of order 1 or 2 over the tokens.

    Padded rows of x must be 0. A zero channel gives 0 and has gradient 0, where x / max(norm, eps)
    would have the gradient 1 / eps.
    """
    norms = torch.linalg.vector_norm(x, order, dim=2, keepdim=True)  # [B, H, 1, d]
    return x / norms.masked_fill(norms < DEAD_CHANNEL, torch.inf)


@attentions.register("sima")
class SimAAttention(Attention):
    """out = (q' k'^T) v, where q'_ic = q_ic / sum_j |q_jc|, the same for k'. No d^(-1/2).

    If the weights are not needed, q' (k'^T v) is computed where this order takes no more products:
    with as many keys as queries, from d tokens on. The weights are signed and tiny: sum_ij |w_ij|
    <= d. So everything is float32, as float16 would underflow at 4096 tokens. ``norm=none`` leaves
    q and k as they are. With it the loss in the paper becomes NaN.

    Reference: Koohpayegani and Pirsiavash 2024, "SimA: Simple Softmax-free Attention for Vision
    Transformers", Eq. 4-6. Order of the products: algorithm 1. Norms: its ablations.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention sima:norm=l2``."""

        norm: str = option(
            "l1", "norm over the tokens: l1, l2 or none", choices=("l1", "l2", "none")
        )

    exact = True
    capabilities = Capabilities(
        causal=False,
        cross=False,
        fewer_keys=True,
        non_negative=False,
        reason="it normalizes each channel of queries and keys over the whole token axis",
    )

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        need = problem.need
        # Zero the padding, so that norms over the tokens leave it out.
        q, k = map(problem.visibility.without_padding, (problem.q, problem.k))
        if self.config.norm != "none":
            q, k = (normalized_over_tokens(x, int(self.config.norm[1])) for x in (q, k))
        needs_weights = need.any_statistics or need.weights or problem.dropout > 0
        if needs_weights or not self.channels_first(q.size(2), k.size(2)):
            return reference.solve_rows(replace(problem, q=q, k=k))
        return AttentionOutput(q @ (k.transpose(-1, -2) @ problem.v))

    def channels_first(self, num_queries: int, num_keys: int) -> bool:
        """Return True if q' (k'^T v) takes no more products than (q' k'^T) v."""
        return self.head_dim * (num_queries + num_keys) <= 2 * num_queries * num_keys

    def weights(self, problem: AttentionProblem) -> Tensor:
        return problem.q @ problem.k.transpose(-1, -2)  # 0 for padded keys


@attentions.register("xca")
class CrossCovarianceAttention(Attention):
    """out^T = softmax(t q'^T k') v^T, with the channels of q' and k' of l2 norm 1 over the tokens.

    The matrix is [d, d]. t is a learned temperature per head that starts at 1.

    With ``kernel=polynomial`` softmax(z) becomes c z^power, element by element, for z = t q'^T k'.
    "Rethinking Attention" prints c = 1/14 for XCiT too, the 1/sqrt(N) of its 196 tokens. In the
    paper's theory N is the side of the matrix, which gives 1/sqrt(d). ``count`` chooses N. The
    paper does not say whether q and k are normalized. If they are, entries of z are of order
    N^(-1/2). With ``unit_norm=false``, z = t q^T k / sqrt(N) has entries of order 1. The dynamic
    scale is c = g / sqrt(N), with a learned g that starts at 1, without weight decay.

    Reference: El-Nouby et al. 2021, "XCiT: Cross-Covariance Image Transformers", Eq. 2 (its
    transpose, as in the public code). Saratchandran et al. 2024, "Rethinking
    Attention: Polynomial Alternatives to Softmax in Transformers", Corollary 4.3 and Table 2.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention xca:kernel=polynomial``."""

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
            "scale of the polynomial: fixed 1/sqrt(N), dynamic (learned) or none",
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
            True, "give channels l2 norm 1 over the tokens, else divide scores by sqrt(tokens)"
        )

    exact = True
    capabilities = replace(
        MIXES_TOKENS,
        reason="it attends between channels, which it normalizes over the whole token axis",
    )

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        self.temperature = without_decay(torch.ones(num_heads))
        self.scale = None
        if config.kernel == "polynomial" and config.scale == "dynamic":
            self.scale = without_decay(torch.ones(1))  # g

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        visibility = problem.visibility
        q, k, v = map(visibility.without_padding, (problem.q, problem.k, problem.v))
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
        weights = integer_power(scores, self.config.power)
        if self.config.scale == "none":
            return weights
        if self.config.count == "tokens":
            weights = weights * num_tokens.rsqrt()
        else:
            weights = weights * self.head_dim**-0.5
        if self.scale is not None:
            weights = weights * self.scale
        return weights

"""Nystromformer: attention through landmarks, the means of segments of tokens."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Attention, AttentionConfig, AttentionOutput, AttentionProblem
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.polynomial import SCALES
from relu_nmt.attention.token_axis import (
    MIXES_TOKENS,
    TokenConvolution,
    check_width,
    without_padding,
)
from relu_nmt.config import option, settings

POLYNOMIAL_POWER = 3
SMALLEST = 1e-30
"""Below it the largest weight between landmarks counts as 0."""


@settings(flags=False)
class NystromformerConfig(AttentionConfig):
    """Settings of :class:`NystromformerAttention`."""

    landmarks: int = option(64, "number of landmarks m", least=1)
    kernel: str = option("softmax", "softmax or polynomial", choices=("softmax", "polynomial"))
    scale: str = option(
        "fixed",
        "of the polynomial: fixed 1/sqrt(n), dynamic (learnt) or none",
        choices=SCALES,
        needs=("kernel", "polynomial"),
    )
    iterations: int = option(6, "steps towards the pseudo-inverse", least=1)
    conv: int = option(0, "width of the convolution of the values, odd; 0 = none, LRA has 35")

    def check(self) -> None:
        """See that the convolution has a middle."""
        check_width(self.conv)


@attentions.register("nystromformer")
class NystromformerAttention(Attention):
    """out = K(q, k_l) K(q_l, k_l)^+ K(q_l, k) v, q and k each times d^(-1/4); l are landmarks.

    A landmark is the mean of ceil(n / m) consecutive queries, or keys, of the n real tokens; so
    padding does not move it. K is softmax(x y^T) by rows, or n^(-1/2) (x y^T)^3. ``scale`` may
    replace n^(-1/2) by 1, or by g n^(-1/2) with a learnt g a layer that starts at 1, without weight
    decay; the output has this factor once. If every token is its own landmark (n <= m), the result
    is full attention, K(q, k) v. A convolution of v may be added. Outputs of the polynomial kernel
    grow with the length of the segments; with thousands of tokens in each they overflow float16,
    but not bfloat16.

    Reference: Xiong et al. 2021, "Nystromformer", Eq. 13-14 and algorithm 1; the polynomial
    kernel is a reconstruction of "Rethinking Softmax", which does not print the formula.
    Deviation: the pseudo-inverse starts from the norms of each matrix by itself.
    """

    Config = NystromformerConfig
    exact = True
    capabilities = replace(
        MIXES_TOKENS, reason="its landmarks are means over all tokens of one sequence"
    )

    def __init__(
        self, config: NystromformerConfig, num_heads: int, head_dim: int, dropout: float
    ) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        self.convolution = TokenConvolution(num_heads, config.conv) if config.conv else None
        self.scale = None
        if config.scale == "dynamic":
            self.scale = nn.Parameter(torch.ones(1))  # g
            self.scale.no_weight_decay = True  # type: ignore[attr-defined]

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """See :meth:`Attention.attend`."""
        visibility = problem.visibility
        q, k, v = (without_padding(x, visibility) for x in (problem.q, problem.k, problem.v))
        scale = self.head_dim**-0.25
        values = self._attend(q * scale, k * scale, v, visibility)
        if self.convolution is not None:
            values = values + self.convolution(v)
        if visibility.empty_rows is not None:
            values = values.masked_fill(visibility.empty_rows, 0.0)
        return AttentionOutput(values)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility) -> Tensor:
        num_tokens = k.size(2)
        # Means of segments: landmarks of queries, keys and values.
        count = visibility.counts[..., None].to(k)  # n, [B or 1, 1, 1, 1]
        segments = segment_means(visibility, num_tokens, self.config.landmarks, k)
        present = segments.any(-1)[..., None, :]  # [B or 1, 1, 1, m]
        landmark_q, landmark_k, landmark_v = (segments @ x for x in (q, k, v))
        # Choose the polynomial's scale: n^(-1/2) or 1, perhaps times a learnt g.
        scale = (
            count.clamp_min(1).rsqrt() if self.config.scale != "none" else torch.ones_like(count)
        )
        if self.scale is not None:
            scale = scale * self.scale

        to_landmarks = self._kernel(q, landmark_k, present, scale)  # [B, H, N, m]
        # An exported graph, which serves any N, takes the general way; the result is the same.
        if isinstance(num_tokens, int) and num_tokens <= self.config.landmarks:
            return to_landmarks @ landmark_v
        core = self._kernel(landmark_q, landmark_k, present, scale)  # [B, H, m, m]
        # Zero the rows and columns of landmarks without tokens; the inverse keeps them zero.
        core = core * (present.transpose(-1, -2) & present)
        real = visibility.key_mask
        keys = None if real is None else real[:, None, None, :]
        from_tokens = self._kernel(landmark_q, k, keys, scale)  # [B, H, m, N]
        mixed = pseudo_inverse(core, self.config.iterations) @ (from_tokens @ v)
        # Use full attention where each token is its own landmark.
        return to_landmarks @ torch.where(count <= self.config.landmarks, landmark_v, mixed)

    def _kernel(self, x: Tensor, y: Tensor, seen: Tensor | None, scale: Tensor) -> Tensor:
        """Return K(x, y) [B, H, Nx, Ny] over the ``seen`` [B or 1, 1, 1, Ny]."""
        scores = x @ y.transpose(-1, -2)
        if self.config.kernel == "polynomial":
            weights = scale * scores.pow(POLYNOMIAL_POWER)
            return weights if seen is None else weights.masked_fill(~seen, 0.0)
        if seen is not None:
            # Let a sample without tokens see all of its zeros: its softmax would be NaN.
            seen = seen | ~seen.any(-1, keepdim=True)
            scores = scores.masked_fill(~seen, -torch.inf)
        return scores.softmax(-1)


def segment_means(visibility: Visibility, num_tokens: int, count: int, like: Tensor) -> Tensor:
    """Return [B or 1, 1, m, N], the matrix that averages segments of tokens.

    Segments have ceil(n / count) of the n real tokens of a sample, the last one perhaps fewer;
    segments that begin after the last token have rows of zeros.

    Args:
        visibility: which tokens are real.
        num_tokens: N, with padding.
        count: the largest number of segments; m is the smaller of it and N, or always this in an
            exported graph for any N.
        like: a tensor with the wanted dtype and device.
    """
    # Number the segment of each token.
    real_tokens = visibility.counts[:, 0].to(like.device, torch.int64)  # [B or 1, 1]
    size = ((real_tokens + count - 1) // count).clamp_min(1)
    segment = visibility.places().to(like.device) // size  # [B or 1, N]
    # Mark the real tokens of each segment, and divide by their number.
    most = min(count, num_tokens) if isinstance(num_tokens, int) else count
    numbers = torch.arange(most, device=like.device)
    member = segment[:, None, :] == numbers[:, None]  # [B or 1, m, N]
    if visibility.key_mask is not None:
        member = member & visibility.key_mask[:, None, :]
    sizes = member.sum(-1, keepdim=True).clamp_min(1)
    return (member.to(like.dtype) / sizes)[:, None]


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Return an approximate pseudo-inverse of each [m, m] matrix, by third-order steps.

    Rows and columns of zeros stay zero. Absolute values make the start valid for signed matrices.

    Reference: Nystromformer, Eq. 11 (Razavi et al. 2014).
    """
    absolute = matrix.abs()
    # Scale the matrix: cubes of small scores have norms whose product would be 0 in float32.
    largest = absolute.detach().amax((-2, -1), keepdim=True)
    largest = largest.masked_fill(largest < SMALLEST, 1.0)
    matrix, absolute = matrix / largest, absolute / largest
    # Start from A^T / (|A|_1 |A|_inf), then take the steps.
    norms = absolute.sum(-2).amax(-1) * absolute.sum(-1).amax(-1)  # |A|_1 |A|_inf
    norms = norms.masked_fill(norms == 0, 1.0)[..., None, None]
    inverse = matrix.transpose(-1, -2) / norms
    identity = torch.eye(matrix.size(-1), dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = 0.25 * inverse @ (13 * identity - product @ inner)
    # Undo the scaling, which multiplied the inverse.
    return inverse / largest

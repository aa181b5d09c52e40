"""SOFT: softmax-free attention by a Gaussian kernel and a low-rank inverse."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Attention, AttentionConfig, AttentionOutput, AttentionProblem
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.token_axis import (
    MIXES_TOKENS,
    TokenConvolution,
    check_width,
    without_padding,
)
from relu_nmt.config import option, settings


@settings(flags=False)
class SOFTConfig(AttentionConfig):
    """Settings of :class:`SOFTAttention`."""

    stride: int = option(8, "tokens per landmark", least=1)
    iterations: int = option(20, "Newton steps towards the inverse", least=1)
    normalized: bool = option(False, "divide the inverse by the root of the row sums on both sides")
    conv: int = option(0, "width of the convolution of the values, odd; 0 = none")

    def check(self) -> None:
        """See that the convolution has a middle."""
        check_width(self.conv)


@attentions.register("soft")
class SOFTAttention(Attention):
    """out = g(q, l) g(l, l)^(-1) g(k, l)^T v, g(x, y) = exp(-|x - y|^2 / 2), k = q, times d^(-1/4).

    The landmarks l are GELU(LayerNorm(convolution(q))) of each ``stride`` tokens, with the same
    parameters for all heads. Newton's steps invert g(l, l). The paper is for images; here the
    tokens lie in one line, with zeros for padding and beyond the end.

    The squared length of a landmark is about 0.43 d at first, so g of a query and a landmark is
    about exp(-0.21 d): 1e-3 in the paper's heads of 32, 1e-6 in heads of 64, where gradients
    vanish.

    Reference: Lu et al. 2021, "SOFT: Softmax-free Transformer with Linear Complexity", Eq. 6-9 and
    algorithm 2; ``normalized`` comes from its extended version. Deviation: the steps start from
    A / |A|_1^2, not from twice that, which converges to 0 where all landmarks are equal, such as a
    single one. Half of it takes one more step.
    """

    Config = SOFTConfig
    shares_queries_and_keys = True
    exact = True
    capabilities = replace(
        MIXES_TOKENS, reason="queries and keys are the same and its landmarks come from all tokens"
    )

    def __init__(self, config: SOFTConfig, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        # A convolution whose stride is its width is a linear map of windows.
        self.window = nn.Linear(config.stride * head_dim, head_dim)
        self.norm = nn.LayerNorm(head_dim)
        self.convolution = TokenConvolution(num_heads, config.conv) if config.conv else None

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """See :meth:`Attention.attend`."""
        visibility = problem.visibility
        q, k, v = (without_padding(x, visibility) for x in (problem.q, problem.k, problem.v))
        scale = self.head_dim**-0.25
        q, k = q * scale, k * scale
        # Kernels of queries, keys and landmarks with the landmarks.
        landmarks = self._landmarks(q)  # [B, H, m, d]
        from_queries = gaussian(q, landmarks)  # [B, H, N, m]
        from_keys = gaussian(k, landmarks)
        core = gaussian(landmarks, landmarks)  # [B, H, m, m]
        # Remove the rows and columns of landmarks of padding alone.
        present = self._present(visibility)
        if present is not None:
            from_queries = from_queries * present
            core = core * (present & present.transpose(-1, -2))
        inverse = newton_inverse(core, self.config.iterations)
        if self.config.normalized:
            # Take row sums of landmarks; rows of zeros keep the factor 1.
            totals = core.sum(-1)
            roots = totals.masked_fill(totals == 0, 1.0).rsqrt()
            inverse = roots[..., :, None] * inverse * roots[..., None, :]
        # Multiply from the right, which is linear in N.
        values = from_queries @ (inverse @ (from_keys.transpose(-1, -2) @ v))
        if self.convolution is not None:
            values = values + self.convolution(v)
        return AttentionOutput(values)

    def _landmarks(self, q: Tensor) -> Tensor:
        windows = in_windows(q, self.config.stride)
        return F.gelu(self.norm(self.window(windows)))

    def _present(self, visibility: Visibility) -> Tensor | None:
        """Return [B, 1, 1, m] bool, True for landmarks of at least one real token."""
        if visibility.key_mask is None:
            return None
        real = visibility.key_mask[:, None, :, None]
        return in_windows(real, self.config.stride).any(-1)[:, :, None, :]


def in_windows(x: Tensor, stride: int) -> Tensor:
    """Return x [B, H, N, d] as [B, H, m, stride * d], with zeros behind the last token.

    In an exported graph for any N the last window holds zeros only.
    """
    num_tokens = x.size(2)
    # Pad to whole windows where the length is a plain number.
    if isinstance(num_tokens, int):
        filled = F.pad(x, (0, 0, 0, -num_tokens % stride))
        return filled.unflatten(2, (-1, stride)).flatten(3)
    # torch.export would fix whether m is 1, and cannot divide by the stride.
    count = (num_tokens + 2 * stride - 1) // stride
    places = torch.arange(stride, device=x.device)
    tokens = torch.arange(count, device=x.device)[:, None] * stride + places
    return F.pad(x, (0, 0, 0, 2 * stride - 1))[:, :, tokens].flatten(3)


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """Return exp(-|x_i - y_j|^2 / 2), [..., Nx, Ny]."""
    lengths = x.square().sum(-1)[..., :, None] + y.square().sum(-1)[..., None, :]
    return (x @ y.transpose(-1, -2) - lengths / 2).exp()


def newton_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Return an approximate inverse of each symmetric non-negative [m, m], by Newton's steps.

    Rows and columns of zeros stay zero. See :class:`SOFTAttention` for the start.
    """
    norms = matrix.sum(-2).amax(-1)  # |A|_1
    norms = norms.masked_fill(norms == 0, 1.0)[..., None, None]
    inverse = matrix / norms.square()
    for _ in range(iterations):
        inverse = 2 * inverse - inverse @ matrix @ inverse
    return inverse

"""Helpers of mechanisms that mix or normalise over the whole token axis."""

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import Capabilities
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError

MIXES_TOKENS = Capabilities(
    causal=False, cross=False, weights=False, non_negative=False, permutation_invariant=False
)
"""Capabilities of mechanisms that mix the tokens of one sequence without a matrix of weights."""
DEAD_CHANNEL = 1e-12
"""A channel with a norm over the tokens below this counts as zero."""


def key_column(visibility: Visibility) -> Tensor | None:
    """Return [B, 1, Nk, 1] bool, True = real key; ``None`` if no key is padding."""
    mask = visibility.key_mask
    return None if mask is None else mask[:, None, :, None]


def without_padding(x: Tensor, visibility: Visibility) -> Tensor:
    """Return x [B, H, N, d] with 0 in the rows of padded keys.

    In self-attention without causality the padded queries are the padded keys.
    """
    real = key_column(visibility)
    return x if real is None else x.masked_fill(~real, 0.0)


def normalized_over_tokens(x: Tensor, order: int) -> Tensor:
    """Divide each channel of x [B, H, N, d] by its norm of order 1 or 2 over the tokens.

    x is 0 where padding. A zero channel gives 0 and has no gradient; x / max(norm, eps) would have
    the gradient 1 / eps.
    """
    norms = torch.linalg.vector_norm(x, order, dim=2, keepdim=True)  # [B, H, 1, d]
    return x / norms.masked_fill(norms < DEAD_CHANNEL, torch.inf)


class TokenConvolution(nn.Module):
    """A convolution of the values over an odd number of tokens: one kernel a head, no bias.

    Reference: Nystromformer, section 3.2 (skip connection of the values); its LRA experiments use
    35 tokens.
    """

    def __init__(self, num_heads: int, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(
            num_heads, num_heads, (width, 1), padding=(width // 2, 0), groups=num_heads, bias=False
        )

    def forward(self, v: Tensor) -> Tensor:
        """Convolve v [B, H, N, d], 0 where padding."""
        return self.convolution(v)


def check_width(width: int) -> None:
    """Raise a ConfigError unless ``width`` is a width of :class:`TokenConvolution`, or 0."""
    if width < 0 or (width > 0 and width % 2 == 0):
        raise ConfigError(f"conv={width}: expected 0 (none) or an odd number of tokens")

"""The position-wise feed-forward networks.

One of your own is a module made with (embed_dim, ffn_dim, dropout) and registered by name, most
easily a subclass of :class:`FeedForward` with another ``activate``.
"""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.dropout import Dropout
from relu_nmt.modules import feed_forwards


class FeedForward(nn.Module):
    """W2 activate(W1 x + b1) + b2.

    Args:
        embed_dim: D.
        ffn_dim: inner width F.
        dropout: probability after the activation.

    Example:
        >>> import torch
        >>> from relu_nmt.modules import feed_forwards
        >>> network = feed_forwards.get("swiglu")(8, 16, 0.0)
        >>> tuple(network(torch.zeros(2, 3, 8)).shape)
        (2, 3, 8)
    """

    inner_parts: ClassVar[int] = 1
    """Inner vectors of width F that ``activate`` makes one of."""

    def __init__(self, embed_dim: int, ffn_dim: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(embed_dim, self.inner_parts * ffn_dim)
        self.outer = nn.Linear(ffn_dim, embed_dim)
        self.dropout = Dropout(dropout)
        for linear, parts in ((self.inner, self.inner_parts), (self.outer, 1)):
            for weight in linear.weight.chunk(parts):
                nn.init.xavier_uniform_(weight)
            nn.init.zeros_(linear.bias)

    def activate(self, hidden: Tensor) -> Tensor:
        """Map [..., inner_parts * F] to [..., F]."""
        raise TypeError(f"{type(self).__name__} must define activate")

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        return self.outer(self.dropout(self.activate(self.inner(x))))


@feed_forwards.register("relu")
class ReluFeedForward(FeedForward):
    """activate(h) = max(h, 0).

    Reference: Vaswani et al. 2017, "Attention is all you need", Eq. 2.
    """

    def activate(self, hidden: Tensor) -> Tensor:
        """See :meth:`FeedForward.activate`."""
        return F.relu(hidden)


@feed_forwards.register("gelu")
class GeluFeedForward(FeedForward):
    """activate(h) = h Phi(h), with the exact normal distribution function.

    Reference: Hendrycks and Gimpel 2016, "Gaussian error linear units", section 2.
    """

    def activate(self, hidden: Tensor) -> Tensor:
        """See :meth:`FeedForward.activate`."""
        return F.gelu(hidden)


@feed_forwards.register("silu")
class SiluFeedForward(FeedForward):
    """activate(h) = h sigmoid(h).

    Reference: Elfwing et al. 2018, "Sigmoid-weighted linear units", Eq. 9.
    """

    def activate(self, hidden: Tensor) -> Tensor:
        """See :meth:`FeedForward.activate`."""
        return F.silu(hidden)


class GatedFeedForward(FeedForward):
    """activate((g, h)) = gate(g) h; three matrices in place of two.

    So two thirds of the usual ``ffn_dim`` give the usual number of parameters.
    """

    inner_parts = 2

    def gate(self, x: Tensor) -> Tensor:
        """Map [..., F] to [..., F]."""
        raise TypeError(f"{type(self).__name__} must define gate")

    def activate(self, hidden: Tensor) -> Tensor:
        """See :meth:`FeedForward.activate`."""
        gate, value = hidden.chunk(2, dim=-1)
        return self.gate(gate) * value


@feed_forwards.register("swiglu")
class SwiGLUFeedForward(GatedFeedForward):
    """gate(g) = g sigmoid(g).

    Reference: Shazeer 2020, "GLU variants improve transformer", Eq. 6, here with biases.
    """

    def gate(self, x: Tensor) -> Tensor:
        """See :meth:`GatedFeedForward.gate`."""
        return F.silu(x)


@feed_forwards.register("geglu")
class GEGLUFeedForward(GatedFeedForward):
    """gate(g) = g Phi(g).

    Reference: Shazeer 2020, "GLU variants improve transformer", Eq. 6, here with biases.
    """

    def gate(self, x: Tensor) -> Tensor:
        """See :meth:`GatedFeedForward.gate`."""
        return F.gelu(x)

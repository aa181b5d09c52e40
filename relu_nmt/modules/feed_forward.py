"""The position-wise feed-forward networks.

One of your own is a module made with (embed_dim, ffn_dim, dropout) and registered by name, most
easily a subclass of :class:`FeedForward` with another ``activate``, or of one of these with
``gated = True``.
"""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.dropout import Dropout
from relu_nmt.modules import feed_forwards


class FeedForward(nn.Module):
    """W2 activate(W1 x + b1) + b2; if ``gated``, W2 (activate(W1 x + b1) * (W3 x + b3)) + b2.

    A gated one has three matrices in place of two, so two thirds of the usual ``ffn_dim`` give the
    usual number of parameters.

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

    gated: ClassVar[bool] = False

    def __init__(self, embed_dim: int, ffn_dim: int, dropout: float) -> None:
        super().__init__()
        parts = 2 if self.gated else 1
        self.inner = nn.Linear(embed_dim, parts * ffn_dim)  # W1, and W3 below it
        self.outer = nn.Linear(ffn_dim, embed_dim)
        self.dropout = Dropout(dropout)
        for weight in (*self.inner.weight.chunk(parts), self.outer.weight):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.bias)

    def activate(self, hidden: Tensor) -> Tensor:
        """Map [..., F] to [..., F]."""
        raise TypeError(f"{type(self).__name__} must define activate")

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        hidden = self.inner(x)
        if self.gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            hidden = self.activate(gate) * hidden
        else:
            hidden = self.activate(hidden)
        return self.outer(self.dropout(hidden))


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


@feed_forwards.register("swiglu")
class SwiGLUFeedForward(SiluFeedForward):
    """Gated by h sigmoid(h).

    Reference: Shazeer 2020, "GLU variants improve transformer", Eq. 6, here with biases.
    """

    gated = True


@feed_forwards.register("geglu")
class GEGLUFeedForward(GeluFeedForward):
    """Gated by h Phi(h).

    Reference: Shazeer 2020, "GLU variants improve transformer", Eq. 6, here with biases.
    """

    gated = True

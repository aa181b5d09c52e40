"""The position-wise feed-forward networks.

Your own network is a module that takes (embed_dim, ffn_dim, dropout), registered by name. The
easiest is a subclass of :class:`FeedForward` with another ``activate``, perhaps with ``gated`` or
``normed``. A network with options names its settings class ``Config`` and takes an instance of it
as a fourth argument.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.dropout import dropout
from relu_nmt.config import from_flat, option, settings
from relu_nmt.config.registry import Spec
from relu_nmt.errors import ConfigError, reporting
from relu_nmt.modules import feed_forwards


def build_feed_forward(text: str, embed_dim: int, ffn_dim: int, dropout: float) -> nn.Module:
    """Make the feed-forward network that ``--feed-forward`` names by ``NAME:option=value,...``."""
    spec = Spec.parse(text)
    kind: Any = feed_forwards.get(spec.name)
    arguments: list[Any] = [embed_dim, ffn_dim, dropout]
    with reporting(f"--feed-forward {text}", ConfigError, ConfigError):
        if hasattr(kind, "Config"):
            arguments.append(from_flat(kind.Config, spec.options))
        elif spec.options:
            raise ConfigError(f"{spec.name} has no options")
    return kind(*arguments)


class FeedForward(nn.Module):
    """W2 activate(W1 x + b1) + b2. If ``gated``, W2 (activate(W1 x + b1) * (W3 x + b3)) + b2.

    A gated network has three matrices in place of two, so two thirds of the usual ``ffn_dim`` give
    the usual number of parameters. ``normed`` adds a LayerNorm with gain and bias to the output.
    Without ``inner_bias`` b1 and b3 are 0.

    Args:
        embed_dim: D.
        ffn_dim: inner width F.
        dropout: probability after the activation.
        activation: maps [..., F] to [..., F]. None where a subclass defines :meth:`activate`.
    """

    gated: ClassVar[bool] = False
    normed: ClassVar[bool] = False
    inner_bias: ClassVar[bool] = True

    def __init__(
        self,
        embed_dim: int,
        ffn_dim: int,
        dropout: float,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation
        # One matrix holds W1, and W3 below it.
        parts = 1 + self.gated
        self.inner = nn.Linear(embed_dim, parts * ffn_dim, bias=self.inner_bias)
        self.outer = nn.Linear(ffn_dim, embed_dim)
        self.dropout = dropout
        # Initialize W1 and W3 apart, each by its shape.
        for weight in (*self.inner.weight.chunk(parts), self.outer.weight):
            nn.init.xavier_uniform_(weight)
        for bias in (self.inner.bias, self.outer.bias):
            if bias is not None:
                nn.init.zeros_(bias)
        self.norm = nn.LayerNorm(embed_dim) if self.normed else nn.Identity()

    def activate(self, hidden: Tensor) -> Tensor:
        """Map [..., F] to [..., F]."""
        if self.activation is None:
            raise TypeError(f"{type(self).__name__} must define activate")
        return self.activation(hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        hidden = self.inner(x)
        if self.gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            hidden = self.activate(gate) * hidden
        else:
            hidden = self.activate(hidden)
        if self.training:
            hidden = dropout(hidden, self.dropout)
        return self.norm(self.outer(hidden))


class GatedFeedForward(FeedForward):
    """A feed-forward network with a gate."""

    gated = True


class NormedFeedForward(FeedForward):
    """A feed-forward network with a LayerNorm of its output."""

    normed = True


def quick_gelu(hidden: Tensor) -> Tensor:
    """Return h sigmoid(1.702 h), which approximates GELU. CvT uses it."""
    return hidden * torch.sigmoid(1.702 * hidden)


# Vaswani et al. 2017, "Attention is all you need", Eq. 2. Hendrycks and Gimpel 2016, "Gaussian
# error linear units", section 2, exact and approximated. Elfwing et al. 2018, "Sigmoid-weighted
# linear units", Eq. 9.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "quick-gelu": quick_gelu,
    "silu": F.silu,
}
for _name, _activation in ACTIVATIONS.items():
    feed_forwards.register(_name)(partial(FeedForward, activation=_activation))
# Shazeer 2020, "GLU variants improve transformer", Eq. 6, here with biases.
feed_forwards.register("swiglu")(partial(GatedFeedForward, activation=F.silu))
feed_forwards.register("geglu")(partial(GatedFeedForward, activation=F.gelu))
# The control experiment for ``softmax-ln``: ReLU with the same norm.
feed_forwards.register("relu-ln")(partial(NormedFeedForward, activation=F.relu))


@feed_forwards.register("softmax")
class SoftmaxFeedForward(FeedForward):
    """softmax(x K^T / temperature) V + b2: attention to a memory of F learned keys and values.

    K = W1 and V is W2 transposed, [F, D] each. The scores are not divided by sqrt(D), and have no
    bias. Dropout acts on the weights of the memory, as in attention. ``ffn_dim`` is F.

    Reference: ReLUFormer, Eq. 2.
    """

    @settings(flags=False)
    class Config:
        """Options of ``--feed-forward softmax:temperature=2``."""

        temperature: float = option(1.0, "divisor of the scores of the memory", above=0)

    inner_bias = False

    def __init__(
        self, embed_dim: int, ffn_dim: int, dropout: float, config: Config | None = None
    ) -> None:
        super().__init__(embed_dim, ffn_dim, dropout)
        self.config = config or SoftmaxFeedForward.Config()

    def activate(self, hidden: Tensor) -> Tensor:
        if self.config.temperature != 1.0:
            hidden = hidden / self.config.temperature
        return hidden.softmax(-1)


@feed_forwards.register("softmax-ln")
class NormedSoftmaxFeedForward(SoftmaxFeedForward):
    """LayerNorm of the output of :class:`SoftmaxFeedForward`.

    Reference: ReLUFormer, section 3.
    """

    normed = True

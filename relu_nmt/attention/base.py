"""The interface that every attention mechanism has, and how one is made from its name.

Shapes: ``B`` batch, ``H`` heads, ``Nq`` and ``Nk`` query and key length, ``d`` head width.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from relu_nmt import config as configuration
from relu_nmt.attention import attentions
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.errors import ConfigError


@dataclass(frozen=True)
class Capabilities:
    """Where a mechanism can work.

    Args:
        causal: it can hide later keys, as the decoder's self-attention must.
        cross: queries and keys may come from different sequences.
        non_negative: its weights are never negative, so row sums and entropies mean something.
    """

    causal: bool = True
    cross: bool = True
    non_negative: bool = True


@dataclass(frozen=True)
class Need:
    """What a caller wants besides the output; asking for less allows faster code.

    Args:
        statistics: the row statistics of the weights.
        weights: the weights themselves.
    """

    statistics: bool = False
    weights: bool = False


NOTHING = Need()


@dataclass
class RowStatistics:
    """Statistics of the weights of each query row, before dropout, float32, [B, H, Nq].

    Args:
        total: S, the sum of the weights of the row; differentiable.
        entropy: H in nats, of the weights divided by their sum; differentiable; 0 in a null row.
        zero_fraction: share of the visible keys whose weight is exactly zero.
    """

    total: Tensor
    entropy: Tensor
    zero_fraction: Tensor


@dataclass
class AttentionOutput:
    """What attention returns.

    Args:
        values: [B, H, Nq, d], the weighted sums of the values.
        weights: [B, H, Nq, Nk] before dropout, if asked for.
        rows: the row statistics, if asked for.
    """

    values: Tensor
    weights: Tensor | None = None
    rows: RowStatistics | None = None


@dataclass(frozen=True)
class NoOptions:
    """The settings of a mechanism that has none."""


class Attention(nn.Module):
    """One attention mechanism, for all heads of one multi-head module.

    A mechanism subclasses this in a file of its own, registers itself with
    ``@attentions.register("name")`` and is listed in ``relu_nmt/attention/__init__.py`` (or in a
    file of the user's). Query scaling by d^(-1/2) belongs to the mechanism.

    Args:
        config: an instance of the class's ``Config``.
        num_heads: H.
        head_dim: d.
        dropout: probability of dropping a weight in training.
    """

    Config: ClassVar[type] = NoOptions
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, config: Any, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.config = config
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, need: Need = NOTHING
    ) -> AttentionOutput:
        """Attend from queries to keys.

        Args:
            q: [B, H, Nq, d] queries, not yet scaled.
            k: [B, H, Nk, d] keys.
            v: [B, H, Nk, d] values.
            visibility: which keys each query may see. A query that sees none gets output 0.
            need: what to return besides the output.
        """
        raise TypeError(f"{type(self).__name__} must define forward")

    @property
    def active_dropout(self) -> float:
        """The dropout probability now: 0 outside training."""
        return self.dropout if self.training else 0.0


def build_attention(
    spec: AttentionSpec, slot: str, num_heads: int, head_dim: int, dropout: float
) -> Attention:
    """Make the attention that ``spec`` names for the slot ``encoder``, ``decoder`` or ``cross``.

    Raises:
        ConfigError: unknown name or option, or the mechanism cannot work in this slot.
    """
    kind = attentions.get(spec.name)
    missing = {"decoder": "causal", "cross": "cross"}.get(slot)
    if missing and not getattr(kind.capabilities, missing):
        raise ConfigError(
            f"--{slot}-attention {spec.name}: it has no {missing} form; choose one of "
            + ", ".join(n for n in attentions.names() if _can(n, missing))
        )
    try:
        config = configuration.from_strings(kind.Config, spec.options)
    except ConfigError as error:
        raise ConfigError(f"--{slot}-attention {spec}: {error}") from error
    return kind(config, num_heads, head_dim, dropout)


def _can(name: str, capability: str) -> bool:
    return getattr(attentions.get(name).capabilities, capability)

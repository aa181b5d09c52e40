"""The interface that every attention mechanism has, and how one is made from its name.

Shapes: ``B`` batch, ``H`` heads, ``Nq`` and ``Nk`` query and key length, ``d`` head width.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt import config as configuration
from relu_nmt.attention import attentions
from relu_nmt.attention.bias import ScoreBias
from relu_nmt.attention.kernels import Backend
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.config import option
from relu_nmt.errors import ConfigError

QK_NORM_EPSILON = 1e-6
NULL_SUM = 1e-6
"""A row whose weights sum to no more than this is a null row: it has no entropy."""


@dataclass(frozen=True)
class Capabilities:
    """Where a mechanism can work and what it can give.

    A causal mechanism also decodes step by step: its row i depends on keys 0 .. i only.

    Args:
        causal: it can hide later keys, as the decoder's self-attention must.
        cross: queries and keys may come from different sequences, and each query's output is its
            own; so queries may come one at a time.
        fewer_keys: there may be fewer keys than queries, where all queries come at once.
        weights: there is a matrix of weights [Nq, Nk] to return and to drop from.
        scores: its weights are a map of scores q k, so that a bias can be added to them and
            queries and keys can be rotated by their positions.
        non_negative: its weights are never negative, so that they have an entropy and can be
            regularised.
        fixed_length: an option bounds the number of keys.
        permutation_invariant: permuting keys and values together changes nothing.
        double_backward: gradients can be differentiated again (with the reference back end).
        reason: why it has no causal or cross form, for the error message.
    """

    causal: bool = True
    cross: bool = True
    fewer_keys: bool = False
    weights: bool = True
    scores: bool = False
    non_negative: bool = True
    fixed_length: bool = False
    permutation_invariant: bool = True
    double_backward: bool = True
    reason: str = ""


@dataclass(frozen=True)
class Need:
    """What a caller wants besides the output; asking for less allows faster code.

    Args:
        statistics: sum and entropy of each row of weights, differentiable, for the regulariser.
        telemetry: also the further statistics of the rows, for the log.
        weights: the weights themselves.
    """

    statistics: bool = False
    telemetry: bool = False
    weights: bool = False

    def __or__(self, other: "Need") -> "Need":
        """Return what either wants."""
        return Need(
            self.statistics or other.statistics,
            self.telemetry or other.telemetry,
            self.weights or other.weights,
        )

    @property
    def rows(self) -> bool:
        """Return whether any statistics of the rows are asked for."""
        return self.statistics or self.telemetry


NOTHING = Need()


@dataclass(slots=True)
class AttentionProblem:
    """What a mechanism is given: out_i = sum_j w_ij v_j, and what else is wanted.

    Args:
        attention: the mechanism.
        q: [B, H, Nq, d].
        k: [B, H, Nk, d].
        v: [B, H, Nk, dv].
        visibility: which keys each query may see.
        bias: of the scores, perhaps.
        dropout: probability of dropping a weight; statistics are those before dropout.
        need: what to return besides the output.
    """

    attention: "Attention"
    q: Tensor
    k: Tensor
    v: Tensor
    visibility: Visibility
    bias: ScoreBias | None
    dropout: float
    need: Need


@dataclass
class RowStatistics:
    """Statistics of the weights of each query row, before dropout, float32, [B, H, Nq].

    Args:
        total: S, the sum of the weights of the row; differentiable if statistics were needed.
        entropy: H in nats, of the weights divided by their sum; likewise; 0 in a null row.
            ``None`` where weights may be negative.
        zero_fraction: share of the visible keys whose weight is exactly zero; with telemetry.
        largest: the largest absolute weight of the row; with telemetry.
    """

    total: Tensor
    entropy: Tensor | None
    zero_fraction: Tensor | None = None
    largest: Tensor | None = None


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


@configuration.settings(flags=False)
class AttentionConfig:
    """The settings that every mechanism has; one with more subclasses this."""

    _: KW_ONLY
    qk_norm: bool = option(False, "LayerNorm of the queries and keys of each head")


class Attention(nn.Module):
    """One attention mechanism, for all heads of one multi-head module.

    A mechanism subclasses this in a file of its own, defines :meth:`attend`, registers itself with
    ``@attentions.register("name")`` and is listed in ``relu_nmt/attention/__init__.py`` (or in a
    file of the user's). Query scaling by d^(-1/2) belongs to the mechanism.

    Args:
        config: an instance of the class's ``Config``.
        num_heads: H.
        head_dim: d.
        dropout: probability of dropping a weight in training.

    Attributes:
        name: the registered one, as it was asked for.
        slot: ``encoder``, ``decoder`` (self-attention) or ``cross``, and
        layer: the index of the layer, from 0, if it was made for a model.
        backend: the name of one of ``backends``, or ``auto``; never stored.
    """

    Config: ClassVar[type] = AttentionConfig
    capabilities: Capabilities = Capabilities()
    backends: ClassVar[Mapping[str, Backend]] = {}
    """The ways to compute it, by name, see :mod:`relu_nmt.attention.kernels`; none where
    its code is the only one, which answers to ``reference``."""
    shares_queries_and_keys: ClassVar[bool] = False
    """True if keys are the queries: made by one projection, with one gain of ``qk_norm``."""
    exact: ClassVar[bool] = False
    """True if it gets float32 or float64 even under autocast: half precision would underflow."""

    def __init__(self, config: Any, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.config = config
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.backend = "auto"
        self.name, self.slot, self.layer = type(self).__name__, "encoder", 0
        # Somebody's own settings may be without the option.
        normalized = getattr(config, "qk_norm", False)
        self.query_gain = nn.Parameter(torch.ones(head_dim)) if normalized else None
        has_own = normalized and not self.shares_queries_and_keys
        self.key_gain = nn.Parameter(torch.ones(head_dim)) if has_own else None

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visibility: Visibility,
        *,
        bias: ScoreBias | None = None,
        need: Need = NOTHING,
    ) -> AttentionOutput:
        """Attend from queries to keys.

        Args:
            q: [B, H, Nq, d] queries, not yet scaled, from :meth:`map_queries`.
            k: [B, H, Nk, d] keys, from :meth:`map_keys`.
            v: [B, H, Nk, d] values.
            visibility: which keys each query may see. A query that sees none gets output 0.
            bias: of the scores, if the mechanism has any (``capabilities.scores``).
            need: what to return besides the output.

        Raises:
            ConfigError: the mechanism cannot use the bias, or has not what is needed.
        """
        if bias is not None and not self.capabilities.scores:
            raise ConfigError(
                f"{self.name} attention has no scores to add a position bias to; choose another "
                "position scheme or attention"
            )
        if need.weights and not self.capabilities.weights:
            raise ConfigError(f"{self.name} attention has no weights [queries, keys] to show")
        dropout = self.dropout if self.training else 0.0
        problem = AttentionProblem(self, q, k, v, visibility, bias, dropout, need)
        if not self.exact:
            return self.attend(problem)
        with without_autocast(q.device):
            dtype = torch.promote_types(v.dtype, torch.float32)
            problem.q, problem.k, problem.v = q.to(dtype), k.to(dtype), v.to(dtype)
            output = self.attend(problem)
            output.values = output.values.to(v.dtype)
        return output

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """Return the outputs and what else the problem asks for; see :meth:`forward`."""
        raise TypeError(f"{type(self).__name__} must define attend")

    def weights(self, problem: AttentionProblem) -> Tensor:
        """Return the weights [B, H, Nq, Nk], float32 or wider, 0 where hidden.

        :mod:`relu_nmt.attention.kernels.rows` asks for them, perhaps for some of the queries.
        """
        raise TypeError(f"{type(self).__name__} must define weights")

    def map_queries(self, q: Tensor) -> Tensor:
        """Map projected queries [B, H, Nq, d], each on its own, before anything else.

        With ``qk_norm`` it is a LayerNorm over d with a gain [d], without a bias (eps 1e-6), as for
        the keys; so |q k| <= d at gain 1.
        """
        return _layer_norm(q, self.query_gain)

    def map_keys(self, k: Tensor) -> Tensor:
        """Map projected keys [B, H, Nk, d], each on its own; decoding caches the result."""
        gain = self.query_gain if self.shares_queries_and_keys else self.key_gain
        return _layer_norm(k, gain)

    def finish(self, joined: Tensor, x: Tensor) -> Tensor:
        """Map the joined heads before the output projection, such as by a norm or a gate.

        Each vector is mapped by itself: in decoding those of several searches come in one row.

        Args:
            joined: [B, Nq, D], the values of all heads.
            x: [B, Nq, D], what the queries were made of.
        """
        return joined

    def most_keys(self, causal: bool) -> int | None:
        """Return the most keys that it can attend to; None for any number.

        Args:
            causal: whether it is the decoder's self-attention.
        """
        return None


def build_attention(
    spec: AttentionSpec,
    slot: str,
    layer: int,
    num_heads: int,
    head_dim: int,
    dropout: float,
    flag: str | None = None,
) -> Attention:
    """Make the attention that ``spec`` names.

    Args:
        spec: name and options.
        slot: ``encoder``, ``decoder`` or ``cross``.
        layer: index of the layer, from 0.
        num_heads: H.
        head_dim: d.
        dropout: probability of dropping a weight in training.
        flag: which one names the attention; by default that of the slot in a translation model.

    Raises:
        ConfigError: unknown name or option, or the mechanism cannot work in this slot.
    """
    flag = flag or f"--{slot}-attention"
    kind = attentions.get(spec.name)
    able = kind.capabilities
    missing = {"decoder": "causal", "cross": "cross"}.get(slot)
    if missing and not getattr(able, missing):
        names = attentions.names()
        others = [n for n in names if getattr(attentions.get(n).capabilities, missing)]
        # Named by what is to be set, as the other slots may keep it.
        raise ConfigError(
            f"--{slot}-attention {spec.name}: it has no {missing} form"
            + (f", since {able.reason}" if able.reason else "")
            + f"; choose one of {', '.join(others)}"
        )
    if dropout > 0 and not able.weights:
        raise ConfigError(
            f"--attention-dropout {dropout:g}: {spec.name} has no weights to drop; set it to 0"
        )
    try:
        config: Any = configuration.from_flat(kind.Config, spec.options)
        attention = kind(config, num_heads, head_dim, dropout)
    except ConfigError as error:
        raise ConfigError(f"{flag} {spec}: {error}") from error
    attention.name, attention.slot, attention.layer = spec.name, slot, layer
    return attention


def _layer_norm(x: Tensor, gain: Tensor | None) -> Tensor:
    if gain is None:
        return x
    exact = x.to(gain.dtype)
    # Back to the dtype of the values: under autocast norms return float32.
    return F.layer_norm(exact, gain.shape, gain, None, QK_NORM_EPSILON).to(x.dtype)


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Return a context in which products are of the numbers that they are given.

    Some devices, such as ``meta``, have no autocast to switch off.
    """
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()

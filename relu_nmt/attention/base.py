"""The interface that every attention mechanism has, its back ends, and a function that makes one.

A back end is a run-time choice (``--attention-backend``), never part of a checkpoint.

Shapes: ``B`` batch, ``H`` heads, ``Nq`` and ``Nk`` query and key length, ``d`` head width.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.score_bias import ScoreBias
from relu_nmt.config import build_part, option, settings
from relu_nmt.config.registry import Spec
from relu_nmt.errors import ConfigError

QK_NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class Capabilities:
    """Slots that a mechanism can serve, and results that it can return."""

    # It can hide later keys, as the decoder's self-attention must. Row i depends on keys 0 .. i
    # only, so that it also decodes step by step.
    causal: bool = True
    # Queries and keys may come from different sequences, and queries one at a time.
    cross: bool = True
    fewer_keys: bool = False  # without ``cross``: a sequence of queries may see fewer keys
    weights: bool = True  # it has a matrix of weights [Nq, Nk], for dropout and to return
    # Its weights are a map of scores q k, so that a position scheme can add a bias to the scores or
    # rotate queries and keys.
    scores: bool = False
    # Its weights are never negative, so that they have an entropy and can be regularized.
    non_negative: bool = True
    fixed_length: bool = False  # an option bounds the number of keys
    permutation_invariant: bool = True  # permuting keys and values together changes nothing
    double_backward: bool = True  # the reference back end has second derivatives
    reason: str = ""  # why it has no causal or cross form, for the error message

    @property
    def sees_fewer_keys(self) -> bool:
        """True if a whole sequence of queries may see fewer keys than it has queries."""
        return self.cross or self.fewer_keys


MIXES_TOKENS = Capabilities(
    causal=False, cross=False, weights=False, non_negative=False, permutation_invariant=False
)
"""Capabilities of mechanisms that mix the tokens of one sequence without a matrix of weights."""


@dataclass(frozen=True)
class Need:
    """Results that a caller wants besides the output. Asking for less allows faster code."""

    # Sum and entropy of each row of weights, differentiable, for the regularizer.
    statistics: bool = False
    telemetry: bool = False  # all statistics of :class:`RowStatistics`, for the log
    weights: bool = False  # the weights themselves

    def __or__(self, other: "Need") -> "Need":
        return Need(
            self.statistics or other.statistics,
            self.telemetry or other.telemetry,
            self.weights or other.weights,
        )

    @property
    def any_statistics(self) -> bool:
        """True if any statistics of the rows are wanted."""
        return self.statistics or self.telemetry


NOTHING = Need()
UNSCALED = torch.ones(1, 1, 1)  # the row scale of all but pointwise attention


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """One call of a mechanism: the arguments of :meth:`Attention.forward`, and the mechanism.

    ``dropout`` is the probability of dropping a weight. Statistics are those before dropout. The
    back ends of pointwise attention get queries that are scaled by d^(-1/2), and the ``row_scale``
    c(n_i) [B or 1, 1, Nq or 1], which has no gradient.
    """

    attention: Any  # an Attention
    q: Tensor
    k: Tensor
    v: Tensor
    visibility: Visibility
    bias: ScoreBias | None
    dropout: float
    need: Need
    row_scale: Tensor = UNSCALED


class RowSums(NamedTuple):
    """Sums over the weights w of each row, [B, H, Nq] float32."""

    total: Tensor  # sum_j w_j, differentiable
    # Sum_j w_j log w_j with 0 log 0 = 0, differentiable. None where weights may be negative.
    weighted_logs: Tensor | None
    nonzero: Tensor | None  # number of weights other than 0, with telemetry
    largest: Tensor | None  # max_j |w_j|, with telemetry


@dataclass
class RowStatistics:
    """Statistics of the weights of each query row, before dropout, float32, [B, H, Nq].

    :mod:`relu_nmt.applications.statistics` defines them.

    ``total`` (the statistic ``sum``) and ``entropy`` are differentiable if ``Need.statistics`` was
    set. Weights that may be negative have no entropy. ``zero_fraction`` and ``largest`` come with
    telemetry only.
    """

    total: Tensor
    entropy: Tensor | None
    zero_fraction: Tensor | None = None
    largest: Tensor | None = None


@dataclass
class AttentionOutput:
    """The weighted sums of the values [B, H, Nq, dv], and if wanted weights and row statistics.

    The weights [B, H, Nq, Nk] are those before dropout. The back ends of pointwise attention return
    the sums of h(z) instead of the statistics, since only the mechanism knows the scale of the
    rows.
    """

    values: Tensor
    weights: Tensor | None = None
    statistics: RowStatistics | None = None
    sums: RowSums | None = None


@dataclass(frozen=True)
class Backend:
    """One way to compute a mechanism.

    A mechanism's ``backends`` map names to these, the fastest first. The last one is the
    reference, which solves every problem.
    """

    solve: Callable[[AttentionProblem], AttentionOutput]
    # True if it can solve a problem. Otherwise the next back end gets the problem.
    supports: Callable[[AttentionProblem], bool] = lambda problem: True
    # True if ``auto`` may take it for a problem.
    preferred: Callable[[AttentionProblem], bool] = lambda problem: True
    # Raises a ConfigError if the named back end cannot run on a device. None: on any.
    require: Callable[[torch.device | None], None] = lambda device: None


@settings(flags=False)
class AttentionConfig:
    """Settings that every mechanism has. A mechanism with more of them subclasses this."""

    _: KW_ONLY
    qk_norm: bool = option(False, "LayerNorm of the queries and keys of each head")


class Attention(nn.Module):
    """One attention mechanism, for all H heads of width d of one multi-head module.

    A mechanism subclasses this and defines :meth:`attend`. It registers itself with
    ``@attentions.register("name")``, and is listed in ``relu_nmt/attention/__init__.py`` or comes
    by ``--user-module``. ``config`` is an instance of its ``Config``, ``dropout`` the probability
    of dropping a weight in training. The mechanism itself scales the queries by d^(-1/2).

    Attributes:
        name: the registered name.
        slot: ``encoder``, ``decoder`` (self-attention) or ``cross``.
        layer: index of the layer, from 0.
        backend: the name of one of ``backends``, or ``auto``. See :func:`use_backend`.
        recorded: results that recorders want besides the caller's need. See
            :func:`~relu_nmt.attention.records.record_attention`.
    """

    Config: ClassVar[type] = AttentionConfig
    capabilities: Capabilities = Capabilities()
    backends: ClassVar[Mapping[str, Backend]] = {}
    """Back ends by name. A mechanism without any is computed in one way, called ``reference``."""
    shares_queries_and_keys: ClassVar[bool] = False
    """True if the queries are also the keys: one projection, and one gain of ``qk_norm``."""
    exact: ClassVar[bool] = False
    """True if inputs become float32 (or stay float64): half precision would underflow."""
    degree: int | None = None
    """p if queries times a > 0 give weights times a^p. None if there is no such p."""

    def __init__(self, config: Any, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.config = config
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout
        # build_attention sets the place in the model, and use_backend the back end.
        self.name = type(self).__name__
        self.slot = "encoder"
        self.layer = 0
        self.backend = "auto"
        self.recorded = NOTHING
        self.query_gain = self.key_gain = None
        if getattr(config, "qk_norm", False):
            self.query_gain = nn.Parameter(torch.ones(head_dim))
            if not self.shares_queries_and_keys:
                self.key_gain = nn.Parameter(torch.ones(head_dim))

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
            bias: added to the scores. Needs ``capabilities.scores``.
            need: results wanted besides the output.

        Raises:
            ConfigError: the mechanism has no scores for the bias, or no weights to return.
        """
        if bias is not None and not self.capabilities.scores:
            raise ConfigError(
                f"{self.name} attention has no scores to add a position bias to; choose another "
                "position scheme or attention"
            )
        if self.recorded != NOTHING:
            need |= self.recorded
        if need.weights and not self.capabilities.weights:
            raise ConfigError(f"{self.name} attention has no weights [queries, keys] to show")
        dropout = self.dropout if self.training else 0.0
        problem = AttentionProblem(self, q, k, v, visibility, bias, dropout, need)
        if not self.exact:
            return self.attend(problem)
        # An exact mechanism computes in float32 or wider, and returns the dtype of its values.
        with without_autocast(q.device):
            dtype = torch.promote_types(v.dtype, torch.float32)
            output = self.attend(replace(problem, q=q.to(dtype), k=k.to(dtype), v=v.to(dtype)))
            output.values = output.values.to(v.dtype)
        return output

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """Return the outputs and the other results that the problem wants. See :meth:`forward`."""
        raise TypeError(f"{type(self).__name__} must define attend")

    def weights(self, problem: AttentionProblem) -> Tensor:
        """Return the weights [B, H, Nq, Nk], float32 or wider, 0 where hidden.

        :mod:`relu_nmt.attention.kernels.reference` calls it, for all queries or a block of them.
        The problem has the q and k that :meth:`attend` gives to the reference, such as features.
        """
        raise TypeError(f"{type(self).__name__} must define weights")

    def backend_for(self, problem: AttentionProblem) -> Backend:
        """Return the back end for a problem: the one that the user named, or the fastest.

        If it cannot solve the problem, the next one gets it: only the reference returns weights,
        for example. An exported graph has the reference.

        Raises:
            ConfigError: the named back end cannot run on the device.
        """
        backends = [*self.backends.values()]
        if torch.compiler.is_exporting():
            return backends[-1]
        is_named = self.backend != "auto"
        if is_named:
            self.require_backend(problem.q.device)
            # Start at the named one.
            backends = backends[[*self.backends].index(self.backend) :]
        for backend in backends:
            # Ask ``supports`` last: it takes longer.
            if (is_named or backend.preferred(problem)) and backend.supports(problem):
                return backend
        return backends[-1]

    def require_backend(self, device: torch.device | None) -> None:
        """Raise an error unless the named back end exists and runs on a device. None: on any."""
        names = ["auto", *(self.backends or ["reference"])]
        if self.backend not in names:
            raise ConfigError(
                f"--attention-backend {self.backend}: {self.name} has no such back end; choose one "
                f"of {', '.join(names)}"
            )
        if self.backend in self.backends:
            self.backends[self.backend].require(device)

    def map_queries(self, q: Tensor) -> Tensor:
        """Map projected queries [B, H, Nq, d], each on its own, before anything else.

        ``qk_norm`` is a LayerNorm over d with a gain [d] and no bias (eps 1e-6), for queries and
        keys. So |q k| <= d at gain 1.
        """
        return _layer_norm(q, self.query_gain)

    def map_keys(self, k: Tensor) -> Tensor:
        """Map projected keys [B, H, Nk, d], each on its own. Decoding caches the result."""
        gain = self.query_gain if self.shares_queries_and_keys else self.key_gain
        return _layer_norm(k, gain)

    def finish(self, joined: Tensor, x: Tensor) -> Tensor:
        """Map the joined heads before the output projection, such as by a norm or a gate.

        It must map each vector by itself, as decoding joins the vectors of several searches.
        ``joined`` [B, Nq, D] are the values of all heads, ``x`` [B, Nq, D] the queries' states.
        """
        return joined

    @contextmanager
    def recording(self, need: Need) -> Iterator[None]:
        """Compute these results, too, inside the block, whatever the caller needs."""
        earlier = self.recorded
        self.recorded = need
        try:
            yield
        finally:
            self.recorded = earlier

    def second_pass(self) -> AbstractContextManager[None]:
        """Return a context for the second of two equal passes, which changes no state.

        Call it before the first pass. Both passes compute the results that are recorded now. A
        mechanism whose state changes in training passes extends this.
        """
        return self.recording(self.recorded)

    def most_keys(self, causal: bool) -> int | None:
        """Return the largest number of keys, in ``causal`` use or not. None for any number."""
        return None


def build_attention(
    spec: Spec,
    slot: str,
    layer: int,
    num_heads: int,
    head_dim: int,
    dropout: float,
    flag: str | None = None,
) -> Attention:
    """Make the attention that ``spec`` names, for a slot of a layer (from 0).

    The slot is ``encoder``, ``decoder`` or ``cross``. Errors name ``flag``, by default
    ``--SLOT-attention``.

    Raises:
        ConfigError: unknown name or option, or the mechanism cannot work in this slot.
    """
    kind = attentions.get(spec.name)
    able = kind.capabilities
    # Refuse a slot that the mechanism cannot serve, and list those that can.
    missing = {"decoder": "causal", "cross": "cross"}.get(slot)
    if missing and not getattr(able, missing):
        names = attentions.names()
        fitting = [n for n in names if getattr(attentions.get(n).capabilities, missing)]
        # Name the flag of this slot: the other slots may keep the mechanism.
        text = f"--{slot}-attention {spec.name}: it has no {missing} form"
        if able.reason:
            text += f", since {able.reason}"
        raise ConfigError(f"{text}; choose one of {', '.join(fitting)}")
    if dropout > 0 and not able.weights:
        raise ConfigError(
            f"--attention-dropout {dropout:g}: {spec.name} has no weights to drop; set it to 0"
        )
    attention = build_part(kind, spec, flag or f"--{slot}-attention", num_heads, head_dim, dropout)
    attention.name = spec.name
    attention.slot = slot
    attention.layer = layer
    return attention


def use_backend(model: nn.Module, name: str) -> None:
    """Let the back end called ``name`` compute every attention of a model.

    Raises:
        ConfigError: an attention has no such back end.
        MissingExtraError: it is not installed.
    """
    for module in model.modules():
        if isinstance(module, Attention):
            module.backend = name
            module.require_backend(None)


def _layer_norm(x: Tensor, gain: Tensor | None) -> Tensor:
    if gain is None:
        return x
    # Under autocast norms return float32.
    return F.layer_norm(x.to(gain.dtype), gain.shape, gain, None, QK_NORM_EPSILON).to(x.dtype)


def without_decay(start: Tensor) -> nn.Parameter:
    """Return a parameter that weight decay leaves out."""
    parameter = nn.Parameter(start)
    parameter.no_weight_decay = True  # type: ignore[attr-defined]
    return parameter


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Return a context in which products keep the dtype of their inputs."""
    # Some devices, such as ``meta``, have no autocast.
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()

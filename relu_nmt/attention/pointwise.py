"""Attention with pointwise weights g c(n_i) h(z_ij): the maps h, the base class, the general form.

Each weight depends on its own score alone. No softmax couples the keys of a query. The three steps:

    scores    z_ij = q_i k_j / sqrt(d), for the n_i keys j that query i may see
    weights   w_ij = g c(n_i) h(z_ij)
    output    out_i = sum_j w_ij v_j

A mechanism chooses the map h, the scale c and perhaps a learned factor g: see ``reluformer.py``,
``rela.py`` and ``polynomial.py``. ``pointwise`` at the end of this file takes any h and
c(n) = n^-alpha. :func:`relu_nmt.attention.kernels.reference.pointwise` computes the three steps.
Other back ends compute the same in another order.

Your own map is one entry, in any file::

    pointwise_maps.register("cube")(PointwiseMap("cube", cube, cube_derivative))

Then ``--user-module FILE --attention pointwise:h=cube`` uses it.
"""

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.base import (
    Attention,
    AttentionConfig,
    AttentionOutput,
    AttentionProblem,
    Backend,
    Capabilities,
)
from relu_nmt.attention.kernels import blockwise, reference, triton, tuned
from relu_nmt.attention.masks import Visibility
from relu_nmt.config import option, settings
from relu_nmt.config.registry import Registry

GATES = ("none", "silu", "identity")
TensorMap = Callable[[Tensor], Tensor]
RECTIFIER: dict[str, Any] = {"non_negative": True, "rectifies": True}


@dataclass(frozen=True)
class PointwiseMap:
    """A map h with its derivative, for every back end.

    Args:
        name: the registered name.
        value: returns h(z), of z's shape and dtype or wider.
        derivative: returns h'(z), of z's shape. 0 at kinks where h is 0.
        non_negative: h is never negative.
        rectifies: h is exactly 0, with derivative 0, for all z <= 0.
        kernels: returns two functions made with ``triton.jit``: ``value(z, POWER)`` and
            ``times_derivative(x, z, POWER)``, x h'(z), on float32 tiles. ``POWER`` is
            ``tl.constexpr``. ``None``: the Triton back end refuses the map.
        power: ``POWER`` of the Triton functions.
        degree: p if h(a z) = a^p h(z) for all a > 0. None if there is no such p.
    """

    name: str
    value: TensorMap
    derivative: TensorMap
    non_negative: bool = False
    rectifies: bool = False
    kernels: Callable[[], tuple[Any, Any]] | None = None
    power: int = 1
    degree: int | None = None


pointwise_maps: Registry[PointwiseMap] = Registry("pointwise map", {})


def integer_power(z: Tensor, exponent: int) -> Tensor:
    """Return z^exponent, for an exponent of at least 0. Above 3, ``pow`` is slow on a CPU."""
    if exponent <= 3:
        return z.pow(exponent)
    square = integer_power(z, exponent // 2).square()
    return square * z if exponent % 2 else square


@functools.cache
def power_map(power: int) -> PointwiseMap:
    """Return z^power, computed in float32 or wider: in float16 the cube of 41 would overflow."""

    def value(z: Tensor) -> Tensor:
        return integer_power(z.to(torch.promote_types(z.dtype, torch.float32)), power)

    def derivative(z: Tensor) -> Tensor:
        return power * integer_power(z, power - 1)

    return PointwiseMap(
        "power",
        value,
        derivative,
        non_negative=power % 2 == 0,
        kernels=_triton_functions("power"),
        power=power,
        degree=power,
    )


@functools.cache
def rectified_power(power: int) -> PointwiseMap:
    """Return ReLU(z)^power, computed in float32 or wider above the square."""
    if power <= 2:
        return pointwise_maps.get({1: "relu", 2: "relu2"}[power])

    def value(z: Tensor) -> Tensor:
        return power_map(power).value(z.relu())

    def derivative(z: Tensor) -> Tensor:
        z = z.relu().to(torch.promote_types(z.dtype, torch.float32))
        return power * integer_power(z, power - 1)

    return PointwiseMap(
        "rectified_power",
        value,
        derivative,
        kernels=_triton_functions("rectified_power"),
        power=power,
        degree=power,
        **RECTIFIER,
    )


def _triton_functions(name: str) -> Callable[[], tuple[Any, Any]]:
    def functions() -> tuple[Any, Any]:
        module = importlib.import_module("relu_nmt.attention.kernels.triton_parts")
        return getattr(module, name), getattr(module, f"{name}_slope")

    return functions


def _gelu_derivative(z: Tensor) -> Tensor:
    # d/dz z Phi(z) = Phi(z) + z phi(z), with Phi(z) = erfc(-z / sqrt 2) / 2
    density = (-0.5 * z * z).exp() * 0.3989422804014327
    return 0.5 * torch.erfc(-z * 0.7071067811865476) + z * density


def _sigmoid_derivative(z: Tensor) -> Tensor:
    p = z.sigmoid()
    return p * (1 - p)


def _register(name: str, value: TensorMap, derivative: TensorMap, **properties: Any) -> None:
    kernels = _triton_functions(name)
    entry = PointwiseMap(name, value, derivative, kernels=kernels, **properties)
    pointwise_maps.register(name)(entry)


_register("relu", torch.relu, lambda z: (z > 0).to(z.dtype), degree=1, **RECTIFIER)
_register("relu2", lambda z: z.relu().square(), lambda z: 2 * z.relu(), degree=2, **RECTIFIER)
_register("relu6", F.relu6, lambda z: ((z > 0) & (z < 6)).to(z.dtype), **RECTIFIER)
_register("softplus", F.softplus, torch.sigmoid, non_negative=True)
_register("sigmoid", torch.sigmoid, _sigmoid_derivative, non_negative=True)
_register("gelu", F.gelu, _gelu_derivative)
_register("identity", lambda z: z, torch.ones_like, degree=1)


class PointwiseAttention(Attention):
    """out_i = g sum_j c(n_i) h(q_i k_j / sqrt(d)) v_j, for any map h, scale c and factor g.

    A subclass passes ``score_map``, which is h, and defines :meth:`row_scale`, which is c. It may
    define :meth:`gain`, which is g.
    """

    capabilities = Capabilities(scores=True)
    shift_channels = 0
    """The most channels that :meth:`shifted_inputs` adds to queries and keys."""
    backends: ClassVar[Mapping[str, Backend]] = {
        "triton": Backend(triton.pointwise, triton.supports, tuned.triton_pays, triton.require),
        "blockwise": Backend(blockwise.pointwise, blockwise.supports, tuned.many_pairs),
        "reference": Backend(reference.pointwise),
    }

    def __init__(
        self, config: Any, num_heads: int, head_dim: int, dropout: float, score_map: PointwiseMap
    ) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        self.map = score_map
        self.degree = score_map.degree
        self.capabilities = replace(self.capabilities, non_negative=score_map.non_negative)

    def shifted_inputs(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Return queries and keys with products z_ij - s_i, for shifts s of the rows of scores.

        q [B, H, Nq, d] are scaled by d^(-1/2). Both results may have further channels.
        """
        return q, k

    def row_scale(self, counts: Tensor) -> Tensor:
        """Return c(n) of numbers n >= 1 of visible keys, float32, of the same shape."""
        raise TypeError(f"{type(self).__name__} must define row_scale")

    def gain(self) -> Tensor | None:
        """Return the learned factor g, [1] or [H], if there is one."""
        return None

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        counts = problem.visibility.positive_counts
        if problem.q.dtype == torch.float64:
            counts = counts.to(torch.float64)
        q = problem.q / math.sqrt(self.head_dim)
        scaled = replace(problem, q=q, row_scale=self.row_scale(counts))
        result = self.backend_for(scaled).solve(scaled)
        scale = scaled.row_scale
        gain = self.gain()
        if gain is not None:
            gain = gain[:, None, None]  # [H or 1, 1, 1]
            scale = scale * gain[..., 0]
            result.values = (result.values * gain).to(result.values.dtype)
            if result.weights is not None:
                result.weights = result.weights * gain
        if result.sums is not None:
            result.statistics = reference.row_statistics(result.sums, problem.visibility, scale)
            if not self.capabilities.non_negative:  # g may be negative, though h is not
                result.statistics.entropy = None
        return result


@attentions.register("pointwise")
class ScaledPointwiseAttention(PointwiseAttention):
    """a_ij = n_i^(-alpha) h(q_i k_j / sqrt(d)), output sum_j a_ij v_j.

    n_i is the number of keys that query i may see. h is one of relu, relu2 (its square), gelu (by
    erf), softplus, identity, relu6 and sigmoid. Weights of gelu and identity can be negative.
    alpha = 1 keeps the expected sum of a row, alpha = 1/2 the variance of the output.

    ``qk_norm`` is on by default, so that |z| <= sqrt(d) at gain 1. A ``gate`` multiplies the joined
    heads by act(x W_g), W_g [D, D], before the output projection: act is ``silu``, or ``identity``
    for the ablation. ``output_norm`` with ``alpha=0`` and without ``qk_norm`` is the variant that
    ReLUFormer rejects in favor of its factor (section 4.1). We read it as a norm over all heads,
    as in :class:`~relu_nmt.attention.rela.RelaAttention`.

    Reference: Wortsman et al. 2023, "Replacing softmax with ReLU in vision transformers",
    section 3 and Figs. 1-4. ReLU with alpha = 1 is its main model. We read "gated" in its Fig. 4 as
    an output gate. :class:`relu_nmt.vision.gated_block.GatedAttentionUnit` is the other reading.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention pointwise:h=relu2``."""

        h: str = option("relu", "the map of the scores", choices=pointwise_maps)
        alpha: float = option(1.0, "weights are divided by n^alpha")
        gate: str = option("none", f"output gate: {', '.join(GATES)}", choices=GATES)
        output_norm: bool = option(False, "LayerNorm of the joined heads, before the gate")
        _: KW_ONLY
        qk_norm: bool = option(True, "LayerNorm of the queries and keys of each head")

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout, pointwise_maps.get(config.h))
        embed_dim = num_heads * head_dim
        self.output_norm = nn.LayerNorm(embed_dim) if config.output_norm else nn.Identity()
        self.gate = None
        if config.gate != "none":
            self.gate = nn.Linear(embed_dim, embed_dim, bias=False)
            nn.init.xavier_uniform_(self.gate.weight)

    def row_scale(self, counts: Tensor) -> Tensor:
        """Return n^-alpha."""
        return counts.pow(-self.config.alpha)

    def finish(self, joined: Tensor, x: Tensor) -> Tensor:
        """Normalize the joined heads [B, Nq, D], and gate them by x [B, Nq, D]."""
        # Under autocast norms return float32.
        joined = self.output_norm(joined).to(joined.dtype)
        if self.gate is None:
            return joined
        gate = self.gate(x)
        if self.config.gate == "silu":
            gate = F.silu(gate)
        return joined * gate

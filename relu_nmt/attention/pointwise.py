"""Attention with pointwise weights g c(n_i) h(z_ij): the base class, and the general form.

Each weight depends on its own score alone; no softmax couples the keys of a query. The three steps:

    scores    z_ij = q_i k_j / sqrt(d), for the n_i keys j that query i may see
    weights   w_ij = g c(n_i) h(z_ij)
    output    out_i = sum_j w_ij v_j

A mechanism chooses the map h, the scale c and perhaps a learnt factor g: see ``reluformer.py``,
``rela.py`` and ``polynomial.py``. ``pointwise`` at the end of this file takes any h and
c(n) = n^-alpha. :func:`relu_nmt.attention.kernels.reference.pointwise` computes the three steps;
other back ends compute the same in another order.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY
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
from relu_nmt.attention.kernels import blockwise, reference, triton
from relu_nmt.attention.kernels.reference import PointwiseProblem, row_statistics
from relu_nmt.attention.pointwise_maps import PointwiseMap, pointwise_maps
from relu_nmt.config import option, settings

GATES = ("none", "silu", "identity")


class PointwiseAttention(Attention):
    """out_i = g sum_j c(n_i) h(q_i k_j / sqrt(d)) v_j, for any map h, scale c and factor g.

    A subclass passes ``map``, which is h, and defines :meth:`row_scale`, which is c. It may define
    :meth:`gain`, which is g.
    """

    capabilities = Capabilities(scores=True)
    centered = False
    """True to subtract from each score the mean of its row over the visible keys."""
    backends: ClassVar[Mapping[str, Backend]] = {
        "triton": Backend(triton.pointwise, triton.supports, triton.preferred, triton.require),
        "blockwise": Backend(blockwise.pointwise, blockwise.supports, blockwise.preferred),
        "reference": Backend(reference.pointwise),
    }

    def __init__(
        self, config: Any, num_heads: int, head_dim: int, dropout: float, map: PointwiseMap
    ) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        self.map = map
        self.degree = map.degree
        self.capabilities = dataclasses.replace(self.capabilities, non_negative=map.non_negative)

    def weigh(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Return c(n) h(z) of scores z [B, H, Nq, Nk] and counts n [B or 1, 1, Nq or 1, 1]."""
        return self.map.value(scores) * self.row_scale(counts)

    def row_scale(self, counts: Tensor) -> Tensor:
        """Return c(n) of numbers n >= 1 of visible keys, float32, of the same shape."""
        raise TypeError(f"{type(self).__name__} must define row_scale")

    def gain(self) -> Tensor | None:
        """Return the learnt factor g, [1] or [H], if there is one."""
        return None

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """See :meth:`Attention.attend`."""
        # Scale the queries by 1 / sqrt(d) and the rows by c(n).
        counts = problem.visibility.positive_counts
        if problem.q.dtype == torch.float64:
            counts = counts.to(torch.float64)
        asked = PointwiseProblem(
            *(self, problem.q / math.sqrt(self.head_dim), problem.k, problem.v),
            *(problem.visibility, problem.bias, problem.dropout, problem.need),
            map=self.map,
            row_scale=self.row_scale(counts),
            centered=self.centered,
            weigh=self.weigh,
        )
        # Let a back end compute out_i = c(n_i) sum_j h(z_ij) v_j.
        backend = self.backend_for(asked)
        # Center queries and keys here, unless the back end does.
        if self.centered and not backend.centers:
            asked.q, asked.k = reference.centered(asked.q, asked.k, asked.visibility)
        result = backend.solve(asked)
        # Multiply by g.
        values, weights = result.values, result.weights
        gain = self.gain()
        if gain is not None:
            gain = gain[:, None, None]  # [H or 1, 1, 1]
            values = (values * gain).to(values.dtype)
            weights = weights * gain if weights is not None else None
            asked.row_scale = asked.row_scale * gain[..., 0]
        # Make the statistics of the rows from their sums.
        rows = None
        if result.sums is not None:
            rows = row_statistics(result.sums, problem.visibility, asked.row_scale)
            if not self.capabilities.non_negative:  # g may be negative, though h is not
                rows.entropy = None
        return AttentionOutput(values, weights, rows)


@attentions.register("pointwise")
class ScaledPointwiseAttention(PointwiseAttention):
    """a_ij = n_i^(-alpha) h(q_i k_j / sqrt(d)), output sum_j a_ij v_j.

    n_i is the number of keys that query i may see. h is one of relu, relu2 (its square), gelu (by
    erf), softplus, identity, relu6 and sigmoid; weights of gelu and identity can be negative.
    alpha = 1 keeps the expected sum of a row, alpha = 1/2 the variance of the output.

    ``qk_norm`` is on by default, so that |z| <= sqrt(d) at gain 1. A ``gate`` multiplies the joined
    heads by act(x W_g), W_g [D, D], before the output projection: act is ``silu``, or ``identity``
    for the ablation. ``output_norm`` with ``alpha=0`` and without ``qk_norm`` is the variant that
    ReLUFormer rejects in favour of its factor (section 4.1). We read it as a norm over all heads,
    as in :class:`~relu_nmt.attention.rela.RelaAttention`.

    Reference: Wortsman et al. 2023, "Replacing softmax with ReLU in vision transformers",
    section 3 and Figs. 1-4; relu with alpha = 1 is its main model. We read "gated" in its Fig. 4 as
    an output gate; :class:`relu_nmt.vision.vision_transformer.GatedAttentionUnit` is the
    other reading.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options behind the colon."""

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
        """Normalise the joined heads [B, Nq, D], and gate them by x [B, Nq, D]."""
        # Under autocast norms return float32.
        joined = self.output_norm(joined).to(joined.dtype)
        if self.gate is None:
            return joined
        gate = self.gate(x)
        return joined * (F.silu(gate) if self.config.gate == "silu" else gate)

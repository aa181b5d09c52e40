"""Attention with pointwise weights c_i h(q_i k_j / sqrt(d)): the base class and the general form.

``pointwise`` scales by a power of the length, n^-alpha h(z); reluformer, rela and polynomial have
files of their own.
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
    Capabilities,
)
from relu_nmt.attention.kernels import (
    Backend,
    blockwise,
    choose_backend,
    many_pairs,
    prefers_triton,
    reference,
    require_triton,
    triton,
)
from relu_nmt.attention.kernels.reference import PointwiseProblem, row_statistics
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise_maps import PointwiseMap, pointwise_maps
from relu_nmt.config import option, settings

GATES = ("none", "silu", "identity")


class PointwiseAttention(Attention):
    """out_i = g sum_j c(n_i) h(q_i k_j / sqrt(d)) v_j, for any h, c and learnable factor g.

    A subclass gives ``map``, which is h, and defines :meth:`row_scale`; it may define :meth:`gain`.
    """

    capabilities = Capabilities(scores=True)
    centered = False
    """True if each score loses the mean of its row, over what is visible, before the bias."""
    backends: ClassVar[Mapping[str, Backend]] = {
        "triton": Backend(triton.pointwise, triton.supports, prefers_triton, require_triton),
        "blockwise": Backend(blockwise.pointwise, blockwise.supports, many_pairs),
        "reference": Backend(reference.pointwise),
    }

    def __init__(
        self, config: Any, num_heads: int, head_dim: int, dropout: float, map: PointwiseMap
    ) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        self.map = map
        self.capabilities = dataclasses.replace(self.capabilities, non_negative=map.non_negative)

    def weigh(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Return c(n) h(z) of scores z [B, H, Nq, Nk], which back ends compute in other orders.

        Args:
            scores: z, before masking.
            counts: n >= 1, the numbers of visible keys, [B or 1, 1, Nq or 1, 1].
        """
        return self.map.value(scores) * self.row_scale(counts)

    def row_scale(self, counts: Tensor) -> Tensor:
        """Return c(n) of the numbers n >= 1 of visible keys, float32, of the same shape."""
        raise TypeError(f"{type(self).__name__} must define row_scale")

    def gain(self) -> Tensor | None:
        """Return the learnable factor g, [1] or [H], if there is one."""
        return None

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """See :meth:`Attention.attend`."""
        counts = problem.visibility.positive_counts
        if problem.q.dtype == torch.float64:
            counts = counts.to(torch.float64)
        row_scale = self.row_scale(counts)
        asked = PointwiseProblem(
            self,
            problem.q / math.sqrt(self.head_dim),
            problem.k,
            problem.v,
            problem.visibility,
            problem.bias,
            problem.dropout,
            problem.need,
            self.map,
            row_scale,
            self.centered,
            self.weigh,
        )
        backend = choose_backend(self, asked)
        if self.centered and not backend.centers:
            asked.q, asked.k = centered(asked.q, asked.k, asked.visibility)
        result = backend.solve(asked)
        values, weights = result.values, result.weights
        gain = self.gain()
        if gain is not None:
            gain = gain[:, None, None]  # [H or 1, 1, 1]
            values = (values * gain).to(values.dtype)
            weights = weights * gain if weights is not None else None
            row_scale = row_scale * gain[..., 0]
        rows = None
        if result.sums is not None:
            rows = row_statistics(result.sums, problem.visibility, row_scale)
            if not self.capabilities.non_negative:  # g may be negative, though h is not
                rows.entropy = None
        return AttentionOutput(values, weights, rows)


def centered(q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
    """Return queries and keys whose products are q_i (k_j - c_i), c_i the mean of what i sees.

    Args:
        q: [B, H, Nq, d].
        k: [B, H, Nk, d].
        visibility: which keys each query may see.

    Returns:
        q and k of the same shapes; or with d + 1 channels, where queries see different keys.
    """
    exact = k.to(torch.promote_types(k.dtype, torch.float32))
    if visibility.key_mask is not None:
        exact = exact.masked_fill(~visibility.key_mask[:, None, :, None], 0.0)
    if visibility.ancestry is not None:
        sums = visibility.ancestry[:, None].to(exact.dtype) @ exact
    elif visibility.hides_later:
        sums = exact.cumsum(2)[:, :, visibility.num_keys - visibility.num_queries :]
    else:
        sums = exact.sum(2, keepdim=True)
    means = (sums / visibility.positive_counts[..., None]).to(k.dtype)
    if means.size(2) == 1:
        return q, k - means
    # A row that sees one key has score 0: the rounded difference of two products would not be.
    q = q.masked_fill((visibility.counts == 1)[..., None], 0.0)
    shifts = (q * means).sum(-1, keepdim=True)
    return torch.cat([q, shifts], -1), torch.cat([k, -torch.ones_like(k[..., :1])], -1)


@settings(flags=False)
class ScaledPointwiseConfig(AttentionConfig):
    """Settings of :class:`ScaledPointwiseAttention`."""

    h: str = option("relu", "the map of the scores", choices=pointwise_maps)
    alpha: float = option(1.0, "weights are divided by n^alpha")
    gate: str = option("none", f"output gate: {', '.join(GATES)}", choices=GATES)
    output_norm: bool = option(False, "LayerNorm of the joined heads, before the gate")
    _: KW_ONLY
    qk_norm: bool = option(True, "LayerNorm of the queries and keys of each head")


@attentions.register("pointwise")
class ScaledPointwiseAttention(PointwiseAttention):
    """a_ij = n_i^(-alpha) h(q_i k_j / sqrt(d)), output sum_j a_ij v_j.

    n_i is the number of keys that query i may see. h is one of relu, relu2 (its square), gelu (by
    erf), softplus, identity, relu6 and sigmoid; weights of gelu and identity can be negative.
    alpha = 1 keeps the expected sum of a row, alpha = 1/2 the variance of the output.

    ``qk_norm`` is on by default, so that |z| <= sqrt(d) at gain 1. With a ``gate`` the joined
    heads are multiplied by act(x W_g), W_g [D, D], before the output projection: act is ``silu``,
    or ``identity`` for the ablation. ``output_norm`` with ``alpha=0``, without ``qk_norm``, is the
    alternative to its factor that ReLUFormer rejects (section 4.1); that the norm spans the heads,
    as in :class:`~relu_nmt.attention.rela.RelaAttention`, is our reading.

    Reference: Wortsman et al. 2023, "Replacing softmax with ReLU in vision transformers",
    section 3 and Figs. 1-4; relu with alpha = 1 is its main model. What its Fig. 4 calls gated is
    read as an output gate here; the other reading is
    :class:`relu_nmt.vision.gated_attention_unit.GatedAttentionUnit`.

    Example:
        >>> from relu_nmt.attention.masks import Visibility
        >>> config = ScaledPointwiseConfig(h="relu2")
        >>> attend = ScaledPointwiseAttention(config, num_heads=1, head_dim=4, dropout=0.0)
        >>> ones = torch.ones(1, 1, 3, 4)
        >>> attend(ones, ones, ones, Visibility(3, 3)).values[0, 0, 0].tolist()
        [4.0, 4.0, 4.0, 4.0]
    """

    Config = ScaledPointwiseConfig

    def __init__(
        self, config: ScaledPointwiseConfig, num_heads: int, head_dim: int, dropout: float
    ) -> None:
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

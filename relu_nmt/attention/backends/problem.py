"""What a back end of pointwise attention is asked and what it answers."""

from dataclasses import dataclass

from torch import Tensor

from relu_nmt.attention.base import Need
from relu_nmt.attention.bias import ScoreBias
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise_maps import PointwiseMap
from relu_nmt.attention.stats import RowSums


@dataclass(frozen=True)
class PointwiseProblem:
    """out_i = c_i sum_j h(z_ij) m_ij v_j and the row sums of h(z_ij) m_ij, z_ij = q_i k_j + b_ij.

    The c_i are constants of the rows; what is learnt about the scale is multiplied afterwards.

    Args:
        q: [B, H, Nq, d], already scaled by d^(-1/2).
        k: [B, H, Nk, d].
        v: [B, H, Nk, dv].
        map: h.
        visibility: m, which keys each query may see.
        bias: b, perhaps.
        row_scale: c, [B or 1, 1, Nq or 1] float32, no gradient.
        dropout: probability of dropping a weight; the sums are those before dropout.
        need: ``statistics`` and ``telemetry`` ask for the sums, ``weights`` for the weights.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    map: PointwiseMap
    visibility: Visibility
    bias: ScoreBias | None
    row_scale: Tensor
    dropout: float
    need: Need


@dataclass
class PointwiseResult:
    """The answer.

    Args:
        values: out, [B, H, Nq, dv], in the dtype of v.
        sums: of the rows of h(z) m, without the scale c, if asked for.
        weights: [B, H, Nq, Nk], c_i h(z_ij) m_ij in float32, if asked for.
    """

    values: Tensor
    sums: RowSums | None = None
    weights: Tensor | None = None

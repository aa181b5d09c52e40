"""Pointwise attention scaled by a power of the length: n^-alpha h(z), for seven maps h."""

from dataclasses import KW_ONLY

import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.base import AttentionConfig
from relu_nmt.attention.pointwise import PointwiseAttention
from relu_nmt.attention.pointwise_maps import PointwiseMap
from relu_nmt.config import option, settings

MAPS = ("relu", "relu2", "gelu", "softplus", "identity", "relu6", "sigmoid")
GATES = ("none", "silu", "identity")


@settings(flags=False)
class ScaledPointwiseConfig(AttentionConfig):
    """Settings of :class:`ScaledPointwiseAttention`."""

    h: str = option("relu", f"the map of the scores: {', '.join(MAPS)}", choices=MAPS)
    alpha: float = option(1.0, "weights are divided by n^alpha")
    gate: str = option("none", f"output gate: {', '.join(GATES)}", choices=GATES)
    _: KW_ONLY
    qk_norm: bool = option(True, "LayerNorm of the queries and keys of each head")


@attentions.register("pointwise")
class ScaledPointwiseAttention(PointwiseAttention):
    """a_ij = n_i^(-alpha) h(q_i k_j / sqrt(d)), output sum_j a_ij v_j.

    n_i is the number of keys that query i may see. h is one of relu, relu2 (its square), gelu (by
    erf), softplus, identity, relu6 and sigmoid; weights of gelu and identity can be negative.
    alpha = 1 keeps the expected sum of a row, alpha = 1/2 the variance of the output.

    With ``qk_norm`` q and k first pass a LayerNorm over the head width (a gain of width d shared
    by the heads, no bias, eps 1e-6), so that |z| <= sqrt(d) at gain 1. With a ``gate`` the joined
    heads are multiplied by act(x W_g), W_g [D, D], before the output projection: act is ``silu``,
    or ``identity`` for the ablation.

    Reference: Wortsman et al. 2023, "Replacing softmax with ReLU in vision transformers",
    section 3 and Figs. 1-4; relu with alpha = 1 is its main model. What its Fig. 4 calls gated is
    read as an output gate here; the other reading is
    :class:`relu_nmt.modules.gated_attention_unit.GatedAttentionUnit`.

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
        super().__init__(config, num_heads, head_dim, dropout, PointwiseMap(config.h))
        self.gate = None
        if config.gate != "none":
            embed_dim = num_heads * head_dim
            self.gate = nn.Linear(embed_dim, embed_dim, bias=False)
            nn.init.xavier_uniform_(self.gate.weight)

    def row_scale(self, counts: Tensor) -> Tensor:
        """Return n^-alpha."""
        return counts.pow(-self.config.alpha)

    def finish(self, joined: Tensor, x: Tensor) -> Tensor:
        """Gate the joined heads [B, Nq, D] by x [B, Nq, D]."""
        if self.gate is None:
            return joined
        gate = self.gate(x)
        return joined * (F.silu(gate) if self.config.gate == "silu" else gate)

"""Identity in place of softmax, in time linear in the length: for --user-module of the commands."""

from dataclasses import KW_ONLY, replace

from relu_nmt.attention import attentions
from relu_nmt.attention.base import AttentionOutput, AttentionProblem
from relu_nmt.attention.pointwise import ScaledPointwiseAttention
from relu_nmt.config import option, settings


@settings(flags=False)
class LinearIdentityConfig(ScaledPointwiseAttention.Config):
    """Settings of :class:`LinearIdentityAttention`, as ``pointwise`` has them."""

    h: str = option("identity", "the map of the scores", choices=("identity",))
    _: KW_ONLY


@attentions.register("linear_identity")
class LinearIdentityAttention(ScaledPointwiseAttention):
    """out_i = n_i^(-alpha) d^(-1/2) q_i (sum_j k_j^T v_j), which is ``pointwise:h=identity``.

    The product of keys and values [d, d] comes first, so that no matrix of weights [Nq, Nk] is
    made. If weights are asked for or dropped, or scores have a bias, the usual order is used.

    Reference: Wortsman et al. 2023, "Replacing softmax with ReLU in vision transformers", Fig. 2.
    """

    Config = LinearIdentityConfig
    capabilities = replace(
        ScaledPointwiseAttention.capabilities,
        causal=False,
        reason="it sums keys and values of all tokens first",
    )

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        need = problem.need
        if need.any_statistics or need.weights or problem.dropout > 0 or problem.bias is not None:
            return super().attend(problem)
        # k^T v [B, H, d, dv] of the keys that are no padding, then the scale of each row.
        k = problem.visibility.without_padding(problem.k)
        row_scale = self.row_scale(problem.visibility.positive_counts)[..., None]
        values = problem.q @ (k.transpose(-1, -2) @ problem.v)
        return AttentionOutput((values * (row_scale * self.head_dim**-0.5)).to(values.dtype))

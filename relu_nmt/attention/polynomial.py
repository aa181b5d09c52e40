"""Polynomial attention: a power of the scores, scaled by the root of the length."""

import torch
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import AttentionConfig, Capabilities, without_decay
from relu_nmt.attention.pointwise import PointwiseAttention, power_map
from relu_nmt.config import option, settings

MAX_POWER = 6
SCALES = ("fixed", "none", "dynamic")


@attentions.register("polynomial")
class PolynomialAttention(PointwiseAttention):
    """A_ij = c_i (q_i k_j / sqrt(d))^p, element by element. Output sum_j A_ij v_j.

    ``scale`` chooses c. ``none`` is 1. ``fixed`` is 1/sqrt(n_i), with the number n_i of keys that
    query i may see, or 1/sqrt(N) with ``length=N``. ``dynamic`` is learned, without weight decay,
    and may become negative. With ``length`` c itself is learned, from 1/sqrt(N) on. Without
    ``length`` a single c cannot fit all lengths, so c_i is g/sqrt(n_i) with a learned g that starts
    at 1.

    Weights of odd powers are signed. Weights of even powers are not, unless the scale is dynamic.

    Reference: Saratchandran et al. 2024, "Rethinking Attention: Polynomial
    Alternatives to Softmax in Transformers", Theorem 4.2 and Corollary 4.3. Its 1/14
    is N = 196, the number of patches. The paper has no masks. One c a row, which masks need, is
    ours.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention polynomial:power=2``."""

        power: int = option(
            3, f"the exponent p of the scores, 1 to {MAX_POWER}", least=1, most=MAX_POWER
        )
        scale: str = option(
            "fixed", "fixed 1/sqrt(n), dynamic (learned, from fixed on) or none", choices=SCALES
        )
        per_head: bool = option(
            False,
            "learn one dynamic scale a head instead of one a layer",
            needs=("scale", "dynamic"),
        )
        length: int | None = option(
            None,
            "a constant N for the scale, else each query's own n",
            least=1,
            needs=("scale", "fixed", "dynamic"),
        )

    capabilities = Capabilities(scores=True, non_negative=False)

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout, power_map(config.power))
        self.scale = None
        if config.scale == "dynamic":
            # Give up non-negative weights, since a learned scale may become negative.
            self.capabilities = type(self).capabilities
            # Start at 1/sqrt(N), or at 1 where counts scale the rows.
            start = (config.length or 1) ** -0.5
            count = num_heads if config.per_head else 1
            self.scale = without_decay(torch.full((count,), start))

    def row_scale(self, counts: Tensor) -> Tensor:
        """Return the fixed scale."""
        if self.config.scale == "none":
            return torch.ones_like(counts)
        if self.config.length is not None:
            return torch.full_like(counts, self.config.length**-0.5)
        return counts.rsqrt()

    def gain(self) -> Tensor | None:
        """Return the learned scale over the fixed one, [1] or [H]. None if it is not learned."""
        if self.scale is None or self.config.length is None:
            return self.scale
        return self.scale * self.config.length**0.5

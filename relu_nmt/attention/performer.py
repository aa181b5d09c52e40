"""Performer: softmax attention approximated by positive random features (FAVOR+)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import AttentionConfig
from relu_nmt.attention.kernel_features import FeatureAttention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import second_pass
from relu_nmt.config import option, settings

SOFTMAX_EPSILON = 1e-4
RELU_EPSILON = 1e-3
LARGEST_PRODUCT = 40.0
"""Clamp products w_r k' to +-40, so that float32 holds the ratio of any two exponentials. Only keys
with |k|^2 / sqrt(d) above 100 reach it."""


@attentions.register("performer")
class PerformerAttention(FeatureAttention):
    """w_ij = f(q_i) f(k_j) / sum_j f(q_i) f(k_j) with random features f.

    With x' = x d^(-1/4) and random directions w_r, the softmax kernel has
    f_r(x) = exp(w_r x' - |x'|^2 / 2 - c) + 1e-4, which without the 1e-4 estimates exp(q k /
    sqrt(d)) without bias; the relu kernel has f_r(x) = max(w_r x', 0) + 1e-3. A common factor
    m^(-1/2) cancels. c keeps the exponentials finite: for a query it is its own largest w_r q', for
    the keys the largest w_r k' of all keys that the query sees. So in causal use c grows along the
    sequence and no later key changes it, as step-by-step decoding needs. Since
    exp(e_j - c_i) = exp(e_j - c) exp(c - c_i), the features still factor.

    As c leaves out |x'|^2 / 2, the 1e-4 matters more for longer vectors: rows whose estimate is all
    variance become uniform. With the whole exponent in c the error is larger.

    The directions are orthogonal in blocks of d. A checkpoint stores a seed and the number of
    training passes, which give the same directions after a resume. It does not store the directions
    themselves, as averages of checkpoints would average them (they keep the first seed).

    Reference: Choromanski et al. 2021, "Rethinking Attention with Performers", section 2.3-2.4 and
    Lemma 1; c, the epsilons and the relu kernel are those of its code. Deviation: the code takes
    the c of the keys over all keys of the batch.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options behind the colon."""

        features: int = option(256, "number of random features m", least=1)
        kernel: str = option("softmax", "softmax or relu", choices=("softmax", "relu"))
        redraw: int = option(
            1000, "passes in training between new random features; 0 = never", least=0
        )

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        # Draw a seed from the global generator, for checkpoints to store.
        seed = int(torch.randint(2**31, ()))
        self.seed_and_passes: Tensor
        self.register_buffer("seed_and_passes", torch.tensor([seed, 0]))
        # Reserve room for the directions, which the first pass draws.
        directions = torch.empty(config.features, head_dim)
        self.directions: Tensor
        self.register_buffer("directions", directions, persistent=False)
        # A copy of the buffer on the host, so that a pass does not wait for the device.
        self._seed_and_passes: list[int] | None = None
        self._drawn: int | None = None
        self.register_load_state_dict_post_hook(_forget_draw)

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """See :meth:`FeatureAttention.features`."""
        directions = self._current_directions().to(q.dtype)
        q, k = q * self.head_dim**-0.25, k * self.head_dim**-0.25
        if self.config.kernel == "relu":
            return (
                (q @ directions.T).relu() + RELU_EPSILON,
                (k @ directions.T).relu() + RELU_EPSILON,
            )
        # Queries: the stabiliser c is their own largest product.
        products, halves = exponent_parts(q, directions)
        queries = (products - halves - products.amax(-1, keepdim=True)).exp() + SOFTMAX_EPSILON
        # Keys: one stabiliser c for all, as a common factor.
        products, halves = exponent_parts(k, directions)
        products = products.clamp(-LARGEST_PRODUCT, LARGEST_PRODUCT)
        largest = products.amax(-1, keepdim=True)  # [B, H, Nk, 1]
        real = visibility.key_column
        if real is not None:
            largest = largest.masked_fill(~real, -LARGEST_PRODUCT)
        stabiliser = largest.amax(2, keepdim=True)  # c, [B, H, 1, 1]
        keys = (products - halves - stabiliser).exp()
        # Each query's own stabiliser c_i, the maximum over its visible keys, [B, H, Nq or 1, 1].
        # ONNX has no running maximum.
        seen = stabiliser
        by_matrix = visibility.hides_later and torch.compiler.is_exporting()
        if (visibility.ancestry is not None or by_matrix) and visibility.hidden is not None:
            rows = largest.transpose(2, 3).masked_fill(visibility.hidden, -LARGEST_PRODUCT)
            seen = rows.amax(3, keepdim=True)  # over [B, H, Nq, Nk]
        elif visibility.hides_later:
            seen = largest.cummax(2).values[:, :, k.size(2) - q.size(2) :]
        # Multiply by exp(c - c_i), which puts c_i in the place of c.
        rescaled = queries * (stabiliser - seen).exp()
        # One more feature for the keys' epsilon, which is not rescaled.
        total = SOFTMAX_EPSILON * queries.sum(-1, keepdim=True)
        return torch.cat([rescaled, total], -1), torch.cat([keys, torch.ones_like(largest)], -1)

    @property
    def passes(self) -> int:
        """Number of training passes so far."""
        return self._mirrored()[1]

    @passes.setter
    def passes(self, passes: int) -> None:
        self._mirrored()[1] = passes
        self.seed_and_passes[1] = passes

    def _mirrored(self) -> list[int]:
        if self._seed_and_passes is None:
            self._seed_and_passes = self.seed_and_passes.tolist()
        return self._seed_and_passes

    def _current_directions(self) -> Tensor:
        """Return the random directions [m, d] of this pass; count the pass in training."""
        # Draw new directions after every ``redraw`` training passes.
        draw = self.passes // self.config.redraw if self.config.redraw else 0
        if draw != self._drawn:
            seed = self._mirrored()[0] + draw
            drawn = random_directions(self.config.features, self.head_dim, seed)
            self.directions = drawn.to(self.directions)
            self._drawn = draw
        if self.training:
            self.passes += 1
        return self.directions


def _forget_draw(attention: PerformerAttention, _: object) -> None:
    attention._seed_and_passes = attention._drawn = None


@second_pass.register
def _(attention: PerformerAttention) -> AbstractContextManager[None]:
    """Repeat the draw of the first pass, and do not count the pass again."""
    # Remember the count now, before the first pass raises it.
    passes = attention.passes

    @contextmanager
    def block() -> Iterator[None]:
        # Set the count back for the second pass, and restore it after.
        later, attention.passes = attention.passes, passes
        try:
            yield
        finally:
            attention.passes = later

    return block()


def random_directions(count: int, dim: int, seed: int) -> Tensor:
    """Return random rows [count, dim], each standard normal, orthogonal in blocks of ``dim``."""
    # Make blocks of orthogonal rows, then give each row the length of a normal one.
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-count // dim)
    normal = torch.randn(blocks, dim, dim, generator=generator, dtype=torch.float64)
    orthogonal, triangular = torch.linalg.qr(normal)
    # With the signs of R's diagonal the orthogonal matrices are uniformly distributed.
    orthogonal = orthogonal * triangular.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    norms = torch.randn(count, dim, generator=generator, dtype=torch.float64).norm(dim=-1)
    return orthogonal.flatten(0, 1)[:count] * norms[:, None]


def exponent_parts(x: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Return w_r x, [..., m], and |x|^2 / 2, [..., 1].

    Let e_r(x) be their difference: the mean over r of exp(e_r(x) + e_r(y)) estimates exp(x y)
    without bias. x [..., d] must be multiplied by d^(-1/4) beforehand; directions w are [m, d].
    """
    return x @ directions.T, x.square().sum(-1, keepdim=True) / 2

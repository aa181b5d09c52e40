"""Attention by feature maps, in linear time: linear, efficient, cosFormer, Performer.

Because the weights f(q_i) g(k_j) factor, sum_j f(q_i) g(k_j)^T v_j is f(q_i) (sum_j g(k_j)^T v_j),
which needs no matrix [Nq, Nk]. ``R`` is the number of features.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import (
    Attention,
    AttentionConfig,
    AttentionOutput,
    AttentionProblem,
    Capabilities,
)
from relu_nmt.attention.kernels import reference, tuned
from relu_nmt.attention.masks import Visibility
from relu_nmt.config import MOST_SIZE, option, settings
from relu_nmt.errors import ConfigError

LINEAR_EPSILON = 1e-6
SMALLEST_SUM = 1e-6
SOFTMAX_EPSILON = 1e-4
RELU_EPSILON = 1e-3
LARGEST_PRODUCT = 40.0
"""Performer clamps products w_r k' to +-40, so that float32 holds the ratio of two exponentials.
Only keys with |k|^2 / sqrt(d) above 100 reach it."""


class FeatureAttention(Attention):
    """w_ij = f(q_i) g(k_j) m_ij / D(sum_j f(q_i) g(k_j) m_ij), output sum_j w_ij v_j.

    A subclass defines :meth:`features` (f and g) and may define :meth:`divisor` (D). The matrix of
    weights is computed only if weights, statistics or dropout need it, for long sequences by blocks
    of queries.
    """

    exact = True

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Return f(q) [B, H, Nq, R] and g(k) [B, H, Nk, R]. Values at padded keys are ignored.

        q [B, H, Nq, d] and k [B, H, Nk, d] are float32 or float64.
        """
        raise TypeError(f"{type(self).__name__} must define features")

    def divisor(self, totals: Tensor) -> Tensor:
        """Return D of the row sums, of the same shape."""
        return totals

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        visibility = problem.visibility
        queries, keys = self.features(problem.q, problem.k, visibility)
        keys = visibility.without_padding(keys)
        if problem.need.any_statistics or problem.need.weights or problem.dropout > 0:
            return reference.solve_rows(replace(problem, q=queries, k=keys))
        # A column of ones in v sums the weights of each row.
        extended = F.pad(problem.v, (0, 1), value=1.0)
        sums = masked_sums(queries, keys, extended, visibility)
        values = sums[..., :-1] / self.divisor(visibility.without_empty_rows(sums[..., -1:], 1.0))
        return AttentionOutput(visibility.without_empty_rows(values))

    def weights(self, problem: AttentionProblem) -> Tensor:
        """Return the weights [B, H, Nq, Nk], 0 where hidden. q and k are features here."""
        visibility = problem.visibility
        weights = problem.q @ problem.k.transpose(-1, -2)  # [B, H, Nq, Nk]
        if visibility.hidden is not None:
            weights = weights.masked_fill(visibility.hidden, 0.0)
        totals = weights.sum(-1, keepdim=True)
        return weights / self.divisor(visibility.without_empty_rows(totals, 1.0))


@attentions.register("linear")
class LinearAttention(FeatureAttention):
    """out_i = f(q_i) sum_j f(k_j)^T v_j / (f(q_i) sum_j f(k_j) + 1e-6), f(x) = elu(x) + 1.

    Queries are not scaled by d^(-1/2).

    Reference: Katharopoulos et al. 2020, "Transformers are RNNs", Eq. 7 (map), 5 and 9 (causal).
    The 1e-6 comes from the public code.
    """

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        return F.elu(q) + 1, F.elu(k) + 1

    def divisor(self, totals: Tensor) -> Tensor:
        """Return the sums plus 1e-6."""
        return totals + LINEAR_EPSILON


@attentions.register("efficient")
class EfficientAttention(FeatureAttention):
    """out = softmax_channels(q) (softmax_tokens(k)^T v), without d^(-1/2).

    The matrix softmax_channels(q) softmax_tokens(k)^T, which is never computed, has rows that sum
    to 1.

    Reference: Shen et al. 2021, "Efficient Attention: Attention with Linear Complexities",
    section 3.2 (softmax normalization).
    """

    capabilities = Capabilities(
        causal=False, reason="it normalizes each channel of the keys over the whole token axis"
    )

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        real = visibility.key_column
        if real is not None:
            # Let a sample without keys see all of them: its softmax would be NaN.
            visible = real | ~real.any(2, keepdim=True)
            k = k.masked_fill(~visible, -math.inf)
        return q.softmax(-1), k.softmax(2)

    def divisor(self, totals: Tensor) -> Tensor:
        """Return ones: the rows already sum to 1."""
        return torch.ones_like(totals)


@attentions.register("cosformer")
class CosFormerAttention(FeatureAttention):
    """w_ij = relu(q_i) relu(k_j) cos(pi (i - j) / (2 M)), divided by max(sum_j w_ij, 1e-6).

    As cos(a - b) = cos a cos b + sin a sin b, the weights are products of 2 d features. M is the
    sentence's own length without padding. In causal use it is the fixed ``horizon``, as later
    tokens must not change earlier weights. Positions count the real tokens. If there are fewer
    queries than keys, as in step-by-step decoding, the queries are the last tokens. A query or key
    without positive channels gives output 0.

    With ``grid``, for the patches of images, the cosine is cos(pi (y_i - y_j) / (2 R))
    cos(pi (x_i - x_j) / (2 C)) on R rows and C columns, by 4 d features. A class token stands in
    the middle of the image, equally near to opposite patches.

    Reference: Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention", Eq. 9-12. Deviation:
    the paper's code takes M = max(Nq, Nk) of the padded batch, in causal use too. The form for
    images: Koohpayegani and Pirsiavash 2024, "SimA", appendix A.4. The place of the class token is
    ours.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention cosformer:horizon=4096``."""

        reweight: bool = option(True, "multiply by the cosine of the distance")
        grid: bool = option(
            False,
            "distances by rows and columns of an image's patches, a cosine of each",
            needs="reweight",
        )
        horizon: int = option(
            1024,
            "M in causal use, where the length is not known: the most tokens of a sequence",
            least=1,
            needs=["reweight", ("grid", False)],
        )

    capabilities = Capabilities(
        cross=False,
        permutation_invariant=False,
        reason="its weights depend on the distance between query and key in one sequence",
    )

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Return f(q) and g(k). Raise a ConfigError beyond ``horizon`` or without patches."""
        q, k = q.relu(), k.relu()
        if not self.config.reweight:
            return q, k
        if self.config.grid:  # one cosine for the rows, one for the columns
            for fractions in _grid_places(visibility, q):
                q, k = _rotated(q, fractions), _rotated(k, fractions)
            return q, k
        if visibility.causal:  # positions over the fixed horizon
            if visibility.longest > self.config.horizon:
                raise ConfigError(
                    f"cosformer: {visibility.longest} tokens, but its causal form was made for "
                    f"horizon={self.config.horizon}; train with the attention option "
                    f"horizon={visibility.longest} or more"
                )
            return (
                _rotated(q, visibility.query_positions().to(q) / self.config.horizon),
                _rotated(k, visibility.key_positions().to(q) / self.config.horizon),
            )
        # Positions over M stay below 1. Above 1 cosines, and so sums, would be negative.
        positive_counts = visibility.positive_counts[:, 0].to(q)
        fractions = visibility.positions_without_padding().to(q) / positive_counts
        return _rotated(q, fractions), _rotated(k, fractions)

    def most_keys(self, causal: bool) -> int | None:
        """Return ``horizon`` in causal use."""
        if causal and self.config.reweight and not self.config.grid:
            return self.config.horizon
        return None

    def divisor(self, totals: Tensor) -> Tensor:
        """Return the sums, at least 1e-6."""
        return totals.clamp_min(SMALLEST_SUM)


def _grid_places(visibility: Visibility, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return row / number of rows and column / number of columns of each token, [1, N] each."""
    if visibility.grid is None:
        raise ConfigError("cosformer: grid=true is for the patches of images; leave it out")
    # Number rows and columns of the patches. Tokens before them get the middle.
    rows, columns = visibility.grid
    num_leading = visibility.num_keys - rows * columns
    patches = torch.arange(rows * columns, device=like.device)
    fractions = []
    for numbers, size in ((patches // columns, rows), (patches % columns, columns)):
        middle = (size - 1) / 2
        fractions.append(F.pad(numbers.to(like.dtype), (num_leading, 0), value=middle)[None] / size)
    return fractions[0], fractions[1]


def _rotated(x: Tensor, fractions: Tensor) -> Tensor:
    """Return x cos a and x sin a side by side, [B, H, N, 2 d], a = pi / 2 times the fractions."""
    angles = (fractions * (math.pi / 2))[:, None, :, None]
    return torch.cat([x * angles.cos(), x * angles.sin()], -1)


@attentions.register("performer")
class PerformerAttention(FeatureAttention):
    """w_ij = f(q_i) f(k_j) / sum_j f(q_i) f(k_j) with random features f.

    With x' = x d^(-1/4) and random directions w_r, the softmax kernel has
    f_r(x) = exp(w_r x' - |x'|^2 / 2 - c) + 1e-4, which without the 1e-4 estimates exp(q k /
    sqrt(d)) without bias. The relu kernel has f_r(x) = max(w_r x', 0) + 1e-3. A common factor
    m^(-1/2) cancels. c keeps the exponentials finite. In f(q) it is the query's largest w_r q'. In
    f(k) it is the largest w_r k' of all keys that the query sees. So in causal use c grows along
    the sequence and no later key changes it, as step-by-step decoding needs. Since exp(e_j - c_i) =
    exp(e_j - c) exp(c - c_i), the features still factor.

    c leaves out |x'|^2 / 2, so the 1e-4 matters more for longer vectors: rows whose estimate is
    mere noise become uniform. With the whole exponent in c the error would be larger.

    The directions are orthogonal in blocks of d. A checkpoint stores a seed and the number of
    training passes, which give the same directions after a resume. It does not store the directions
    themselves, since averaging checkpoints would average them. An average of checkpoints keeps the
    first seed.

    Reference: Choromanski et al. 2021, "Rethinking Attention with Performers", section 2.3-2.4 and
    Lemma 1. c, the epsilons and the relu kernel come from its code. Deviation: the code takes
    the c of the keys over all keys of the batch.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention performer:features=128``."""

        features: int = option(256, "number of random features m", least=1, most=MOST_SIZE)
        kernel: str = option("softmax", "softmax or relu", choices=("softmax", "relu"))
        redraw: int = option(
            1000, "passes in training between new random features (0: never)", least=0
        )

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        # Draw a seed from the global generator, for checkpoints to store.
        seed = int(torch.randint(2**31, ()))
        self.seed_and_passes: Tensor
        self.register_buffer("seed_and_passes", torch.tensor([seed, 0]))
        directions = torch.empty(config.features, head_dim)
        self.directions: Tensor
        self.register_buffer("directions", directions, persistent=False)
        # A copy of the buffer on the host, so that a pass does not wait for the device.
        self._seed_and_passes: list[int] | None = None
        self._drawn: int | None = None
        self.register_load_state_dict_post_hook(_forget_draw)

    def features(self, q: Tensor, k: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        directions = self._current_directions().to(q.dtype)
        q, k = q * self.head_dim**-0.25, k * self.head_dim**-0.25
        if self.config.kernel == "relu":
            return (
                (q @ directions.T).relu() + RELU_EPSILON,
                (k @ directions.T).relu() + RELU_EPSILON,
            )
        # Queries: the stabilizer c is their own largest product.
        products, halves = exponent_parts(q, directions)
        queries = (products - halves - products.amax(-1, keepdim=True)).exp() + SOFTMAX_EPSILON
        # Keys: one stabilizer c for all, as a common factor.
        products, halves = exponent_parts(k, directions)
        products = products.clamp(-LARGEST_PRODUCT, LARGEST_PRODUCT)
        largest = products.amax(-1, keepdim=True)  # [B, H, Nk, 1]
        real = visibility.key_column
        if real is not None:
            largest = largest.masked_fill(~real, -LARGEST_PRODUCT)
        stabilizer = largest.amax(2, keepdim=True)  # c, [B, H, 1, 1]
        keys = (products - halves - stabilizer).exp()
        # Each query's own stabilizer c_i, the maximum over its visible keys, [B, H, Nq or 1, 1].
        if visibility.shares_keys:
            visible_stabilizer = stabilizer
        elif visibility.hides_later and not torch.compiler.is_exporting():
            visible_stabilizer = largest.cummax(2).values[:, :, visibility.offset :]
        else:  # a tree, or ONNX, which has no running maximum: over [B, H, Nq, Nk]
            assert visibility.hidden is not None, "queries see different keys"
            rows = largest.transpose(2, 3).masked_fill(visibility.hidden, -LARGEST_PRODUCT)
            visible_stabilizer = rows.amax(3, keepdim=True)
        # Multiply by exp(c - c_i), which puts c_i in the place of c.
        rescaled = queries * (stabilizer - visible_stabilizer).exp()
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

    def second_pass(self) -> AbstractContextManager[None]:
        """Also repeat the draw of the first pass, and do not count the pass again."""
        # Remember the count now, before the first pass raises it.
        return self._repeated(super().second_pass(), self.passes)

    @contextmanager
    def _repeated(self, block: AbstractContextManager[None], passes: int) -> Iterator[None]:
        later = self.passes
        self.passes = passes
        try:
            with block:
                yield
        finally:
            self.passes = later

    def _mirrored(self) -> list[int]:
        if self._seed_and_passes is None:
            self._seed_and_passes = self.seed_and_passes.tolist()
        return self._seed_and_passes

    def _current_directions(self) -> Tensor:
        """Return the random directions [m, d] of this pass. Count the pass in training."""
        draw = 0
        if self.config.redraw > 0:
            draw = self.passes // self.config.redraw
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


def random_directions(count: int, dim: int, seed: int) -> Tensor:
    """Return random rows [count, dim], each standard normal, orthogonal in blocks of ``dim``."""
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
    without bias. x [..., d] must be multiplied by d^(-1/4) beforehand. Directions w are [m, d].
    """
    return x @ directions.T, x.square().sum(-1, keepdim=True) / 2


def masked_sums(queries: Tensor, keys: Tensor, v: Tensor, visibility: Visibility) -> Tensor:
    """Return sum_j (queries_i keys_j) m_ij v_j, [B, H, Nq, dv], in the cheapest order.

    queries [B, H, Nq, R] and keys [B, H, Nk, R] are features. Padded keys must be 0, since m hides
    only later keys here.
    """
    # Choose the order by its number of products. An exported graph, which serves all lengths,
    # cannot choose.
    num_queries = queries.size(2)
    num_keys = keys.size(2)
    rank = keys.size(3)
    width = v.size(3)
    by_matrix = num_queries * num_keys * (rank + width)
    is_cheaper = (
        torch.compiler.is_exporting() or by_matrix <= (num_queries + num_keys) * rank * width
    )
    if not is_cheaper and visibility.shares_keys:
        return queries @ (keys.transpose(-1, -2) @ v)
    if not is_cheaper and visibility.hides_later:
        # Sum by chunks, so that causal use stays linear in the length.
        return _causal_sums(queries, keys, v)
    products = queries @ keys.transpose(-1, -2)
    if visibility.hides_later:
        products = products.tril(visibility.offset)
    elif not visibility.shares_keys and visibility.hidden is not None:
        products = products.masked_fill(visibility.hidden, 0.0)  # of a tree
    return products @ v


def _causal_sums(queries: Tensor, keys: Tensor, v: Tensor) -> Tensor:
    """Return each query's sum over the keys up to its position. Query and key -1 are one token."""
    # Each chunk of C positions attends to itself by a small matrix, and to all earlier chunks by
    # the running sum of keys^T v, [B, H, chunks, R, dv].
    # Split keys into those before the first query's own and the rest, which form chunks.
    num_queries = queries.size(2)
    old = keys.size(2) - num_queries
    before = keys[:, :, :old].transpose(-1, -2) @ v[:, :, :old]  # [B, H, R, dv]
    queries, keys, v = (_in_chunks(x) for x in (queries, keys[:, :, old:], v[:, :, old:]))
    within = (queries @ keys.transpose(-1, -2)).tril() @ v  # [B, H, chunks, C, dv]
    sums = keys[:, :, :-1].transpose(-1, -2) @ v[:, :, :-1]  # no chunk follows the last
    # Sum the earlier keys and all chunks before each chunk.
    running = torch.cat([before[:, :, None], sums], 2).cumsum(2)  # [B, H, chunks, R, dv]
    return (within + queries @ running).flatten(2, 3)[:, :, :num_queries]


def _in_chunks(x: Tensor) -> Tensor:
    padded = F.pad(x, (0, 0, 0, -x.size(2) % tuned.FEATURE_CHUNK))
    return padded.unflatten(2, (-1, tuned.FEATURE_CHUNK))  # [B, H, chunks, C, features]

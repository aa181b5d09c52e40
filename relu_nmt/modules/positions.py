"""Position schemes: sinusoidal and learned vectors, rotary positions, ALiBi, T5's buckets.

A scheme can do three things: add vectors to the embeddings, rotate queries and keys, and add a bias
to the scores. The last two are for self-attention only, as the distance between a target and a
source token has no fixed meaning. Cross-attention gets positions from the states alone.

Your own scheme is a subclass of :class:`PositionScheme`, registered by name. Names joined by a plus
(``sinusoidal+t5``) are several schemes at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.score_bias import ScoreBias
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.modules import position_schemes

ROTARY_BASE = 10000.0
T5_BUCKETS = 32
LEAST_DISTANCES = {
    16: (*range(1, 9), 12, 16, 23, 32, 46, 64, 91),
    32: (*range(1, 17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113),
}
"""T5: least distance of each bucket but the first, by the number of buckets of a direction.

Beyond half of the buckets it grows by a constant factor, up to 128, and is rounded up."""


@dataclass(frozen=True)
class PositionConfig:
    """Properties of the model that a scheme may use. ``causal``: tokens see no later tokens.

    ``flag`` sets ``max_positions``, the length of the longest sequence. Error messages name it.
    """

    embed_dim: int
    num_heads: int
    causal: bool
    max_positions: int
    flag: str = "--max-positions"


class PositionScheme(nn.Module):
    """Base class of position schemes. All layers share one. ``max_positions`` None: any length."""

    needs_scores: bool = False
    """True if it has ``rotation`` or ``bias``, which only mechanisms with scores can use."""
    max_positions: int | None = None

    def __init__(self, config: PositionConfig) -> None:
        super().__init__()
        self.config = config

    def embed(self, num_positions: int, start: int = 0) -> Tensor | None:
        """Return vectors [N, D] for the embeddings of N positions from ``start`` on, or None."""
        return None

    def rotation(self, positions: Tensor) -> "Rotation | None":
        """Return the rotation of queries and keys at positions [B or 1, N] int64, or None."""
        return None

    def bias(self, visibility: Visibility) -> ScoreBias | None:
        """Return the bias of the scores in self-attention, or None."""
        return None

    def relative(self, visibility: Visibility) -> "RelativePositions":
        """Return rotation and bias for all layers of one pass."""
        if not self.needs_scores:
            return NO_POSITIONS
        rotation = self.rotation(visibility.query_positions())
        return RelativePositions(rotation, self.bias(visibility))


Rotation: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines of the angles of all tokens, [B or 1, 1, N, d] each.

They rotate the planes of channels c and c + d/2 of each head. Both halves of the cosines are equal.
The first half of the sines is negated.
"""


@dataclass(frozen=True)
class RelativePositions:
    """Rotation of queries and keys, and bias of the scores, for all layers of one pass."""

    rotation: Rotation | None = None
    bias: ScoreBias | None = None

    def rotate(self, *parts: Tensor) -> list[Tensor]:
        """Return queries and keys [B, H, N, d] of the same tokens rotated, in their own dtype."""
        if self.rotation is None:
            return [*parts]
        cosines, sines = self.rotation
        # Swap the halves: (a, b) becomes (a cos - b sin, b cos + a sin).
        swapped = [x.roll(x.size(-1) // 2, dims=-1) for x in parts]
        return [
            torch.addcmul(x * cosines, other, sines).to(x.dtype)
            for x, other in zip(parts, swapped, strict=True)
        ]


NO_POSITIONS = RelativePositions()


# No positions: without a causal mask, the order of the tokens has no effect.
position_schemes.register("none")(PositionScheme)


@position_schemes.register("sinusoidal")
class SinusoidalPositions(PositionScheme):
    """Fixed sine and cosine waves of any length.

    The first half of the D channels holds sines, the second cosines. The table grows on demand.

    Reference: Vaswani et al. 2017, section 3.5 (halves instead of alternating columns, which
    differs by a fixed permutation of the channels).
    """

    table: Tensor

    def __init__(self, config: PositionConfig) -> None:
        super().__init__(config)
        waves = sinusoids(torch.arange(256), config.embed_dim)
        self.register_buffer("table", waves, persistent=False)

    def embed(self, num_positions: int, start: int = 0) -> Tensor:
        end = start + num_positions
        if end > self.table.size(0):
            waves = sinusoids(torch.arange(2 * end), self.config.embed_dim)
            self.table = waves.to(self.table.device)
        return self.table[start:end]


@position_schemes.register("sinusoidal-fairseq")
class FairseqSinusoidalPositions(SinusoidalPositions):
    """The same waves from position 2 on, for models that fairseq trained.

    Reference: fairseq 0.12, ``make_positions``, where positions begin behind the padding index.
    """

    def embed(self, num_positions: int, start: int = 0) -> Tensor:
        return super().embed(num_positions, start + 2)


def sinusoids(positions: Tensor, embed_dim: int) -> Tensor:
    """Return the waves [N, D] at positions [N]: sines in the first half, cosines in the second."""
    half = (embed_dim + 1) // 2
    # Lower the rates geometrically from 1 to 1/10000.
    rates = torch.arange(half, device=positions.device) * (-math.log(10000.0) / max(half - 1, 1))
    angles = positions[:, None] * rates.exp()[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :embed_dim]


@position_schemes.register("learned")
class LearnedPositions(PositionScheme):
    """One learned vector for each position, up to a fixed number of positions.

    Reference: Gehring et al. 2017, "Convolutional sequence to sequence learning", section 3.1.
    """

    def __init__(self, config: PositionConfig) -> None:
        super().__init__(config)
        self.max_positions = config.max_positions
        self.weight = nn.Parameter(torch.empty(config.max_positions, config.embed_dim))
        nn.init.normal_(self.weight, std=config.embed_dim**-0.5)

    def embed(self, num_positions: int, start: int = 0) -> Tensor:
        """Return the vectors. Raise a DataError if the sequence is longer than the table."""
        end = start + num_positions
        if end > self.weight.size(0):
            raise DataError(
                f"a sequence of {end} tokens does not fit {self.config.flag} "
                f"{self.weight.size(0)} with learned positions; raise it or train with sinusoidal "
                "positions"
            )
        return self.weight[start:end]


@position_schemes.register("rotary")
class RotaryPositions(PositionScheme):
    """Rotation of queries and keys by angles that grow with the position.

    Channels c and c + d/2 of a head of width d form a plane, rotated by the position times
    10000^(-2c/d). So a score depends on the distance of query and key only. The rotation follows
    the mechanism's own maps, such as a norm.

    Reference: Su et al. 2021, "RoFormer", Eq. 15 and 34 (halves instead of neighboring channels,
    which differs by a fixed permutation of the channels).
    """

    needs_scores = True
    rates: Tensor

    def __init__(self, config: PositionConfig) -> None:
        super().__init__(config)
        width = config.embed_dim // config.num_heads
        if width % 2:
            raise ConfigError(f"rotary positions: expected heads of even width, not {width}")
        rates = torch.exp(torch.arange(0, width, 2) * (-math.log(ROTARY_BASE) / width))
        self.register_buffer("rates", rates, persistent=False)

    def rotation(self, positions: Tensor) -> Rotation:
        exact = torch.promote_types(self.rates.dtype, torch.float32)
        angles = positions[..., None].to(exact) * self.rates.to(exact)  # [B or 1, N, d/2]
        cos = angles.cos()[:, None]
        sin = angles.sin()[:, None]
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


class DistanceBias(PositionScheme):
    """Base class of biases that depend on the distance from key to query alone."""

    needs_scores = True

    def of_offsets(self, offsets: Tensor) -> Tensor:
        """Return the bias [H, R] of offsets [R], query position minus key position."""
        raise TypeError(f"{type(self).__name__} must define of_offsets")

    def bias(self, visibility: Visibility) -> ScoreBias:
        # A table for all offsets between two tokens of the longest sequence.
        longest = visibility.longest
        queries = visibility.query_positions()
        offsets = torch.arange(1 - longest, longest, device=queries.device)
        keys = visibility.key_positions()
        return ScoreBias(self.of_offsets(offsets), queries, keys, zero=longest - 1)


@position_schemes.register("alibi")
class AlibiPositions(DistanceBias):
    """A bias that falls linearly with the distance, with a fixed slope for each head.

    The slopes are 2^(-8h/H) for h = 1 .. H. If H is no power of two, the heads get the slopes for P
    heads, the largest power of two below H, then every second slope for 2 P heads. Where tokens see
    both sides, both have the same slope.

    Reference: Press et al. 2022, "Train short, test long", section 3. Both sides as in the authors'
    remarks on encoders.
    """

    slopes: Tensor

    def __init__(self, config: PositionConfig) -> None:
        super().__init__(config)
        # Take the slopes for P heads, then every second slope for 2 P heads.
        power = 1 << (config.num_heads.bit_length() - 1)
        slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
        slopes += [2 ** (-4 * h / power) for h in range(1, 2 * (config.num_heads - power), 2)]
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)

    def of_offsets(self, offsets: Tensor) -> Tensor:
        return -self.slopes[:, None] * offsets.abs()


@position_schemes.register("t5")
class T5Positions(DistanceBias):
    """A learned bias for each head and bucket of distances, the same in all layers.

    Half of the 32 buckets hold one small distance each. The other half holds ranges that widen
    logarithmically up to 128 tokens. The last bucket also holds all larger distances. Where tokens
    see both sides, half of the buckets are for keys behind the query.

    Reference: Raffel et al. 2020, "Exploring the limits of transfer learning", section 2.1.
    Deviation: the table starts at zero, not at random, so that training starts without a bias.
    """

    least_distances: Tensor
    """The least distance of each bucket of a direction, without the first bucket."""

    def __init__(self, config: PositionConfig) -> None:
        super().__init__(config)
        self.weight = nn.Parameter(torch.zeros(T5_BUCKETS, config.num_heads))
        distances = LEAST_DISTANCES[T5_BUCKETS if config.causal else T5_BUCKETS // 2]
        self.register_buffer("least_distances", torch.tensor(distances), persistent=False)

    def of_offsets(self, offsets: Tensor) -> Tensor:
        return self.weight[self.buckets(offsets)].T

    def buckets(self, offsets: Tensor) -> Tensor:
        """Return the bucket of each offset, query position minus key position, int64."""
        distances = offsets.clamp_min(0) if self.config.causal else offsets.abs()
        buckets = torch.bucketize(distances, self.least_distances, right=True)
        if not self.config.causal:
            buckets = buckets + T5_BUCKETS // 2 * (offsets < 0)
        return buckets


class JoinedPositions(PositionScheme):
    """Sum of several schemes: their vectors are added."""

    def __init__(self, schemes: Sequence[PositionScheme]) -> None:
        super().__init__(schemes[0].config)
        kinds = [type(scheme) for scheme in schemes]
        if sum(kind.bias is not PositionScheme.bias for kind in kinds) > 1:
            raise ConfigError(
                "only one of several position schemes can add a bias to the scores; keep one"
            )
        if sum(kind.rotation is not PositionScheme.rotation for kind in kinds) > 1:
            raise ConfigError(
                "only one of several position schemes can rotate queries and keys; keep one"
            )
        self.schemes = cast(Sequence[PositionScheme], nn.ModuleList(schemes))
        self.needs_scores = any(scheme.needs_scores for scheme in schemes)
        limits = [scheme.max_positions for scheme in schemes]
        self.max_positions = min((n for n in limits if n is not None), default=None)

    def embed(self, num_positions: int, start: int = 0) -> Tensor | None:
        vectors = [scheme.embed(num_positions, start) for scheme in self.schemes]
        added = [vector for vector in vectors if vector is not None]
        return torch.stack(added).sum(0) if added else None

    def rotation(self, positions: Tensor) -> Rotation | None:
        return next(filter(None, (scheme.rotation(positions) for scheme in self.schemes)), None)

    def bias(self, visibility: Visibility) -> ScoreBias | None:
        return next(filter(None, (scheme.bias(visibility) for scheme in self.schemes)), None)


def kinds_of(names: str) -> list[type[PositionScheme]]:
    """Return the schemes of a text such as ``sinusoidal+t5``."""
    return [position_schemes.get(name) for name in names.split("+")]


def build_positions(names: str, config: PositionConfig) -> PositionScheme:
    """Return the scheme of a name, or of a text such as ``sinusoidal+t5``."""
    schemes = [kind(config) for kind in kinds_of(names)]
    return schemes[0] if len(schemes) == 1 else JoinedPositions(schemes)

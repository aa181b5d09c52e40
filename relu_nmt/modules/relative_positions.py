"""Position schemes inside self-attention: rotary, ALiBi and T5's relative buckets."""

import math
from bisect import bisect_left

import torch
from torch import Tensor, nn

from relu_nmt.attention.bias import ScoreBias
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from relu_nmt.modules import position_schemes
from relu_nmt.modules.positions import PositionConfig, PositionScheme, Rotation

ROTARY_BASE = 10000.0
T5_BUCKETS = 32
T5_MAX_DISTANCE = 128


@position_schemes.register("rotary")
class RotaryPositions(PositionScheme):
    """Rotation of queries and keys by angles that grow with the position.

    Channels c and c + d/2 of a head of width d form a plane, rotated by the position times
    10000^(-2c/d); so a score depends on the distance of query and key only. The rotation follows
    the mechanism's own maps, such as a norm.

    Raises:
        ConfigError: heads of odd width.

    Reference: Su et al. 2021, "RoFormer", Eq. 15 and 34 (halves instead of neighbouring channels,
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
        """See :meth:`PositionScheme.rotation`."""
        exact = torch.promote_types(self.rates.dtype, torch.float32)
        return Rotation.of_angles(positions[..., None].to(exact) * self.rates.to(exact))


class DistanceBias(PositionScheme):
    """Base class of biases that depend on the distance from key to query alone."""

    needs_scores = True

    def of_offsets(self, offsets: Tensor) -> Tensor:
        """Return the bias [H, R] of offsets [R], query position minus key position."""
        raise TypeError(f"{type(self).__name__} must define of_offsets")

    def bias(self, visibility: Visibility) -> ScoreBias:
        """See :meth:`PositionScheme.bias`."""
        # A table for all offsets between two tokens of the longest sequence.
        longest = visibility.longest
        queries, keys = visibility.query_positions(), visibility.key_positions()
        offsets = torch.arange(1 - longest, longest, device=queries.device)
        return ScoreBias(self.of_offsets(offsets), queries, keys, longest - 1)


@position_schemes.register("alibi")
class AlibiPositions(DistanceBias):
    """A bias that falls linearly with the distance, with a fixed slope for each head.

    The slopes are 2^(-8h/H) for h = 1 .. H. If H is no power of two, they are those of the largest
    power of two below it, then every second one of twice that. Where tokens see both sides, the
    slope is the same on both.

    Reference: Press et al. 2022, "Train short, test long", section 3; both sides as in the authors'
    remarks on encoders.
    """

    slopes: Tensor

    def __init__(self, config: PositionConfig) -> None:
        super().__init__(config)
        # Slopes of the power of two, then every second one of twice that.
        power = 1 << (config.num_heads.bit_length() - 1)
        slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
        slopes += [2 ** (-4 * h / power) for h in range(1, 2 * (config.num_heads - power), 2)]
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)

    def of_offsets(self, offsets: Tensor) -> Tensor:
        """See :meth:`DistanceBias.of_offsets`."""
        return -self.slopes[:, None] * offsets.abs()


@position_schemes.register("t5")
class T5Positions(DistanceBias):
    """A learned bias for each head and bucket of distances, the same in all layers.

    Half of the 32 buckets hold one small distance each, the others ranges that widen
    logarithmically up to 128 tokens; the last one also holds all larger distances. Where tokens see
    both sides, half of the buckets are for keys behind the query.

    Reference: Raffel et al. 2020, "Exploring the limits of transfer learning", section 2.1.
    Deviation: the table starts at zero, not at random, so that training starts without a bias.
    """

    least_distances: Tensor
    """The least distance of each bucket of a direction, without the first bucket."""

    def __init__(self, config: PositionConfig) -> None:
        super().__init__(config)
        self.weight = nn.Parameter(torch.zeros(T5_BUCKETS, config.num_heads))
        num_buckets = T5_BUCKETS if config.causal else T5_BUCKETS // 2  # of one direction
        self.register_buffer("least_distances", _least_distances(num_buckets), persistent=False)

    def of_offsets(self, offsets: Tensor) -> Tensor:
        """See :meth:`DistanceBias.of_offsets`."""
        return self.weight[self.buckets(offsets)].T

    def buckets(self, offsets: Tensor) -> Tensor:
        """Return the bucket of each offset, query position minus key position; int64."""
        distances = offsets.clamp_min(0) if self.config.causal else offsets.abs()
        buckets = torch.bucketize(distances, self.least_distances, right=True)
        return buckets if self.config.causal else buckets + T5_BUCKETS // 2 * (offsets < 0)


def _least_distances(num_buckets: int) -> Tensor:
    """Return the least distance of each bucket but the first, int64.

    The ranges begin at e (M / e)^(s / r), s = 1 .. r - 1, with e single distances, r ranges and M
    the largest distance. Powers of whole numbers are exact; logarithms would round some borders.
    """
    # Give half of the buckets to single distances.
    exact = num_buckets // 2
    ranges = num_buckets - exact
    powers = [distance**ranges for distance in range(T5_MAX_DISTANCE)]
    # Find each border as the least distance whose power reaches it.
    starts = [
        bisect_left(powers, T5_MAX_DISTANCE**step * exact ** (ranges - step))
        for step in range(1, ranges)
    ]
    return torch.tensor([*range(1, exact + 1), *starts])

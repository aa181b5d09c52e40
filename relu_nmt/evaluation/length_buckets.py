"""Segments by the length of their reference."""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from relu_nmt.errors import ConfigError

DEFAULT_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""For sentences and documents alike; buckets without a segment are left out."""


@dataclass(frozen=True)
class LengthBucket:
    """The segments whose references are of similar length.

    Args:
        shortest: fewest reference tokens that belong here.
        longest: most of them; None for no limit.
        members: numbers of the segments, at least one.
    """

    shortest: int
    longest: int | None
    members: tuple[int, ...]

    def __str__(self) -> str:
        if self.longest is None:
            return f">{self.shortest - 1}"
        return f"{self.shortest}-{self.longest}"


def length_buckets(lengths: Sequence[int], edges: Sequence[int]) -> list[LengthBucket]:
    """Return the buckets that hold a segment, the shortest first.

    Args:
        lengths: reference tokens of each segment.
        edges: longest of each bucket but the last, rising; what is longer goes to a last bucket.

    Raises:
        ConfigError: the edges do not rise from at least 1.

    Example:
        >>> [(str(b), b.members) for b in length_buckets([3, 20, 16, 900], (16, 32))]
        [('0-16', (0, 2)), ('17-32', (1,)), ('>32', (3,))]
    """
    if not edges or edges[0] < 1 or any(a >= b for a, b in itertools.pairwise(edges)):
        raise ConfigError(
            f"length buckets {','.join(map(str, edges))}: expected rising numbers of tokens, "
            "as in 128,256,512"
        )
    members: list[list[int]] = [[] for _ in range(len(edges) + 1)]
    for number, length in enumerate(lengths):
        members[bisect.bisect_left(edges, length)].append(number)
    shortest = [0, *(edge + 1 for edge in edges)]
    return [
        LengthBucket(low, high, tuple(inside))
        for low, high, inside in zip(shortest, [*edges, None], members, strict=True)
        if inside
    ]

"""Scores by the length of segments, and by the position of sentences.

Reference: Zhang et al., EMNLP 2023, and Peng et al. 2024, "Investigating length issues in
document-level machine translation": quality falls with the length of what is translated at once,
and with the position of a sentence in it.
"""

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.bleu import MetricConfig, Score

DEFAULT_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Longest reference of each length bucket in tokens, for sentences and documents alike."""
DEFAULT_POSITIONS = (1, 4, 9, 19)
"""Last position of each bucket of sentences; so the first sentence has one of its own."""

Buckets = dict[str, list[int]]
"""Numbers of segments by the name of their bucket, ``17-32``."""


class BucketScore(NamedTuple):
    """The score of a bucket.

    Args:
        bucket: its name.
        segments: how many it has.
        score: of these; None if there are none.
    """

    bucket: str
    segments: int
    score: Score | None


def length_buckets(lengths: Sequence[int], edges: Sequence[int]) -> Buckets:
    """Return the segments of each range of lengths that has any, the shortest first.

    Args:
        lengths: reference tokens of each segment.
        edges: longest of each bucket but the last, rising; what is longer goes to a last bucket.

    Raises:
        ConfigError: the edges do not rise from at least 1.

    Example:
        >>> length_buckets([3, 20, 16, 900], (16, 32))
        {'0-16': [0, 2], '17-32': [1], '>32': [3]}
    """
    _check(edges, "length buckets", "tokens, as in 128,256,512")
    return {name: own for name, own in _divided(lengths, edges, 0).items() if own}


def position_buckets(positions: Sequence[int], edges: Sequence[int]) -> Buckets:
    """Return the sentences of each range of positions, empty ranges too, the first ones first.

    Args:
        positions: of each sentence, from 1.
        edges: last position of each bucket but the last, rising.

    Raises:
        ConfigError: the edges do not rise from at least 1.

    Example:
        >>> position_buckets([1, 2, 3, 1, 2], (1, 4))
        {'1': [0, 3], '2-4': [1, 2, 4], '>4': []}
    """
    _check(edges, "position buckets", "sentences, as in 1,4,9,19")
    return _divided(positions, edges, 1)


def _check(edges: Sequence[int], what: str, unit: str) -> None:
    if not edges or edges[0] < 1 or any(a >= b for a, b in itertools.pairwise(edges)):
        shown = ",".join(map(str, edges))
        raise ConfigError(f"{what} {shown}: expected rising numbers of {unit}")


def _divided(values: Sequence[int], edges: Sequence[int], least: int) -> Buckets:
    lowest = [least, *(edge + 1 for edge in edges)]
    ranges = zip(lowest, edges, strict=False)
    names = [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
    buckets: Buckets = {name: [] for name in (*names, f">{edges[-1]}")}
    members = list(buckets.values())
    for number, value in enumerate(values):
        members[bisect.bisect_left(edges, value)].append(number)
    return buckets


def bucket_scores(
    metric: MetricConfig,
    buckets: Buckets,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
) -> list[BucketScore]:
    """Return the corpus score of the segments of each bucket.

    Args:
        metric: metric and its settings.
        buckets: of the segments.
        hypotheses: one segment each.
        references: one or more lists, each as long as ``hypotheses``.
    """
    found = []
    for bucket, members in buckets.items():
        own, *others = ([lines[i] for i in members] for lines in (hypotheses, *references))
        score = metric.score(own, others) if members else None
        found.append(BucketScore(bucket, len(members), score))
    return found

"""Sentence alignment by length.

Reference: Gale and Church, "A Program for Aligning Sentences in Bilingual Corpora", Computational
Linguistics 19 (1993), sections 3.1 to 3.3, with its parameters. An ideograph or a syllable is as
long as several letters.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

from prep_tools.letters import width

MEAN_RATIO = 1.0
VARIANCE_PER_CHARACTER = 6.8
# Probabilities of the numbers of source and target sentences that correspond.
_MATCHES = {
    (1, 1): 0.89,
    (1, 0): 0.0099 / 2,
    (0, 1): 0.0099 / 2,
    (2, 1): 0.089 / 2,
    (1, 2): 0.089 / 2,
    (2, 2): 0.011,
}
_IMPOSSIBLE = 1e9


def match_cost(source_length: int, target_length: int) -> float:
    """Return -log of the probability that texts of these lengths, in letters, are translations.

    The difference of the lengths, standardized, is taken as normally distributed.
    """
    if source_length == 0 and target_length == 0:
        return 0.0
    mean = (source_length + target_length / MEAN_RATIO) / 2
    deviation = (target_length - source_length * MEAN_RATIO) / math.sqrt(
        mean * VARIANCE_PER_CHARACTER
    )
    # erfc(|d| / sqrt(2)) is the probability of a difference at least as large, on either side.
    probability = math.erfc(abs(deviation) / math.sqrt(2))
    return -math.log(probability) if probability > 0 else _IMPOSSIBLE


def align(
    sources: Sequence[str], targets: Sequence[str]
) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Return the groups of sentences that translate each other, in order.

    Args:
        sources: sentences of one side.
        targets: sentences of the other side.

    Returns:
        Groups of 0 to 2 sentences a side. Joined in order they give both sides again.

    Example:
        >>> align(["Ja.", "Ein langer Satz über das Wetter."], ["Yes.", "A long one", "on rain."])
        [(['Ja.'], ['Yes.']), (['Ein langer Satz über das Wetter.'], ['A long one', 'on rain.'])]
    """
    rows = len(sources)
    columns = len(targets)
    source_ends = [0, *accumulate(map(width, sources))]
    target_ends = [0, *accumulate(map(width, targets))]
    cost = [[math.inf] * (columns + 1) for _ in range(rows + 1)]
    step: list[list[tuple[int, int]]] = [[(0, 0)] * (columns + 1) for _ in range(rows + 1)]
    cost[0][0] = 0.0
    for row in range(rows + 1):
        for column in range(columns + 1):
            for (down, right), prior in _MATCHES.items():
                if down > row or right > column:
                    continue
                total = (
                    cost[row - down][column - right]
                    - math.log(prior)
                    + match_cost(
                        source_ends[row] - source_ends[row - down],
                        target_ends[column] - target_ends[column - right],
                    )
                )
                if total < cost[row][column]:
                    cost[row][column] = total
                    step[row][column] = (down, right)
    groups = []
    row = rows
    column = columns
    while row or column:
        down, right = step[row][column]
        groups.append((sources[row - down : row], targets[column - right : column]))
        row = row - down
        column = column - right
    return groups[::-1]

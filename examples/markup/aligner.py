"""Word alignments of a parallel text by IBM model 1 with a preference for the diagonal.

The model of fast_align (Dyer et al. 2013) with a fixed tension, in both directions. The links of
both directions are kept.
"""

from collections.abc import Sequence

import numpy as np

ROUNDS = 5
TENSION = 4.0
"""Strength of the preference for links of tokens at the same share of their sentences."""
NULL_SHARE = 0.08
"""Probability that a token has no link."""


def symmetric_links(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> list[list[tuple[int, int]]]:
    """Return the links (source token, target token) of each pair of sentences of ids [T]."""
    forward = best_sources(sources, targets)
    backward = best_sources(targets, sources)
    links = []
    for chosen, chosen_back in zip(forward, backward, strict=True):
        pairs = []
        for target, source in enumerate(chosen.tolist()):
            if source >= 0 and chosen_back[source] == target:
                pairs.append((source, target))
        links.append(pairs)
    return links


def best_sources(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the likeliest source token of each target token, int64 [T] per pair. -1: none."""
    source_sizes = np.array(list(map(len, sources)))
    target_sizes = np.array(list(map(len, targets)))
    # A cell is a source and a target token of a pair of sentences. A row is a target token.
    row_sizes = np.repeat(source_sizes, target_sizes)
    row_begins = np.cumsum(row_sizes) - row_sizes
    rows = np.repeat(np.arange(len(row_sizes)), row_sizes)
    columns = np.arange(len(rows)) - row_begins[rows]
    first_sources = np.repeat(np.cumsum(source_sizes) - source_sizes, target_sizes)
    source_ids = np.concatenate(sources)[first_sources[rows] + columns]
    target_ids = np.concatenate(targets)[rows]
    places = _places(target_sizes) / np.repeat(target_sizes, target_sizes)
    distances = np.abs((columns + 0.5) / row_sizes[rows] - places[rows])
    prior = np.exp(-TENSION * distances)
    prior *= (1 - NULL_SHARE) / np.bincount(rows, prior, len(row_sizes))[rows]
    # Number the pairs of symbols, and learn their probabilities p(target | source).
    vocabulary = int(max(source_ids.max(), target_ids.max())) + 1
    symbol_pairs, numbers = np.unique(source_ids * vocabulary + target_ids, return_inverse=True)
    null = NULL_SHARE * np.bincount(target_ids, minlength=vocabulary)[target_ids] / len(target_ids)
    table = np.full(len(symbol_pairs), 1.0 / vocabulary)
    for _ in range(ROUNDS):
        scores = prior * table[numbers]
        sums = np.bincount(rows, scores, len(row_sizes)) + null[row_begins]
        counts = np.bincount(numbers, scores / sums[rows], len(symbol_pairs))
        totals = np.bincount(symbol_pairs // vocabulary, counts, vocabulary)
        table = counts / totals[symbol_pairs // vocabulary]
    scores = prior * table[numbers]
    return _best_columns(scores, row_begins, null[row_begins], target_sizes)


def _places(sizes: np.ndarray) -> np.ndarray:
    """Return the middle of each token, in tokens from the beginning of its sentence."""
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.arange(int(sizes.sum())) - begins + 0.5


def _best_columns(
    scores: np.ndarray, row_begins: np.ndarray, null: np.ndarray, sizes: np.ndarray
) -> list[np.ndarray]:
    """Return the column with the highest score of each row, sentence by sentence."""
    highest = np.maximum.reduceat(scores, row_begins)
    row_sizes = np.diff(np.append(row_begins, len(scores)))
    is_best = scores == np.repeat(highest, row_sizes)
    cells = np.flatnonzero(is_best)
    rows = np.searchsorted(row_begins, cells, side="right") - 1
    best = np.zeros(len(row_begins), dtype=np.int64)
    # Write in reverse order, so that the first of several equal columns stays.
    best[rows[::-1]] = cells[::-1] - row_begins[rows[::-1]]
    best[highest <= null] = -1
    return np.split(best, np.cumsum(sizes)[:-1])

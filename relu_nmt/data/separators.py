"""Sentences of a group as token ids: joined, and ended by separators."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from relu_nmt.data.dictionary import Dictionary


class Separators(NamedTuple):
    """Ids of the symbols that end the sentences of a group, in source and target.

    ``alone``: they also end a sentence that is its own group. A document model that began as a
    sentence model reads and writes such sentences without them, as before.
    """

    source: int
    target: int
    alone: bool = True

    @property
    def num_lacking(self) -> int:
        """Number of separators that a sentence alone lacks, 0 or 1."""
        return int(not self.alone)

    def of_group(self, num_sentences: int) -> "Separators | None":
        """Return the separators of a group. None: its only sentence has none."""
        return self if self.alone or num_sentences > 1 else None

    def num_expected(self, source: np.ndarray) -> int:
        """Return the number of separators in a translation of the ids [S] of a source."""
        return max(int(self.alone), int(np.count_nonzero(source == self.source)))


def join_sentences(sentences: Sequence[np.ndarray]) -> np.ndarray:
    """Join the token ids of sentences to one, int64 [n]. Only the last ``</s>`` stays.

    Example:
        >>> join_sentences([np.array([4, 5, 2]), np.array([2]), np.array([6, 2])]).tolist()
        [4, 5, 6, 2]
    """
    return np.concatenate([*(ids[:-1] for ids in sentences), [Dictionary.eos_index]])


def ended(ids: np.ndarray, separator: int) -> np.ndarray:
    """Return the ids of a sentence with the separator before ``</s>``, if it lacks one."""
    if ids[-2:-1].tolist() == [separator]:
        return ids
    return np.append(ids[:-1], (separator, Dictionary.eos_index))


def sentence_slices(tokens: Sequence[Any] | np.ndarray, separator: Any) -> list[slice]:
    """Return the slice of each sentence, without separators. The last sentence may lack one.

    Example:
        >>> words = "a b <sep> <sep> c".split()
        >>> [words[part] for part in sentence_slices(words, "<sep>")]
        [['a', 'b'], [], ['c']]
    """
    slices = []
    begin = 0
    for index, token in enumerate(tokens):
        if token == separator:
            slices.append(slice(begin, index))
            begin = index + 1
    if begin < len(tokens):
        slices.append(slice(begin, len(tokens)))
    return slices

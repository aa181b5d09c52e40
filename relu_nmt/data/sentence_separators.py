"""Where sentences stand between the separators that end them: the one rule of how to cut."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def sentence_slices(tokens: Sequence[Any] | np.ndarray, separator: Any) -> list[slice]:
    """Return where the sentences stand, without their separators.

    What follows the last separator is a sentence only if it has tokens.

    Args:
        tokens: words or token numbers [T], without ``</s>``.
        separator: the token that ends each sentence.

    Example:
        >>> words = "a b <sep> <sep> c".split()
        >>> [words[own] for own in sentence_slices(words, "<sep>")]
        [['a', 'b'], [], ['c']]
    """
    ends = [place for place, token in enumerate(tokens) if token == separator]
    begins = [0, *(end + 1 for end in ends)]
    if begins[-1] < len(tokens):
        ends.append(len(tokens))
    return [slice(begin, end) for begin, end in zip(begins, ends, strict=False)]

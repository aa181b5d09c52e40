"""The language of a text, guessed from the source dictionaries of several models.

A model's dictionary counts the symbols of its training text. A text is likely in a language if it
consists of few symbols that are frequent in the dictionary of this language. Two languages with the
same dictionary cannot be told apart.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from relu_nmt.translation.task import TranslationTask

MOST_CHARACTERS = 1000
"""Most characters of a text that are read."""
UNKNOWN_CHARACTER = -3.0
"""Log likelihood of each character of an unknown word, beside the likelihood of a rare word."""
SHARPNESS = 0.5
"""Weight of the log likelihoods, since the symbols of a text are not independent."""


class SourceLikelihood:
    """The log likelihood of texts by the frequencies of symbols on a task's source side."""

    def __init__(self, task: TranslationTask) -> None:
        self._text = replace(task.source_text, sentence_separator=None, first_symbol=None)
        self._dictionary = task.source_dictionary
        counts = np.array(self._dictionary.counts, dtype=np.float64) + 0.5
        self._log_shares = np.log(counts / counts.sum())

    def __call__(self, text: str) -> float:
        """Return the log likelihood of the beginning of a text."""
        tokens = self._text.encode(" ".join(text[:MOST_CHARACTERS].split()))
        total = 0.0
        for token in tokens:
            index = self._dictionary.index(token)
            total += float(self._log_shares[index])
            if index == self._dictionary.unk_index:
                total += UNKNOWN_CHARACTER * len(token)
        return total


def confidences(likelihoods: Mapping[str, float]) -> dict[str, float]:
    """Return the confidence in each language from its log likelihood, the highest first.

    Example:
        >>> confidences({"de": -40.0, "en": -40.0})
        {'de': 0.5, 'en': 0.5}
    """
    languages = sorted(likelihoods, key=lambda language: -likelihoods[language])
    scores = SHARPNESS * np.array([likelihoods[language] for language in languages])
    weights = np.exp(scores - scores[0])
    shares = weights / weights.sum()
    return dict(zip(languages, shares.tolist(), strict=True))

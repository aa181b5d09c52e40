"""From the translation of several sentences to that of each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from relu_nmt.decoding.hypotheses import Hypothesis
from relu_nmt.decoding.length_penalty import LengthPenalty
from relu_nmt.decoding.sentences import Translation


class Line(NamedTuple):
    """A line of a translated document.

    Args:
        text: raw text.
        tokens: the same as dictionary tokens.
    """

    text: str
    tokens: list[str]


def without_prefix(
    translation: Translation,
    size: int,
    penalty: LengthPenalty,
    decode: Callable[[Sequence[str]], str],
) -> Translation:
    """Return what follows the first ``size`` tokens of a translation, scored as if it were all."""
    if not size:
        return translation
    whole = translation.hypothesis
    scores = whole.positional_scores[size:]
    score = float(scores.sum(dtype=np.float64)) / penalty(len(scores))
    alignment = None if whole.alignment is None else whole.alignment[size:]
    hypothesis = Hypothesis(whole.tokens[size:], score, scores, alignment)
    tokens = translation.tokens[size:]
    return replace(
        translation, text=decode(tokens), tokens=tokens, score=score, hypothesis=hypothesis
    )

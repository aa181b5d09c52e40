"""Contrastive tests: sentences that need their context, with right and wrong translations.

A file of them has one JSON object a line (``test.contrasts.jsonl`` of the grammar corpus):

======================  =======================================================================
``source_language``     language of the sentence; records of another one than the model's are
                        left out and counted
``source``              the sentence
``reference``           its right translation
``contrasts``           wrong translations, one or more
``source_context``      the sentences before it, the nearest last
``reference_context``   their translations, as many
``phenomenon``          what has to be known, the category of the result (may be absent)
``distance``            how many sentences back that is said (may be absent)
======================  =======================================================================
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import read_lines


@dataclass(frozen=True)
class Contrast:
    """A sentence with its right and its wrong translations.

    Args:
        source_language: language of the sentence.
        source: the sentence.
        reference: the right translation.
        contrasts: the wrong ones, at least one.
        source_context: the sentences before it, the nearest last.
        reference_context: their translations.
        phenomenon: what has to be known from the context; "" if the file does not say.
        distance: how many sentences back it is said; None if the file does not say.
    """

    source_language: str
    source: str
    reference: str
    contrasts: tuple[str, ...]
    source_context: tuple[str, ...] = ()
    reference_context: tuple[str, ...] = ()
    phenomenon: str = ""
    distance: int | None = None

    @property
    def chance(self) -> float:
        """Probability that a blind choice is right."""
        return 1 / (1 + len(self.contrasts))


def read_contrasts(path: str | os.PathLike[str]) -> list[Contrast]:
    """Read a file of contrasts.

    Raises:
        DataError: it cannot be read, or a line is not such a record; the message gives the line.
    """
    found = []
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            found.append(_parse(line, f"{path}:{number}"))
    if not found:
        raise DataError(f"{path}: no contrasts in it; expected a JSON object on each line")
    return found


def _parse(line: str, place: str) -> Contrast:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place}: not JSON; expected one object a line, as in "
            "test.contrasts.jsonl of data_prep/grammar_corpus.py"
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"{place}: expected a JSON object, found {line[:40]!r}")
    contrast = Contrast(
        source_language=_text(record, "source_language", place),
        source=_text(record, "source", place),
        reference=_text(record, "reference", place),
        contrasts=_texts(record, "contrasts", place),
        source_context=_texts(record, "source_context", place),
        reference_context=_texts(record, "reference_context", place),
        phenomenon=_text(record, "phenomenon", place, ""),
        distance=_distance(record, place),
    )
    if not contrast.contrasts:
        raise DataError(f"{place}: 'contrasts' is empty; give at least one wrong translation")
    if contrast.reference in contrast.contrasts:
        raise DataError(f"{place}: the reference is one of the contrasts, which are all wrong")
    if len(contrast.source_context) != len(contrast.reference_context):
        raise DataError(
            f"{place}: {len(contrast.source_context)} sentences in 'source_context', but "
            f"{len(contrast.reference_context)} in 'reference_context'; they are translations of "
            "each other"
        )
    return contrast


def _text(record: dict[str, Any], key: str, place: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if not isinstance(value, str):
        raise DataError(f"{place}: expected a text as '{key}'")
    return value


def _texts(record: dict[str, Any], key: str, place: str) -> tuple[str, ...]:
    value = record.get(key)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(f"{place}: expected a list of texts as '{key}'")
    return tuple(value)


def _distance(record: dict[str, Any], place: str) -> int | None:
    value = record.get("distance")
    if value is not None and (type(value) is not int or value < 0):
        raise DataError(f"{place}: expected a number of sentences as 'distance'")
    return value


@dataclass(frozen=True)
class Accuracy:
    """How often the right translation was preferred.

    Args:
        category: of the contrasts: ``all``, a phenomenon, or a distance.
        num_right: contrasts whose reference scored above every wrong translation.
        num_contrasts: of the category, at least one.
        chance: accuracy of a blind choice, 0 to 100.
    """

    category: str
    num_right: int
    num_contrasts: int
    chance: float

    @property
    def value(self) -> float:
        """0 to 100."""
        return 100 * self.num_right / self.num_contrasts

    def __str__(self) -> str:
        return (
            f"{self.value:.2f} ({self.num_right}/{self.num_contrasts}) chance = {self.chance:.2f}"
        )


def accuracies(contrasts: Sequence[Contrast], is_right: Sequence[bool]) -> list[Accuracy]:
    """Return the accuracy over all contrasts, by phenomenon, and by distance.

    Args:
        contrasts: at least one.
        is_right: for each, whether the right translation was preferred.

    Example:
        >>> one = Contrast("en", "It is here.", "Er ist hier.", ("Es ist hier.",))
        >>> print(*accuracies([one, one], [True, False]))
        50.00 (1/2) chance = 50.00
    """

    def of(category: str, belong: Sequence[bool]) -> Accuracy:
        chosen = [
            (contrast.chance, right)
            for contrast, right, belongs in zip(contrasts, is_right, belong, strict=True)
            if belongs
        ]
        chance = 100 * sum(chance for chance, _ in chosen) / len(chosen)
        return Accuracy(category, sum(right for _, right in chosen), len(chosen), chance)

    result = [of("all", [True] * len(contrasts))]
    for phenomenon in sorted({c.phenomenon for c in contrasts if c.phenomenon}):
        result.append(of(phenomenon, [c.phenomenon == phenomenon for c in contrasts]))
    for distance in sorted({c.distance for c in contrasts if c.distance is not None}):
        result.append(of(f"distance {distance}", [c.distance == distance for c in contrasts]))
    return result

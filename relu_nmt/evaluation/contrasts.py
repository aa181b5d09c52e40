"""Contrastive tests, which ask if a model prefers the right one of several translations.

The file of a test has one JSON object a line, a :class:`Contrast` (``test.contrasts.jsonl`` of the
grammar corpus). All lists of texts but ``contrasts`` may be empty. ``phenomenon`` and ``distance``
may be absent.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from relu_nmt.config.stored import checked, parse_json
from relu_nmt.data.separators import ended, join_sentences
from relu_nmt.errors import ConfigError, DataError, counted, reporting
from relu_nmt.io.text_lines import read_lines

if TYPE_CHECKING:
    from relu_nmt.translation.search.generator import Generator
    from relu_nmt.translation.task import TranslationTask

FORM = {
    **dict.fromkeys(("source_language", "source", "reference", "phenomenon?"), str),
    **dict.fromkeys(("contrasts", "source_context", "reference_context"), tuple[str, ...]),
    "distance?": int | None,
}
"""The form of an object, see :func:`checked`. Further entries are ignored."""


@dataclass(frozen=True)
class Contrast:
    """A sentence with its right and its wrong translations."""

    source_language: str  # the test leaves out sentences in another language than the model's
    source: str  # the sentence
    reference: str  # the right translation
    contrasts: tuple[str, ...]  # the wrong translations, at least one
    source_context: tuple[str, ...] = ()  # the sentences before, the nearest last
    reference_context: tuple[str, ...] = ()  # their translations
    phenomenon: str = ""  # kind of information that the context gives, a category of the result
    distance: int | None = None  # sentences back to this information, also a category


def read_contrasts(path: str | os.PathLike[str]) -> list[Contrast]:
    """Read a file of contrasts."""
    contrasts = []
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            contrasts.append(_parse(line, f"{path}:{number}"))
    if not contrasts:
        raise DataError(f"{path}: no contrasts in it; expected a JSON object on each line")
    return contrasts


def _parse(line: str, origin: str) -> Contrast:
    advice = "expected a JSON object on each line, as in test.contrasts.jsonl of "
    advice += "data_prep/grammar_corpus.py"
    with reporting(origin, caught=ValueError, advice=advice):
        record = checked(FORM, parse_json(line), "contrast")
    known = {field.name for field in fields(Contrast)}
    contrast = Contrast(**{name: value for name, value in record.items() if name in known})
    if not contrast.contrasts:
        raise DataError(f"{origin}: 'contrasts' is empty; give at least one wrong translation")
    if contrast.reference in contrast.contrasts:
        raise DataError(f"{origin}: the reference is one of the contrasts, which are all wrong")
    if len(contrast.source_context) != len(contrast.reference_context):
        raise DataError(
            f"{origin}: {counted(len(contrast.source_context), 'sentence')} in 'source_context', "
            f"but {len(contrast.reference_context)} in 'reference_context'; they are translations "
            "of each other"
        )
    return contrast


def contrast_scores(
    task: "TranslationTask",
    generator: "Generator",
    contrasts: Sequence[Contrast],
    context: int | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> list[np.ndarray]:
    """Return the log-probabilities (nats) of the translations, float64, the right one first.

    Context and sentence are one source, joined like groups of sentences in training. The target
    begins with the translations of the ``context`` nearest sentences, all by default. The score is
    the total log-probability of the tokens after these, with ``</s>``. ``generator`` scores
    references.
    """
    from relu_nmt.translation.search.translations import SourceSentence

    sources: list[SourceSentence] = []
    prefix_lengths: list[int] = []
    for contrast in contrasts:
        # Join the sentence with the nearest sentences before it. The target's context has no </s>.
        first = 0
        if context is not None:
            first = max(0, len(contrast.source_context) - context)
        group = [*contrast.source_context[first:], contrast.source]
        sentences = [task.encode_source(text) for text in group]
        translations = [task.encode_target(text) for text in contrast.reference_context[first:]]
        separators = task.separators
        if separators is not None:
            separators = separators.of_group(sum(len(ids) > 1 for ids in sentences))
        source = _joined(sentences, separators and separators.source)
        prefix = _joined(translations, separators and separators.target)[:-1]
        # Make a pair for each translation, the right one first.
        for text in (contrast.reference, *contrast.contrasts):
            ids = _joined([task.encode_target(text)], separators and separators.target)
            target = np.concatenate([prefix, ids])
            sources.append(SourceSentence(source, reference=target))
            prefix_lengths.append(len(prefix))
    results = generator.translate(sources, on_progress=on_progress)
    totals = []
    for hypotheses, length in zip(results, prefix_lengths, strict=True):
        totals.append(hypotheses[0].positional_scores[length:].sum(dtype=np.float64))
    if not np.isfinite(totals).all():
        raise ConfigError("the model's scores are not finite (training diverged)")
    scores: list[np.ndarray] = []
    first = 0
    for contrast in contrasts:
        end = first + 1 + len(contrast.contrasts)
        scores.append(np.array(totals[first:end]))
        first = end
    return scores


def _joined(sentences: Sequence[np.ndarray], separator: int | None) -> np.ndarray:
    """Join sentences to one text, in which the separator ends each sentence that is not blank."""
    if separator is not None:
        sentences = [ended(ids, separator) if len(ids) > 1 else ids for ids in sentences]
    return join_sentences(sentences)


def accuracies(contrasts: Sequence[Contrast], is_right: Sequence[bool]) -> list[dict[str, Any]]:
    """Return the share of right choices, for all contrasts, by phenomenon and by distance.

    Returns:
        ``category``, ``score`` (0 to 100), the numbers ``right`` of ``contrasts``, and ``chance``,
        the expected score of a random choice.

    Example:
        >>> contrast = Contrast("en", "It is here.", "Er ist hier.", ("Es ist hier.",))
        >>> accuracies([contrast, contrast], [True, False])
        [{'category': 'all', 'score': 50.0, 'right': 1, 'contrasts': 2, 'chance': 50.0}]
    """
    # Collect the results of each category: all, then phenomena, then distances, each sorted.
    categories = defaultdict(list)
    for contrast, right in zip(contrasts, is_right, strict=True):
        keys = [(0, 0, "all")]
        if contrast.phenomenon:
            keys.append((1, 0, contrast.phenomenon))
        if contrast.distance is not None:
            keys.append((2, contrast.distance, f"distance {contrast.distance}"))
        chance = 1 / (1 + len(contrast.contrasts))
        for key in keys:
            categories[key].append((right, chance))
    rows: list[dict[str, Any]] = []
    for key in sorted(categories):
        rights, chances = zip(*categories[key], strict=True)
        row = {
            "category": key[-1],
            "score": 100 * sum(rights) / len(rights),
            "right": sum(rights),
            "contrasts": len(rights),
            # Contrasts may have different numbers of choices.
            "chance": 100 * sum(chances) / len(rights),
        }
        rows.append(row)
    return rows

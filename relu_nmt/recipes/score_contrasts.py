"""Contrastive tests: does a model prefer the right of several translations?

The file has one JSON object a line, a :class:`Contrast` (``test.contrasts.jsonl`` of the grammar
corpus): a sentence that needs its context, with right and wrong translations. All lists of texts
but ``contrasts`` may be empty; ``phenomenon`` and ``distance`` may be absent.
"""

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import relu_nmt
from relu_nmt.cli.score import ScoreSettings
from relu_nmt.data.documents import join_sentences
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.text_lines import read_lines
from relu_nmt.io.work import progress_bar
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import SourceSentence
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator

TEXTS = ("source_language", "source", "reference", "phenomenon")
LISTS = ("contrasts", "source_context", "reference_context")


@dataclass(frozen=True)
class Contrast:
    """A sentence with its right and its wrong translations.

    Args:
        source_language: language of the sentence; the test leaves out sentences in another
            language than the model's.
        source: the sentence.
        reference: the right translation.
        contrasts: the wrong translations, at least one.
        source_context: the sentences before, the nearest last.
        reference_context: their translations.
        phenomenon: kind of information that the context gives, a category of the result.
        distance: number of sentences back to this information, also a category.
    """

    source_language: str
    source: str
    reference: str
    contrasts: tuple[str, ...]
    source_context: tuple[str, ...] = ()
    reference_context: tuple[str, ...] = ()
    phenomenon: str = ""
    distance: int | None = None


def read_contrasts(path: str | os.PathLike[str]) -> list[Contrast]:
    """Read a file of contrasts."""
    lines = enumerate(read_lines(path), 1)
    found = [_parse(line, f"{path}:{number}") for number, line in lines if line.strip()]
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
    # Check the types of all fields; the last two are optional. True and False are ints, too.
    values: dict[str, Any] = {name: record.get(name) for name in (*TEXTS, *LISTS, "distance")}
    values["phenomenon"] = record.get("phenomenon", "")
    for name in TEXTS:
        if not isinstance(values[name], str):
            raise DataError(f"{place}: expected a text as '{name}'")
    for name in LISTS:
        texts = values[name]
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{place}: expected a list of texts as '{name}'")
        values[name] = tuple(texts)
    distance = values["distance"]
    if distance is not None and (type(distance) is not int or distance < 0):
        raise DataError(f"{place}: expected a number of sentences as 'distance'")
    # Compare the fields with each other.
    contrast = Contrast(**values)
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


def contrast_report(options: ScoreSettings) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the accuracies with and without context, of all contrasts and by category, as entries.

    An entry is a line to print, and the same as values for JSON.
    """
    # Read the file first, since loading the model takes longer.
    every = read_contrasts(options.contrastive)
    # Keep the contrasts in the model's source language.
    translator = Translator.from_checkpoint(options.path, "cpu" if options.cpu else None)
    task = translator.task
    contrasts = [c for c in every if c.source_language == task.source_lang]
    if not contrasts:
        languages = ", ".join(sorted({c.source_language for c in every}))
        raise DataError(
            f"{options.contrastive}: sentences in {languages}, but the model translates from "
            f"{task.source_lang}"
        )
    if len(contrasts) < len(every):
        others = Counter(c.source_language for c in every if c.source_language != task.source_lang)
        counts = ", ".join(f"{count:,} in {language}" for language, count in others.items())
        text = f"NOTE: left out {counts}: the model translates from {task.source_lang}"
        yield text, {"left out": dict(others)}
    # Score with context, then without, to show its effect.
    for context in (options.context_sentences, 0):
        yield from _accuracies(translator, contrasts, context, options.batch_size)


def contrast_scores(
    translator: Translator,
    contrasts: Sequence[Contrast],
    context: int | None = None,
    batch_size: int | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> list[np.ndarray]:
    """Return the log-probabilities (nats) of the translations, float64, the right one first.

    Context and sentence are one source, joined like groups of sentences in training. The target
    begins with the translations of the context. The score is the total log-probability of the
    tokens after them, ``</s>`` included. ``context`` is the number of nearest sentences before to
    give, all by default.

    Raises:
        ConfigError: the model's scores are not finite.
        DataError: a source is too long for learned positions.
    """
    task, sources, prefixes = translator.task, [], []
    # Make a source and a target for each translation, the right one first.
    for contrast in contrasts:
        source, prefix = _encode(task, contrast, context)
        for text in (contrast.reference, *contrast.contrasts):
            target = np.concatenate([prefix, task.encode_target(text)])
            sources.append(SourceSentence(source, reference=target))
            prefixes.append(len(prefix))
    # Score all translations, and sum over the tokens behind the context.
    config = GenerationConfig(score_reference=True, batch_size=batch_size)
    found = translator.generator(config).translate(sources, on_progress=on_progress)
    totals = [
        best.positional_scores[prefix:].sum(dtype=np.float64)
        for (best, *_), prefix in zip(found, prefixes, strict=True)
    ]
    if not np.isfinite(totals).all():
        raise ConfigError("the model's scores are not finite (training diverged)")
    # Divide the flat list of scores by contrast.
    rest = iter(totals)
    return [np.array(list(itertools.islice(rest, 1 + len(c.contrasts)))) for c in contrasts]


def _encode(
    task: TranslationTask, contrast: Contrast, context: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the source with its context, and the target's context without ``</s>``."""
    before = len(contrast.source_context)
    # Keep the nearest sentences of the context.
    first = 0 if context is None else max(0, before - context)
    sources = [*contrast.source_context[first:], contrast.source]
    targets = contrast.reference_context[first:]
    return (
        join_sentences([task.encode_source(text) for text in sources]),
        join_sentences([task.encode_target(text) for text in targets])[:-1],
    )


def _accuracies(
    translator: Translator,
    contrasts: Sequence[Contrast],
    context: int | None,
    batch_size: int | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    shown = "all" if context is None else str(context)
    total = sum(1 + len(contrast.contrasts) for contrast in contrasts)
    with progress_bar(f"score with context {shown}", total, "translations") as advance:
        scores = contrast_scores(translator, contrasts, context, batch_size, advance)
    # A tie counts as wrong, since the model does not prefer the right translation.
    is_right = [bool(own[0] > own[1:].max()) for own in scores]
    version = f"relu_nmt-{relu_nmt.__version__}"
    signature = f"context:{shown}|score:logprob-sum|ties:wrong|version:{version}"
    for found in accuracies(contrasts, is_right):
        name, part = f"accuracy[{found['category']}]", f"{found['right']}/{found['contrasts']}"
        score = f"{found['score']:.2f} ({part}) chance = {found['chance']:.2f}"
        text = f"{name} = {score} context = {shown} signature: {signature}"
        yield text, {"name": "accuracy", **found, "context": shown, "signature": signature}


def accuracies(contrasts: Sequence[Contrast], is_right: Sequence[bool]) -> list[dict[str, Any]]:
    """Return the share of right choices, for all contrasts, by phenomenon and by distance.

    Returns:
        ``category``, ``score`` (0 to 100), the numbers ``right`` of ``contrasts``, and ``chance``,
        the expected score of a random choice.

    Example:
        >>> one = Contrast("en", "It is here.", "Er ist hier.", ("Es ist hier.",))
        >>> accuracies([one, one], [True, False])
        [{'category': 'all', 'score': 50.0, 'right': 1, 'contrasts': 2, 'chance': 50.0}]
    """
    everyone = list(zip(contrasts, is_right, strict=True))
    # Collect the contrasts of each category.
    groups = [("all", everyone)]
    for phenomenon in sorted({c.phenomenon for c in contrasts if c.phenomenon}):
        own = [pair for pair in everyone if pair[0].phenomenon == phenomenon]
        groups.append((phenomenon, own))
    for distance in sorted({c.distance for c in contrasts if c.distance is not None}):
        own = [pair for pair in everyone if pair[0].distance == distance]
        groups.append((f"distance {distance}", own))
    return [
        {
            "category": category,
            "score": 100 * sum(right for _, right in own) / len(own),
            "right": sum(right for _, right in own),
            "contrasts": len(own),
            # Average over contrasts, which may have different numbers of choices.
            "chance": 100 * sum(1 / (1 + len(c.contrasts)) for c, _ in own) / len(own),
        }
        for category, own in groups
    ]

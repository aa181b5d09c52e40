"""Contrastive tests: does a model prefer the right of several translations?"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

import relu_nmt
from relu_nmt.corpus.translation import TranslationTask
from relu_nmt.data.split import join_sentences
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.decoding.translations import SourceSentence
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.evaluation.contrasts import Contrast, accuracies, read_contrasts
from relu_nmt.io.progress_bar import progress_bar
from relu_nmt.recipes.score import Entry
from relu_nmt.recipes.scoring_settings import ContrastOptions
from relu_nmt.translator import Translator


def contrast_report(options: ContrastOptions) -> Iterator[Entry]:
    """Yield the accuracies with and without context: of all contrasts and by category.

    Raises:
        DataError: the file is damaged, or has nothing for the model's source language.
        ReluNmtError: the checkpoint does not fit.
    """
    every = read_contrasts(options.contrastive)
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
        yield Entry(text, {"left out": dict(others)})
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

    Context and sentence are one source, joined as groups of sentences are in training. The
    translations of the context are given too; only what follows them is scored: its total
    log-probability, the end symbol included.

    Args:
        translator: has the model.
        contrasts: what to score.
        context: most sentences to give of those before, the nearest; None for all.
        batch_size: translations in a batch.
        on_progress: called with the number of translations of each batch that is done.

    Raises:
        ConfigError: the model's scores are not finite.
        DataError: a source is too long for learned positions.
    """
    task, sources, prefixes = translator.task, [], []
    for contrast in contrasts:
        source, prefix = _encode(task, contrast, context)
        for text in (contrast.reference, *contrast.contrasts):
            target = np.concatenate([prefix, task.encode_target(text)])
            sources.append(SourceSentence(source, reference=target))
            prefixes.append(len(prefix))
    config = GenerationConfig(score_reference=True, batch_size=batch_size)
    found = translator.generator(config).translate(sources, on_progress=on_progress)
    totals = [
        best.positional_scores[prefix:].sum(dtype=np.float64)
        for (best, *_), prefix in zip(found, prefixes, strict=True)
    ]
    if not np.isfinite(totals).all():
        raise ConfigError("the model's scores are not finite (training diverged)")
    rest = iter(totals)
    return [np.array(list(itertools.islice(rest, 1 + len(c.contrasts)))) for c in contrasts]


def _encode(
    task: TranslationTask, contrast: Contrast, context: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the source with its context, and the target's context without end symbol."""
    before = len(contrast.source_context)
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
) -> Iterator[Entry]:
    shown = "all" if context is None else str(context)
    total = sum(1 + len(contrast.contrasts) for contrast in contrasts)
    with progress_bar(f"score with context {shown}", total, "translations") as advance:
        scores = contrast_scores(translator, contrasts, context, batch_size, advance)
    # A tie is not right: the model did not prefer it.
    is_right = [bool(own[0] > own[1:].max()) for own in scores]
    version = f"relu_nmt-{relu_nmt.__version__}"
    signature = f"context:{shown}|score:logprob-sum|ties:wrong|version:{version}"
    for accuracy in accuracies(contrasts, is_right):
        name = f"accuracy[{accuracy.category}]"
        yield Entry(
            f"{name} = {accuracy} context = {shown} signature: {signature}",
            {
                "name": "accuracy",
                "category": accuracy.category,
                "score": accuracy.value,
                "right": accuracy.num_right,
                "contrasts": accuracy.num_contrasts,
                "chance": accuracy.chance,
                "context": shown,
                "signature": signature,
            },
        )

"""Contrastive tests: does a model prefer the right of several translations?"""

from collections import Counter
from collections.abc import Iterator, Sequence

import relu_nmt
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.decoding.generator import Generator
from relu_nmt.errors import DataError
from relu_nmt.evaluation.contrastive_scoring import ContrastScorer, prefers_reference
from relu_nmt.evaluation.contrasts import Contrast, accuracies, read_contrasts
from relu_nmt.io.progress_bar import ProgressBar
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
    config = GenerationConfig(score_reference=True, batch_size=options.batch_size)
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
    generator = Generator(translator.models, config, task.target_dictionary, translator.dtype)
    scorer = ContrastScorer(generator, task, translator.device)
    for context in (options.context_sentences, 0):
        yield from _accuracies(scorer, contrasts, context)


def _accuracies(
    scorer: ContrastScorer, contrasts: Sequence[Contrast], context: int | None
) -> Iterator[Entry]:
    shown = "all" if context is None else str(context)
    total = sum(1 + len(contrast.contrasts) for contrast in contrasts)
    with ProgressBar(f"score with context {shown}", total, "translations") as progress:
        is_right = prefers_reference(scorer.scores(contrasts, context, progress.advance))
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

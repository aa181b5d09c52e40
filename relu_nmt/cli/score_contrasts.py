"""Contrastive tests: does a model prefer the right of several translations?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relu_nmt import __version__
from relu_nmt.cli.score_options import Entry
from relu_nmt.cli.translation_options import ModelOptions, load_translator
from relu_nmt.config import option
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.evaluation.contrasts import Contrast, accuracies, read_contrasts
from relu_nmt.io.progress_bar import ProgressBar

if TYPE_CHECKING:
    from relu_nmt.evaluation.contrastive_scoring import ContrastScorer


@dataclass(frozen=True)
class ContrastOptions:
    """Which contrasts to show to which model.

    Raises:
        ConfigError: contrasts without a model.
    """

    contrastive: str = option(
        "",
        "score the right and wrong translations of this file (test.contrasts.jsonl of "
        "data_prep/grammar_corpus.py) with a model, given the sentences before, and without them",
        metavar="FILE",
    )
    path: str = option("", "checkpoint; several with colons are an ensemble", metavar="FILE")
    context_sentences: int | None = option(
        None, "most sentences to give of those before; all by default", metavar="N"
    )
    cpu: bool = option(False, "use the CPU even if there is a GPU")
    batch_size: int | None = option(
        None, "most translations in a batch; by default what suits the device", metavar="N"
    )

    def __post_init__(self) -> None:
        if self.contrastive and not self.path:
            raise ConfigError("--contrastive needs a model: give its checkpoint with --path")
        if self.context_sentences is not None and self.context_sentences < 1:
            raise ConfigError(
                f"--context-sentences {self.context_sentences}: expected 1 or more; what the model "
                "does without is printed anyway"
            )


def contrast_report(options: ContrastOptions) -> Iterator[Entry]:
    """Yield the accuracies with and without context: of all contrasts and by category.

    Raises:
        DataError: the file is damaged, or has nothing for the model's source language.
        ReluNmtError: the checkpoint does not fit.
    """
    every = read_contrasts(options.contrastive)
    config = GenerationConfig(score_reference=True, batch_size=options.batch_size)
    translator = load_translator(ModelOptions(path=options.path, cpu=options.cpu), None)
    from relu_nmt.decoding.generator import Generator
    from relu_nmt.evaluation.contrastive_scoring import ContrastScorer

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
    from relu_nmt.evaluation.contrastive_scoring import prefers_reference

    shown = "all" if context is None else str(context)
    total = sum(1 + len(contrast.contrasts) for contrast in contrasts)
    with ProgressBar(f"score with context {shown}", total, "translations") as progress:
        is_right = prefers_reference(scorer.scores(contrasts, context, progress.advance))
    signature = f"context:{shown}|score:logprob-sum|ties:wrong|version:relu_nmt-{__version__}"
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

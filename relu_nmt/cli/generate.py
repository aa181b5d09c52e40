"""relu-nmt-generate: translate a split of a data folder and score it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from relu_nmt.cli.attention_output import (
    AttentionOptions,
    AttentionReport,
    check_alignment,
    check_no_attention,
)
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.cli.document_options import (
    SplitDocumentOptions,
    WindowOptions,
    limit_note,
    speed_line,
)
from relu_nmt.cli.source_limit import SourceLimit
from relu_nmt.cli.translation_options import LineFormat, ModelOptions, load_translator
from relu_nmt.config import add_options, from_namespace, option
from relu_nmt.decoding.config import DocumentGenerationConfig, GenerationConfig
from relu_nmt.decoding.windows import WindowConfig
from relu_nmt.errors import DataError
from relu_nmt.evaluation.config import ScoringConfig
from relu_nmt.io.progress_bar import ProgressBar

if TYPE_CHECKING:
    from relu_nmt.decoding.translations import SourceSentence, Translation
    from relu_nmt.translator import Translator

DESCRIPTION = """\
Translate a split of a data folder and score it:

  relu-nmt-generate data-bin/corpus --path checkpoints/checkpoint_best.safetensors --beam 5

For every sentence, in the order of the data: S- source, T- reference, H- score and translation
as tokens, D- score and translation as text, P- score of each token. Scores are in base 2.

With --max-doc-tokens documents are translated, and these lines are for groups of sentences; with
--window-overlap too, S- shows the context, the others only what is new. --scoring bleu makes
their BLEU that of tokenised text; chrF is always given.
"""
WINDOW = 50_000
"""Sentences that are sorted by length and translated before the next ones are read."""


@dataclass(frozen=True)
class GenerateOptions:
    """What to translate, and where the lines go."""

    gen_subset: str = option("test", "split to translate: test, valid, train...", metavar="SPLIT")
    results_path: str | None = option(
        None, "write to generate-SPLIT.txt in this folder instead of standard output", metavar="DIR"
    )
    quiet: bool = option(False, "print the score only")
    skip_invalid_size_inputs_valid_test: bool = option(
        False, "leave sentences untranslated that are longer than the model can read"
    )
    no_progress_bar: bool = option(False, "no progress bar")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(generate_parser(), _run, argv)


def generate_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = make_parser("relu-nmt-generate", DESCRIPTION, user_modules=True)
    parser.add_argument("data", help="data folder")
    add_options(parser, ModelOptions, "model")
    add_options(parser, GenerateOptions, "data and output")
    add_options(parser, SplitDocumentOptions, "documents")
    add_options(parser, WindowOptions, "windows that overlap")
    add_options(parser, GenerationConfig, "search")
    add_options(parser, ScoringConfig, "score")
    add_options(parser, AttentionOptions, "attention")
    return parser


def _run(arguments: argparse.Namespace) -> None:
    model = from_namespace(ModelOptions, arguments)
    options = from_namespace(GenerateOptions, arguments)
    documents = from_namespace(SplitDocumentOptions, arguments)
    overlap = from_namespace(WindowOptions, arguments)
    documents.check(overlap)
    windows, search = None, GenerationConfig
    if documents.max_doc_tokens is not None:
        windows = WindowConfig(documents.max_doc_tokens, overlap.window_overlap)
        search = DocumentGenerationConfig
    config = from_namespace(search, arguments)
    scoring = from_namespace(ScoringConfig, arguments)
    attention = from_namespace(AttentionOptions, arguments)
    check_alignment(attention, config.print_alignment)
    if overlap.window_overlap:
        check_no_attention(attention)
    translator = load_translator(model, arguments.data)
    lines = LineFormat(
        translator.task, model.post_process is not None, config.print_alignment is not None
    )
    report = AttentionReport(attention, translator, options.gen_subset)
    with _output(options) as output:
        parts = (config, lines, report, output)
        if windows is None:
            _SplitTranslation(translator, options, *parts).run(scoring)
        else:
            from relu_nmt.cli.generate_documents import DocumentSplitTranslation

            DocumentSplitTranslation(translator, options, documents, windows, *parts).run(scoring)
    report.write()


@contextmanager
def _output(options: GenerateOptions) -> Iterator[TextIO]:
    """Open the results file, whole or absent; or give standard output."""
    if options.results_path is None:
        yield sys.stdout
        return
    path = Path(options.results_path) / f"generate-{options.gen_subset}.txt"
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"--results-path {path}: cannot write it: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    print(f"results: {path}")


class _SplitTranslation:
    """Translates a split, prints the lines and the score."""

    def __init__(
        self,
        translator: Translator,
        options: GenerateOptions,
        config: GenerationConfig,
        lines: LineFormat,
        attention: AttentionReport,
        output: TextIO,
    ) -> None:
        self._translator = translator
        self._task = translator.task
        self._dataset = translator.task.load_split(options.gen_subset)
        self._options = options
        self._config = config
        self._lines = lines
        self._attention = attention
        self._output = output
        self._found: list[tuple[str, list[str]]] = []
        self._num_at_limit = 0

    def run(self, scoring: ScoringConfig) -> None:
        """Translate everything."""
        dataset, config, subset = self._dataset, self._config, self._options.gen_subset
        limit = SourceLimit(
            self._translator.most_source_positions,
            dataset.source_sizes,
            subset,
            self._options.skip_invalid_size_inputs_valid_test,
        )
        if limit.note:
            print(limit.note, file=self._output)
        seconds, num_tokens = 0.0, 0
        with self._progress() as advance:
            for first in range(0, len(dataset), WINDOW):
                numbers = range(first, min(first + WINDOW, len(dataset)))
                sentences = self._translator.read_sentences(
                    dataset, numbers, config.replace_unk is not None
                )
                sentences = [limit.shortened(sentence) for sentence in sentences]
                started = time.perf_counter()
                found = self._translator.translate_sentences(sentences, config, first, advance)
                seconds += time.perf_counter() - started
                num_tokens += sum(len(best.hypothesis.tokens) for best, *_ in found)
                self._attention.add(sentences, found)
                self._print(numbers, sentences, found)
        self._print_summary(scoring, seconds, num_tokens)

    @contextmanager
    def _progress(self) -> Iterator[Callable[[int], object] | None]:
        """Show how many sentences are done, unless told not to."""
        if self._options.no_progress_bar:
            yield None
            return
        label = f"translate {self._options.gen_subset}"
        with ProgressBar(label, len(self._dataset), "sentences") as progress:
            yield progress.advance

    def _print(
        self,
        numbers: range,
        sentences: list[SourceSentence],
        found: list[list[Translation]],
    ) -> None:
        task = self._task
        for number, sentence, translations in zip(numbers, sentences, found, strict=True):
            self._found.append((translations[0].text, translations[0].tokens))
            self._num_at_limit += translations[0].reached_limit
            if self._options.quiet:
                continue
            lines = [self._lines.source(number, task.source_tokens(sentence.ids).split())]
            if sentence.reference is not None:
                reference = task.target_tokens(sentence.reference, "<<unk>>").split()
                lines.append(self._lines.target(number, reference))
            for translation in translations:
                lines += self._lines.hypothesis(number, translation)
                lines += self._attention.lines(number, sentence, translation)
            print("\n".join(lines), file=self._output)

    def _print_summary(self, scoring: ScoringConfig, seconds: float, num_tokens: int) -> None:
        count, subset = len(self._found), self._options.gen_subset
        print("NOTE: hypothesis and token scores are output in base 2", file=self._output)
        if self._num_at_limit:
            print(limit_note(self._num_at_limit, self._config), file=self._output)
        print(speed_line(count, num_tokens, seconds), file=self._output)
        if self._dataset.target is None or self._config.score_reference or not count:
            return
        from relu_nmt.evaluation.split_score import score_split

        score = score_split(self._task, self._dataset, self._found, scoring)
        if self._dataset.raw_target is None:
            print(
                "NOTE: the folder keeps no raw references; scored on its dictionary's tokens",
                file=self._output,
            )
        print(f"Generate {subset} with beam={self._config.beam}: {score}", file=self._output)


if __name__ == "__main__":
    raise SystemExit(main())

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

from relu_nmt.cli.attention_output import AttentionOptions, AttentionReport, check_alignment
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.cli.translation_options import LineFormat, ModelOptions, load_translator
from relu_nmt.config import add_options, from_namespace, option
from relu_nmt.data.progress import Progress
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.errors import DataError
from relu_nmt.evaluation.config import ScoringConfig

if TYPE_CHECKING:
    from relu_nmt.data.parallel import ParallelDataset
    from relu_nmt.translator import SourceSentence, Translation, Translator

DESCRIPTION = """\
Translate a split of a data folder and score it:

  relu-nmt-generate data-bin/corpus --path checkpoints/checkpoint_best.safetensors --beam 5

For every sentence, in the order of the data: S- source, T- reference, H- score and translation
as tokens, D- score and translation as text, P- score of each token. Scores are in base 2.
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
        False, "leave sentences untranslated that are too long for a model with learned positions"
    )
    no_progress_bar: bool = option(False, "no progress bar")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-generate", DESCRIPTION, user_modules=True)
    parser.add_argument("data", help="data folder")
    add_options(parser, ModelOptions, "model")
    add_options(parser, GenerateOptions, "data and output")
    add_options(parser, GenerationConfig, "search")
    add_options(parser, ScoringConfig, "score")
    add_options(parser, AttentionOptions, "attention")
    return run_command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> None:
    model = from_namespace(ModelOptions, arguments)
    options = from_namespace(GenerateOptions, arguments)
    config = from_namespace(GenerationConfig, arguments)
    scoring = from_namespace(ScoringConfig, arguments)
    attention = from_namespace(AttentionOptions, arguments)
    check_alignment(attention, config.print_alignment)
    translator = load_translator(model, arguments.data)
    dataset = translator.task.load_split(options.gen_subset)
    lines = LineFormat(
        translator.task, model.post_process is not None, config.print_alignment is not None
    )
    report = AttentionReport(attention, translator, options.gen_subset)
    with _output(options) as output:
        _SplitTranslation(translator, dataset, options, config, lines, report, output).run(scoring)
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
        dataset: ParallelDataset,
        options: GenerateOptions,
        config: GenerationConfig,
        lines: LineFormat,
        attention: AttentionReport,
        output: TextIO,
    ) -> None:
        self._translator = translator
        self._task = translator.task
        self._dataset = dataset
        self._options = options
        self._config = config
        self._lines = lines
        self._attention = attention
        self._output = output
        self._texts: list[str] = []
        self._tokens: list[list[str]] = []

    def run(self, scoring: ScoringConfig) -> None:
        """Translate everything."""
        dataset, config, subset = self._dataset, self._config, self._options.gen_subset
        self._check_lengths()
        raw = None
        if config.replace_unk is not None:
            raw = self._task.raw_lines(subset, "source")
        seconds, num_tokens = 0.0, 0
        with self._progress() as advance:
            for first in range(0, len(dataset), WINDOW):
                numbers = range(first, min(first + WINDOW, len(dataset)))
                sentences = self._translator.read_sentences(dataset, numbers, raw)
                sentences = [self._shortened(sentence) for sentence in sentences]
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
        with Progress(label, len(self._dataset), "sentences") as progress:
            yield progress.advance

    def _check_lengths(self) -> None:
        limit, sizes = self._translator.most_source_positions, self._dataset.source_sizes
        if limit is None or not len(sizes) or sizes.max() <= limit:
            return
        count = int((sizes > limit).sum())
        if not self._options.skip_invalid_size_inputs_valid_test:
            raise DataError(
                f"split {self._options.gen_subset}: sentence {int((sizes > limit).argmax())} has "
                f"more than the {limit} tokens that the model's learned positions allow ({count} "
                "such sentences); --skip-invalid-size-inputs-valid-test leaves them empty"
            )
        print(f"NOTE: {count} sentences of more than {limit} tokens stay empty", file=self._output)

    def _shortened(self, sentence: SourceSentence) -> SourceSentence:
        """Return the sentence, without words if the model cannot read it."""
        limit = self._translator.most_source_positions
        if limit is None or len(sentence.ids) <= limit:
            return sentence
        return type(sentence)(sentence.ids[-1:], [], sentence.reference)

    def _print(
        self,
        numbers: range,
        sentences: list[SourceSentence],
        found: list[list[Translation]],
    ) -> None:
        task = self._task
        for number, sentence, translations in zip(numbers, sentences, found, strict=True):
            self._texts.append(translations[0].text)
            self._tokens.append(translations[0].tokens)
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
        count, subset = len(self._texts), self._options.gen_subset
        print("NOTE: hypothesis and token scores are output in base 2", file=self._output)
        speed = f"{count / max(seconds, 1e-9):.2f} sentences/s, "
        speed += f"{num_tokens / max(seconds, 1e-9):.2f} tokens/s"
        print(
            f"Translated {count:,} sentences ({num_tokens:,} tokens) in {seconds:.1f}s ({speed})",
            file=self._output,
        )
        if self._dataset.target is None or self._config.score_reference or not count:
            return
        from relu_nmt.evaluation.split_score import score_split

        score = score_split(self._task, subset, self._texts, self._tokens, scoring)
        if self._task.raw_lines(subset, "target") is None:
            print(
                "NOTE: the folder keeps no raw references; scored on its dictionary's tokens",
                file=self._output,
            )
        print(f"Generate {subset} with beam={self._config.beam}: {score}", file=self._output)


if __name__ == "__main__":
    raise SystemExit(main())

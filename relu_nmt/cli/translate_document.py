"""relu-nmt-translate-document: translate a text of whole documents."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.cli.document_options import (
    WindowOptions,
    groups_progress,
    length_note,
    limit_note,
    share,
)
from relu_nmt.cli.translation_options import ModelOptions, load_translator, refuse_references
from relu_nmt.config import add_options, from_namespace, option
from relu_nmt.data.documents import separator_test
from relu_nmt.data.groups import SINGLE_SENTENCES
from relu_nmt.decoding.config import DocumentGenerationConfig
from relu_nmt.decoding.windows import WindowConfig, WindowPlan
from relu_nmt.errors import ConfigError
from relu_nmt.io.text_lines import decode_lines, read_lines

if TYPE_CHECKING:
    from relu_nmt.decoding.document_search import DocumentTranslations, SourceDocuments
    from relu_nmt.translator import Translator

DESCRIPTION = """\
Translate raw text of whole documents, a sentence or paragraph a line, blank lines between them:

  relu-nmt-translate-document talk.de --path checkpoints/checkpoint_best.safetensors > talk.en

Consecutive lines of a document are translated together, as many as --max-doc-tokens allows; a
longer line is translated alone and whole. With a model trained with --sentence-separator every
line gives one line, and blank lines stay where they are. Where a translation has not as many
sentences as lines went in, these lines are translated again in two halves, and so on; how often
is told at the end, on standard error. Models trained without separators give one line for each
group of lines; --max-doc-tokens 1 translates line by line with any model.
"""


@dataclass(frozen=True)
class TranslateDocumentOptions:
    """How much of a document to translate at once."""

    max_doc_tokens: int | None = option(
        None,
        "join lines of a document up to N source tokens, </s> included; by default the longest "
        f"that the model was trained on ({SINGLE_SENTENCES}, line by line, for one of sentences)",
        metavar="N",
    )
    no_progress_bar: bool = option(False, "no progress bar")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-translate-document", DESCRIPTION, user_modules=True)
    parser.add_argument("file", help="text to translate; - is standard input")
    add_options(parser, ModelOptions, "model")
    add_options(parser, TranslateDocumentOptions, "documents")
    add_options(parser, WindowOptions, "windows that overlap")
    add_options(parser, DocumentGenerationConfig, "search")
    return run_command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> None:
    model = from_namespace(ModelOptions, arguments)
    options = from_namespace(TranslateDocumentOptions, arguments)
    overlap = from_namespace(WindowOptions, arguments).window_overlap
    config = from_namespace(DocumentGenerationConfig, arguments)
    refuse_references(config)
    if config.nbest > 1 or config.print_alignment is not None:
        flag = "--nbest" if config.nbest > 1 else "--print-alignment"
        raise ConfigError(f"{flag}: each line has one translation here; use relu-nmt-interactive")
    lines = _read(arguments.file)
    if options.max_doc_tokens is not None:
        WindowConfig(options.max_doc_tokens, overlap)  # before the model is loaded
    translator = load_translator(model, None)
    limit = options.max_doc_tokens or translator.max_doc_tokens
    windows = WindowConfig(limit, overlap, repair=True)
    _TextTranslation(translator, windows, config).run(lines, not options.no_progress_bar)


def _read(path: str) -> list[str]:
    if path == "-":
        return decode_lines(sys.stdin.buffer.read(), "standard input")
    return read_lines(path)


class _TextTranslation:
    """Translates a text, and tells on standard error what is to be known.

    Args:
        translator: has the model.
        windows: how to divide documents.
        config: settings of the search.
    """

    def __init__(
        self, translator: Translator, windows: WindowConfig, config: DocumentGenerationConfig
    ) -> None:
        self._translator = translator
        self._windows = windows
        self._config = config

    def run(self, lines: list[str], show_progress: bool) -> None:
        """Translate and print everything."""
        _tell(length_note(self._windows.max_doc_tokens, self._translator.max_doc_tokens))
        runs = [(blank, list(run)) for blank, run in itertools.groupby(lines, _is_blank)]
        documents = [run for blank, run in runs if not blank]
        sources = self._translator.encode_documents(documents)
        plan = WindowPlan(sources.sizes, sources.counts, self._windows)
        with groups_progress("translate", len(plan.windows), show_progress) as advance:
            found = self._translator.translate_in_windows(
                sources, self._windows, self._config, on_progress=advance
            )
        translated = [[line.text for line in own] for own in found.lines(len(documents))]
        rest = iter(translated)
        for blank, run in runs:
            print("\n".join([""] * len(run) if blank else next(rest)))
        self._report(sources, found, int(plan.groups().over_long.sum()))
        _tell(_empty_note([text for own in translated for text in own]))

    def _report(
        self, sources: SourceDocuments, found: DocumentTranslations, num_over_long: int
    ) -> None:
        num_lines, limit = len(sources.sentences), self._windows.max_doc_tokens
        parts = [
            f"{num_lines:,} lines of {len(sources.counts):,} documents in {found.num_planned:,} "
            + ("groups of one" if limit == SINGLE_SENTENCES else f"groups of up to {limit} tokens")
        ]
        if num_over_long:
            parts.append(f"{num_over_long:,} longer lines translated whole")
        if sources.separators is not None and limit != SINGLE_SENTENCES:
            wrong = share(found.num_mismatched, found.num_planned)
            parts.append(f"{wrong} groups had another number of sentences than lines")
        if found.num_repeated:
            parts.append(f"{found.num_repeated:,} translated again in halves")
        _tell("; ".join(parts))
        if found.num_undivided:
            _tell(
                "NOTE: the model was trained without --sentence-separator: "
                f"{share(found.num_undivided, len(found.windows))} groups of several lines became "
                f"one line each; --max-doc-tokens {SINGLE_SENTENCES} keeps every line apart"
            )
        _tell(limit_note(found.num_at_limit, self._config))


def _empty_note(texts: Sequence[str]) -> str:
    """Return the line that tells of empty translations; empty if there are none."""
    empty = sum(not text.strip() for text in texts)
    if not empty:
        return ""
    return (
        f"NOTE: {share(empty, len(texts))} lines have an empty translation, which looks like a "
        "blank line between documents"
    )


def _is_blank(line: str) -> bool:
    return separator_test("blank")(line)


def _tell(line: str) -> None:
    if line:
        print(line, file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())

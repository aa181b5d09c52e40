"""relu-nmt-generate --max-doc-tokens: translate the documents of a split and score them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from relu_nmt.cli.document_options import (
    SplitDocumentOptions,
    check_writable,
    document_ranges,
    groups_progress,
    length_note,
    limit_note,
    share,
    speed_line,
)
from relu_nmt.cli.source_limit import SourceLimit
from relu_nmt.data.documents import DOCUMENT_TAG
from relu_nmt.data.groups import describe_lengths, lengths_in_words
from relu_nmt.data.split import longer_side
from relu_nmt.decoding.windows import WindowConfig, WindowPlan
from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import write_text
from relu_nmt.peak_memory import peak_gpu_bytes, peak_resident_bytes

if TYPE_CHECKING:
    from relu_nmt.cli.attention_output import AttentionReport
    from relu_nmt.cli.generate import GenerateOptions
    from relu_nmt.cli.translation_options import LineFormat
    from relu_nmt.decoding.config import GenerationConfig
    from relu_nmt.decoding.document_search import DocumentTranslations, WindowTranslation
    from relu_nmt.decoding.translations import Line
    from relu_nmt.evaluation.bleu import Score
    from relu_nmt.evaluation.config import ScoringConfig
    from relu_nmt.evaluation.split_score import DocumentScores
    from relu_nmt.translator import Translator


class DocumentSplitTranslation:
    """Translates the documents of a split, prints the lines of each group and the scores.

    Groups are not repaired here: the scores are of what the model makes of them.

    Args:
        translator: has the model, and the data folder.
        options: which split, and what to print.
        documents: how to count, and where results go.
        windows: limit and overlap.
        config: settings of the search.
        lines: format of the printed lines.
        attention: what is to be told of the attention.
        output: where lines go.

    Raises:
        DataError: the split is missing or has no document boundaries, or a file cannot be written.
    """

    def __init__(
        self,
        translator: Translator,
        options: GenerateOptions,
        documents: SplitDocumentOptions,
        windows: WindowConfig,
        config: GenerationConfig,
        lines: LineFormat,
        attention: AttentionReport,
        output: TextIO,
    ) -> None:
        self._translator = translator
        self._task = translator.task
        self._split = options.gen_subset
        self._options = options
        self._files = documents
        self._windows = windows
        self._config = config
        self._lines = lines
        self._attention = attention
        self._out = output
        self._dataset = self._task.load_split(self._split)
        self._counts = self._dataset.require_documents("--max-doc-tokens")
        target_sizes = None if documents.count_source_only else self._dataset.target_sizes
        self._sizes = longer_side(self._dataset.source_sizes, target_sizes)
        self._documents: list[list[Line]] = []
        self._groups: list[tuple[str, list[str]]] = []
        self._group_counts: list[int] = []
        self._num_tokens = self._num_mismatched = self._num_undivided = self._num_at_limit = 0
        for flag, path in (("--output", documents.output), ("--results", documents.results)):
            check_writable(flag, path)

    def run(self, scoring: ScoringConfig) -> None:
        """Translate everything."""
        from relu_nmt.decoding.document_search import SourceDocuments

        dataset, split, options = self._dataset, self._split, self._options
        limit = SourceLimit(
            self._translator.most_source_positions,
            dataset.source_sizes,
            split,
            options.skip_invalid_size_inputs_valid_test,
        )
        plan = WindowPlan(self._sizes, self._counts, self._windows)
        raw = self._config.replace_unk is not None
        seconds = 0.0
        show = not options.no_progress_bar
        with groups_progress(f"translate {split}", len(plan.windows), show) as advance:
            for documents, numbers in document_ranges(self._counts):
                sentences = self._translator.read_sentences(dataset, numbers, raw)
                sources = SourceDocuments(
                    [limit.shortened(sentence) for sentence in sentences],
                    self._counts[documents.start : documents.stop],
                    self._sizes[numbers.start : numbers.stop],
                    self._task.separators,
                )
                first_id = len(self._groups)
                started = time.perf_counter()
                found = self._translator.translate_in_windows(
                    sources, self._windows, self._config, first_id, advance
                )
                seconds += time.perf_counter() - started
                self._take(found, len(documents))
        longer = length_note(self._windows.max_doc_tokens, self._translator.max_doc_tokens)
        for note in filter(None, (limit.note, longer)):
            self._print(note)
        self._summarise(plan, scoring, seconds)

    def _take(self, found: DocumentTranslations, num_documents: int) -> None:
        """Print the groups of some documents and note what the summary needs."""
        for own in found.windows:
            if not self._options.quiet:
                self._print_group(len(self._groups), own)
            best = own.translations[0]
            self._groups.append((best.text, best.tokens))
            self._group_counts.append(own.window.num_new)
            self._num_tokens += len(best.hypothesis.tokens)
        self._num_mismatched += found.num_mismatched
        self._num_undivided += found.num_undivided
        self._num_at_limit += found.num_at_limit
        self._documents += found.lines(num_documents)
        self._attention.add(
            [own.source for own in found.windows], [own.translations for own in found.windows]
        )

    def _print_group(self, number: int, own: WindowTranslation) -> None:
        task, source = self._task, own.source
        lines = [self._lines.source(number, task.source_tokens(source.ids).split())]
        if source.reference is not None:
            reference = task.target_tokens(source.reference, "<<unk>>").split()
            lines.append(self._lines.target(number, reference))
        for translation in own.translations:
            lines += self._lines.hypothesis(number, translation)
            lines += self._attention.lines(number, source, translation)
        self._print("\n".join(lines))

    def _print(self, text: str) -> None:
        print(text, file=self._out)

    def _summarise(self, plan: WindowPlan, scoring: ScoringConfig, seconds: float) -> None:
        """Print the last lines, and write the files."""
        split = self._split
        lengths = describe_lengths(plan.groups(), self._windows.max_doc_tokens, keep_over_long=True)
        self._print("NOTE: hypothesis and token scores are output in base 2")
        self._print(f"{split}: {lengths_in_words(lengths)}")
        self._print(self._mismatch_line())
        if self._num_at_limit:
            self._print(limit_note(self._num_at_limit, self._config))
        self._print(speed_line(len(self._dataset), self._num_tokens, seconds))
        scores = self._scores(scoring)
        if scores is not None:
            if self._dataset.raw_target is None:
                self._print(
                    "NOTE: the folder keeps no raw references; scored on its dictionary's tokens"
                )
            beginning = f"Generate {split} with beam={self._config.beam}"
            for score in (scores.d_bleu, scores.s_bleu, scores.group_bleu, scores.chrf):
                if score is not None:
                    self._print(f"{beginning}: {score}")
            if scores.s_bleu is None and self._mismatches() is not None:
                reason = "no document has as many sentences as its reference"
                self._print(f"{beginning}: s-BLEU: none, {reason}")
        self._write_output()
        results = self._results(seconds, scores) | {"lengths": lengths}
        _write("--results", self._files.results, json.dumps(results, indent=1) + "\n")

    def _results(self, seconds: float, scores: DocumentScores | None) -> dict[str, Any]:
        """Return what was printed, as JSON values."""
        number, num_groups = self._mismatches(), len(self._groups)
        return {
            "split": self._split,
            "max_doc_tokens": self._windows.max_doc_tokens,
            "window_overlap": self._windows.window_overlap,
            "count_source_only": self._files.count_source_only,
            "beam": self._config.beam,
            "documents": len(self._counts),
            "sentences": len(self._dataset),
            "groups": num_groups,
            "tokens": self._num_tokens,
            "seconds": seconds,
            "tokens_per_second": self._num_tokens / max(seconds, 1e-9),
            "mismatches": number,
            "mismatch_rate": None if number is None else number / max(1, num_groups),
            "at_limit": self._num_at_limit,
            "memory_bytes": peak_resident_bytes(),
            "gpu_memory_bytes": peak_gpu_bytes(),
            "d_bleu": _values(scores and scores.d_bleu),
            "s_bleu": _values(scores and scores.s_bleu),
            "group_bleu": _values(scores and scores.group_bleu),
            "chrf": _values(scores and scores.chrf),
        }

    def _mismatches(self) -> int | None:
        """Return how many groups have another number of sentences; None: that cannot be told."""
        cannot_tell = self._num_undivided and self._task.separators is None
        return None if cannot_tell else self._num_mismatched

    def _mismatch_line(self) -> str:
        number, num_groups = self._mismatches(), len(self._groups)
        if number is None:
            return (
                f"Groups: {num_groups:,}; the model was trained without --sentence-separator, so "
                f"that {self._num_undivided:,} of them are not cut into sentences"
            )
        wrong = share(number, num_groups)
        return f"Groups: {num_groups:,}; mismatch of the number of sentences: {wrong}"

    def _scores(self, scoring: ScoringConfig) -> DocumentScores | None:
        """Return the scores; None without references or translations."""
        if self._dataset.target is None or self._config.score_reference or not self._groups:
            return None
        from relu_nmt.evaluation.split_score import score_documents

        scores = score_documents(
            self._task,
            self._dataset,
            self._documents,
            self._groups,
            np.array(self._group_counts),
            scoring,
        )
        return scores if self._mismatches() is not None else replace(scores, s_bleu=None)

    def _write_output(self) -> None:
        """Write the documents as text."""
        texts = [[line.text for line in lines] for lines in self._documents]
        if self._files.output_separator == "tag":
            text = "".join(f"{line}\n" for own in texts for line in (DOCUMENT_TAG, *own))
            _write("--output", self._files.output, text)
            return
        # An empty line would end the document.
        filled = [[text for text in own if text.strip()] for own in texts]
        _write("--output", self._files.output, "\n".join(map(_with_ends, filter(None, filled))))
        if self._files.output is None:
            return
        empty = sum(not own for own in filled)
        num_lines = sum(map(len, texts))
        left_out = num_lines - sum(map(len, filled))
        if left_out > empty:  # a document that is one empty line is told of below
            self._print(self._left_out_note(left_out, num_lines, "lines"))
        if empty:
            self._print(self._left_out_note(empty, len(filled), "documents"))

    def _left_out_note(self, number: int, total: int, what: str) -> str:
        return (
            f"NOTE: {share(number, total)} {what} have an empty translation and are not in "
            f"{self._files.output}; --output-separator tag keeps them"
        )


def _with_ends(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _values(score: Score | None) -> dict[str, Any] | None:
    return None if score is None else {"score": score.value, "signature": score.signature}


def _write(flag: str, path: str | None, text: str) -> None:
    """Write a file, whole or not at all; nothing if none is wanted."""
    if path is None:
        return
    try:
        write_text(path, text)
    except OSError as error:
        raise DataError(f"{flag} {path}: cannot write it: {error.strerror}") from error

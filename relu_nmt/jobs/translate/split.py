"""Translate a split of a data folder, sentence by sentence or as whole documents, and score it.

The model translates windows of consecutive sentences, or of one sentence. Here a window whose
number of sentences changes is not translated again, so that scores measure the model's own output.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TextIO

import numpy as np

from relu_nmt.applications.attention_statistics import AttentionStatistics
from relu_nmt.applications.layer_statistics import LayerStatistics
from relu_nmt.data.groups import describe_lengths
from relu_nmt.errors import DataError, reporting
from relu_nmt.evaluation.split_scorer import AlignedSentence, SplitScorer
from relu_nmt.io.progress import hidden_progress, progress_bar
from relu_nmt.io.safe_write import check_writable, json_text, replacing, write_output
from relu_nmt.jobs.translate.line_format import LineFormat
from relu_nmt.jobs.translate.model import load_translator
from relu_nmt.jobs.translate.settings import TranslateSplitSettings as Settings
from relu_nmt.jobs.translate.split_plan import SplitPlan, SplitTranslation
from relu_nmt.jobs.translate.split_summary import SplitSummary
from relu_nmt.jobs.translate.text import banning_request
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.search.banned_terms import BannedTerms
from relu_nmt.translation.search.document_search import SourceDocuments, TranslatedDocuments
from relu_nmt.translation.search.translations import Line, SourceSentence, Translation
from relu_nmt.translator import Translator
from relu_nmt.translator.attention_maps import checked_place

MAX_SENTENCES = 50_000
"""Most sentences to read, sort by length and translate before the next ones."""


def run(settings: Settings, *, progress: bool = True) -> SplitTranslation:
    """Translate a split, print the lines and the scores, and write the requested files."""
    translator = load_translator(settings.model, settings.data)
    # Check everything before the translation begins: statistics that the model does not have,
    # banned terms, references and metric, sentences that are too long, output files.
    attention = AttentionReport(settings, translator)
    banned = translator.sources.banned_terms(banning_request(settings))
    plan = SplitPlan(settings, translator)
    scorer = None
    if plan.split.target is not None and not plan.config.score_reference:
        scorer = SplitScorer(translator.task, plan.split, settings.score)
    for flag in ("output", "results"):
        check_writable(f"--{flag}", getattr(settings, flag))
    over_long = plan.over_long_note(settings.skip_invalid_size_inputs_valid_test)
    with _output(settings, progress) as output:
        if not plan.has_documents:
            _print(over_long, output)
        job = _SplitTranslator(settings, translator, plan, attention, banned, output)
        result = job.translate(progress)
        if scorer is not None and result.groups:
            _score(result, scorer, plan.has_documents, settings.score.scoring)
        if plan.has_documents:
            _print(over_long, output)
        summary = SplitSummary(settings, plan, result, scorer, translator.max_doc_tokens)
        for line in summary.lines():
            _print(line, output)
        for note in summary.write():
            _print(note, output)
    # Measure attention last, so that it does not count for the speed.
    attention.write()
    return result


@contextmanager
def _output(settings: Settings, progress: bool) -> Iterator[TextIO]:
    """Open the file of the results, or standard output, or without ``progress`` the null device."""
    path = settings.results_file
    if path is None:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield sys.stdout if progress else nowhere
        return
    folder = path.parent
    if os.path.lexists(folder) and not folder.is_dir():
        raise DataError(f"--results-path {folder}: is no folder; give the name of one")
    # Write to a temporary file, which replaces the old one at the end.
    check_writable("--results-path", str(path))
    with (
        reporting(f"--results-path {path}: cannot write it"),
        replacing(path) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as lines,
    ):
        yield lines
    if progress:
        print(f"results: {path}")


class AttentionReport:
    """Prints attention weights of a split, and measures attention and memories for files."""

    def __init__(self, settings: Settings, translator: Translator) -> None:
        self._translator = translator
        self._subset = settings.gen_subset
        self._place = None
        self._files: list[tuple[str, str, AttentionStatistics | LayerStatistics]] = []
        self._sources: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []
        if settings.print_attention is not None:
            place = AttentionPlace.parse(settings.print_attention)
            self._place = checked_place(translator.ensemble, place)
        # Make the statistics now: models without weights or memories are an error at the start.
        for flag, path, statistics in (
            ("--attention-stats", settings.attention_stats, AttentionStatistics),
            ("--memory-stats", settings.memory_stats, partial(LayerStatistics, memories_only=True)),
        ):
            if path is not None:
                self._files.append((flag, path, statistics(translator.ensemble)))
                check_writable(flag, path)

    def add(self, source: SourceSentence, translation: Translation) -> None:
        """Keep a sentence, if it has words, with its reference or else its translation."""
        if self._files and len(source.ids) > 1:  # the model reads no empty sentences
            target = source.reference
            if target is None:
                target = translation.hypothesis.ids
            self._sources.append(source.ids)
            self._targets.append(target)

    def lines(self, number: int, source: SourceSentence, translation: Translation) -> list[str]:
        """Return the ``A-`` line of a translation, with ``--print-attention``."""
        if self._place is None:
            return []
        weights = self._translator.attention_at(self._place, source, translation.hypothesis.ids)
        return [f"A-{number}\t{weights.to_json()}"]

    def write(self) -> None:
        """Measure and write the files, after time and memory of the translation were measured."""
        for flag, path, statistics in self._files:
            statistics.add(self._sources, self._targets)
            report = {"subset": self._subset, **statistics.report()}
            write_output(flag, path, json_text(report))


@dataclass
class _SplitTranslator:
    """Translates the documents of a plan, and prints their lines."""

    settings: Settings
    translator: Translator
    plan: SplitPlan
    attention: AttentionReport
    banned: BannedTerms | None
    output: TextIO

    def __post_init__(self) -> None:
        self._task = self.translator.task
        self._lines = LineFormat(self._task, self.settings.model, self.settings.search)
        self._result = SplitTranslation()

    def translate(self, progress: bool) -> SplitTranslation:
        """Translate everything, and print the lines."""
        plan = self.plan
        result = self._result
        unit = "sentences"
        if plan.has_documents:
            unit = "groups"
            max_doc_tokens = plan.windows.max_doc_tokens
            result.lengths = describe_lengths(plan.groups, max_doc_tokens, keep_over_long=True)
        if self.settings.results is not None:
            self._warm_up()
        # Translate some documents at a time. Print their windows when these documents are done.
        label = f"translate {plan.split.name}"
        with (
            hidden_progress(self.settings.no_progress_bar or not progress),
            progress_bar(label, len(plan.groups), unit, shows_waiting=True) as advance,
        ):
            window_translator = self.translator.window_translator(plan.config)
            translate = partial(window_translator, on_progress=advance)
            for numbers, counts in _parts(plan.document_sizes):
                sources = self._sources(numbers, counts)
                first_id = plan.first_group + len(result.groups)
                # Measure the translation alone, without reading and printing.
                started = time.perf_counter()
                translated = self.translator.translate_sources(
                    sources, plan.config, translate, first_id
                )
                result.seconds += time.perf_counter() - started
                self._add(translated)
        # Report no mismatches if groups cannot be divided, for lack of separators.
        if result.num_undivided and self._task.separators is None:
            result.num_mismatched = None
        return result

    def _warm_up(self) -> None:
        """Translate one sentence, so that loading and compiling do not count for the speed."""
        empty_size = 1 + (self._task.separators is not None)
        [numbers] = np.nonzero(self.plan.split.source_sizes > empty_size)
        if len(numbers):
            first = range(numbers[0], numbers[0] + 1)
            sentence = self._sources(first, np.ones(1, dtype=np.int64))
            self.translator.translate_sources(sentence, self.plan.config)

    def _sources(self, numbers: range, counts: np.ndarray) -> SourceDocuments:
        """Return sentences with their references, as documents of ``counts`` sentences."""
        task = self._task
        split = self.plan.split
        # Only the raw source still has the unknown words.
        raw = None
        if self.plan.config.replace_unk is not None:
            raw = split.raw_source
        sentences = []
        for i in numbers:
            ids, reference = split.pair(i)
            tokens = task.source_dictionary.symbols_of(ids)
            if raw is not None:
                tokens = task.source_text.encode(raw[i])
            # Cut or empty a sentence that is too long.
            sentence = SourceSentence(ids, tokens, reference, banned=self.banned)
            sentences.append(self.plan.limit.applied(sentence))
        sizes = self.plan.sizes[numbers.start : numbers.stop]
        return SourceDocuments(sentences, counts, sizes, task.separators, self.plan.windows)

    def _add(self, translated: TranslatedDocuments) -> None:
        """Print the groups of some documents, and count them for the summary."""
        result = self._result
        result.aligned += aligned_sentences(translated, sum(result.counts))
        for group in translated.windows:
            if not self.settings.quiet:
                number = self.plan.first_group + len(result.groups)
                tokens = self._task.source_dictionary.symbols_of(group.source.ids)
                lines = self._lines.source(number, group.source, tokens)
                for translation in group.translations:
                    lines += self._lines.hypothesis(number, translation)
                    lines += self.attention.lines(number, group.source, translation)
                _print("\n".join(lines), self.output)
            best = group.translations[0]
            self.attention.add(group.source, best)
            result.groups.append(Line(best.text, best.tokens))
            result.counts.append(group.window.num_new)
            result.num_tokens += len(best.hypothesis.ids)
        result.num_mismatched = (result.num_mismatched or 0) + translated.num_mismatched
        result.num_undivided += translated.num_undivided
        result.num_at_limit += translated.num_at_limit
        if self.plan.has_documents:
            result.documents += [lines.translations for lines in translated]


def _print(text: str, output: TextIO) -> None:
    if text:
        print(text, file=output)


def _score(
    result: SplitTranslation, scorer: SplitScorer, has_documents: bool, scoring: str
) -> None:
    """Score the translations."""
    if not has_documents:
        name = "chrf" if scoring == "chrf" else "bleu"
        result.scores[name] = scorer.score(result.groups)
        return
    # Documents have d-BLEU and, if sentences can be counted, s-BLEU.
    counts = np.array(result.counts)
    result.scores = scorer.document_scores(result.documents, result.groups, counts)
    # Leave out the score of sentences if groups were not divided.
    if result.num_mismatched is None:
        result.scores.pop("s_bleu", None)


def aligned_sentences(documents: TranslatedDocuments, first: int) -> list[AlignedSentence]:
    """Return the sentences of all windows whose translation has the same number of sentences."""
    aligned: list[AlignedSentence] = []
    for group in documents.windows:
        if not group.divided:
            continue
        for number, line in enumerate(group.lines, group.window.first):
            aligned.append((first + number, number - group.window.context + 1, line))
    return aligned


def _parts(document_sizes: np.ndarray) -> Iterator[tuple[range, np.ndarray]]:
    """Yield parts to read together: the numbers of the sentences, and the documents' sizes."""
    document = 0
    first = 0
    ends = np.cumsum(document_sizes).tolist()
    for number, end in enumerate(ends, 1):
        if end - first >= MAX_SENTENCES or number == len(ends):
            yield range(first, end), document_sizes[document:number]
            document = number
            first = end

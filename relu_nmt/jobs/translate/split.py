"""Translate a split of a data folder, sentence by sentence or as whole documents, and score it.

The model translates windows of consecutive sentences, or of one sentence. Here a window whose
number of sentences changes is not translated again, so that scores measure the model's own output.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TextIO

import numpy as np

from relu_nmt.applications.attention_statistics import AttentionStatistics
from relu_nmt.applications.layer_statistics import LayerStatistics
from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.data.documents import DOCUMENT_TAG
from relu_nmt.data.groups import (
    Groups,
    describe_lengths,
    lengths_in_words,
    longer_side,
    plan_groups,
)
from relu_nmt.data.split import Split
from relu_nmt.errors import DataError, counted, reporting
from relu_nmt.evaluation.metrics import Score
from relu_nmt.evaluation.split_scorer import AlignedSentence, SplitScorer
from relu_nmt.io.memory import peak_gpu_bytes, peak_resident_bytes
from relu_nmt.io.progress import hidden_progress, progress_bar
from relu_nmt.io.safe_write import check_writable, json_text, replacing, write_output
from relu_nmt.jobs.translate.line_format import LineFormat
from relu_nmt.jobs.translate.model import load_translator, source_limit
from relu_nmt.jobs.translate.notes import length_note, limit_note, share
from relu_nmt.jobs.translate.settings import TranslateSplitSettings as Settings
from relu_nmt.jobs.translate.text import banning_request
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.search.document_search import SourceDocuments, TranslatedDocuments
from relu_nmt.translation.search.translations import Line, SourceSentence, Translation
from relu_nmt.translator import Translator
from relu_nmt.translator.attention_maps import checked_place

DOCUMENT_SCORES = ("d_bleu", "s_bleu", "group_bleu", "chrf")
MAX_SENTENCES = 50_000
"""Most sentences to read, sort by length and translate before the next ones."""


def run(settings: Settings, *, progress: bool = True) -> "SplitTranslation":
    """Translate a split, print the lines and the scores, and write the requested files."""
    job = _Run(settings, load_translator(settings.model, settings.data))
    with _output(settings, progress) as output:
        job.run(output, progress)
    # Measure attention last, so that it does not count for the speed.
    job.attention.write()
    return job.result


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


@dataclass
class SplitTranslation:
    """The translations of a split, with their scores. It keeps no model and no search."""

    # The translation of each sentence, or of each group of sentences, in order.
    groups: list[Line] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # sentences of each group
    # Lines of each translated document: one for each sentence, or one for a group whose translation
    # has another number of sentences.
    documents: list[Sequence[Line]] = field(default_factory=list)
    num_tokens: int = 0  # target tokens of the best translations, ``</s>`` included
    seconds: float = 0.0  # of the search. With ``--results`` without loading and compiling
    num_at_limit: int = 0  # groups whose translation reached the longest output
    num_mismatched: int | None = 0  # of groups, None without separators
    num_undivided: int = 0  # groups of several sentences that became one line
    scores: dict[str, Score] = field(default_factory=dict)  # the main one first
    # Lengths of the groups (:func:`relu_nmt.data.split.describe_lengths`).
    lengths: dict[str, Any] | None = None

    @property
    def score(self) -> Score | None:
        """The main score, or None without references."""
        return next(iter(self.scores.values()), None)

    @property
    def tokens_per_second(self) -> float:
        """Speed of the search."""
        return self.num_tokens / max(self.seconds, 1e-9)


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


class _Run:
    """A run of the job: it translates documents, prints their lines, and fills the result."""

    def __init__(self, settings: Settings, translator: Translator) -> None:
        # Make the attention report first: the model may not have such statistics.
        self.attention = AttentionReport(settings, translator)
        self.result = SplitTranslation()
        self._aligned: list[AlignedSentence] = []
        self._settings = settings
        self._translator = translator
        self._task = translator.task
        self._limit = source_limit(settings.model, translator)
        self._lines = LineFormat(self._task, settings.model, settings.search)
        self._banned = translator.sources.banned_terms(banning_request(settings))
        # Choose the windows for the whole split, then keep the shard. Windows before the shard are
        # only counted, for the numbers of the lines.
        self._split = self._task.load_split(settings.gen_subset)
        if settings.search.replace_unk is not None and self._split.raw_source is None:
            raise DataError(
                f"--replace-unk: {self._split.name}: the data folder has token ids only, so that "
                "unknown source words cannot be copied; leave it out, or translate the raw text "
                "with relu-nmt-interactive"
            )
        # Join sentences with --max-doc-tokens, or if data and model both have documents.
        trained = translator.max_doc_tokens
        has_both = self._split.documents is not None and trained != SINGLE_SENTENCES
        self._has_documents = settings.max_doc_tokens is not None or has_both
        if not self._has_documents:
            settings.check_sentences()
            trained = SINGLE_SENTENCES
        self._windows = settings.windows(trained, repair=False)
        self._config = settings.search.resolved(self._has_documents, workers=0)
        # References that are scored count toward the limit, too.
        self._counts_source_only = settings.count_source_only or not self._config.score_reference
        self._first = 0
        if settings.num_shards > 1:
            before, self._split = self._split.cut(settings.shard_id, settings.num_shards)
            if len(before):
                self._first = len(self._planned(before)[-1])
        self._scorer = None
        if self._split.target is not None and not self._config.score_reference:
            # Make the scorer now: an error in references or metric ends the run at its start.
            self._scorer = SplitScorer(self._task, self._split, settings.score)
        self._sizes, self._document_sizes, self._groups = self._planned(self._split)
        # Check the output files before the translation begins.
        for flag in ("output", "results"):
            check_writable(f"--{flag}", getattr(settings, flag))

    def _planned(self, split: Split) -> tuple[np.ndarray, np.ndarray, Groups]:
        """Return the tokens of each sentence, the sentences of each document, and the groups."""
        windows = self._windows
        # Without documents, each sentence is one.
        document_sizes = np.ones(len(split), dtype=np.int64)
        if self._has_documents:
            document_sizes = split.require_documents("--max-doc-tokens", windows.max_doc_tokens)
        target_sizes = None if self._counts_source_only else split.target_sizes
        sizes = longer_side(split.source_sizes, target_sizes)
        groups = plan_groups(sizes, document_sizes, windows.max_doc_tokens, windows.window_overlap)
        return sizes, document_sizes, groups

    def run(self, output: TextIO, progress: bool) -> None:
        """Translate everything, and print the lines."""
        self._out = output
        result = self.result
        note = self._over_long()
        unit = "sentences"
        if self._has_documents:
            unit = "groups"
            max_doc_tokens = self._windows.max_doc_tokens
            result.lengths = describe_lengths(self._groups, max_doc_tokens, keep_over_long=True)
        else:
            self._print(note)
        if self._settings.results is not None:
            self._warm_up()
        # Translate some documents at a time. Print their windows when these documents are done.
        label = f"translate {self._split.name}"
        with (
            hidden_progress(self._settings.no_progress_bar or not progress),
            progress_bar(label, len(self._groups), unit, shows_waiting=True) as advance,
        ):
            translator = self._translator.window_translator(self._config)
            translate = partial(translator, on_progress=advance)
            for numbers, counts in _parts(self._document_sizes):
                sources = self._sources(numbers, counts)
                # Measure the translation alone, without reading and printing.
                started = time.perf_counter()
                translated = self._translator.translate_sources(
                    sources, self._config, translate, self._first + len(result.groups)
                )
                result.seconds += time.perf_counter() - started
                self._add(translated)
        # Report no mismatches if groups cannot be divided, for lack of separators.
        if result.num_undivided and self._task.separators is None:
            result.num_mismatched = None
        self._score()
        self._summarize(note)

    def _warm_up(self) -> None:
        """Translate one sentence, so that loading and compiling do not count for the speed."""
        empty_size = 1 + (self._task.separators is not None)
        [numbers] = np.nonzero(self._split.source_sizes > empty_size)
        if len(numbers):
            first = range(numbers[0], numbers[0] + 1)
            sentence = self._sources(first, np.ones(1, dtype=np.int64))
            self._translator.translate_sources(sentence, self._config)

    def _over_long(self) -> str:
        """Return a note on sentences that are too long, or ""."""
        limit = self._limit
        if limit.most_tokens is None:
            return ""
        too_long = self._split.group_sizes(self._split.groups())[0] > limit.most_tokens
        number = int(too_long.sum())
        if not number:
            return ""
        if not (self._settings.skip_invalid_size_inputs_valid_test or limit.truncate):
            raise DataError(
                f"split {self._split.name}: sentence {int(too_long.argmax())} has more than the "
                f"{limit.most_tokens} tokens that the model can read, or of --max-source-length "
                f"({counted(number, 'such sentence')}); --skip-invalid-size-inputs-valid-test "
                "leaves them empty, --truncate-source cuts them"
            )
        note = f"NOTE: {counted(number, 'sentence')} of more than {limit.most_tokens} tokens"
        return f"{note} cut" if limit.truncate else f"{note} left empty"

    def _sources(self, numbers: range, counts: np.ndarray) -> SourceDocuments:
        """Return sentences with their references, as documents of ``counts`` sentences."""
        task = self._task
        # Only the raw source still has the unknown words.
        raw = None
        if self._config.replace_unk is not None:
            raw = self._split.raw_source
        sentences = []
        for i in numbers:
            ids, reference = self._split.pair(i)
            tokens = task.source_dictionary.symbols_of(ids)
            if raw is not None:
                tokens = task.source_text.encode(raw[i])
            # Cut or empty a sentence that is too long.
            sentence = SourceSentence(ids, tokens, reference, banned=self._banned)
            sentences.append(self._limit.applied(sentence))
        sizes = self._sizes[numbers.start : numbers.stop]
        return SourceDocuments(sentences, counts, sizes, task.separators, self._windows)

    def _add(self, translated: TranslatedDocuments) -> None:
        """Print the groups of some documents, and count them for the summary."""
        result = self.result
        self._aligned += aligned_sentences(translated, sum(result.counts))
        for group in translated.windows:
            if not self._settings.quiet:
                number = self._first + len(result.groups)
                tokens = self._task.source_dictionary.symbols_of(group.source.ids)
                lines = self._lines.source(number, group.source, tokens)
                for translation in group.translations:
                    lines += self._lines.hypothesis(number, translation)
                    lines += self.attention.lines(number, group.source, translation)
                self._print("\n".join(lines))
            best = group.translations[0]
            self.attention.add(group.source, best)
            result.groups.append(Line(best.text, best.tokens))
            result.counts.append(group.window.num_new)
            result.num_tokens += len(best.hypothesis.ids)
        result.num_mismatched = (result.num_mismatched or 0) + translated.num_mismatched
        result.num_undivided += translated.num_undivided
        result.num_at_limit += translated.num_at_limit
        if self._has_documents:
            result.documents += [lines.translations for lines in translated]

    def _print(self, text: str) -> None:
        if text:
            print(text, file=self._out)

    def _score(self) -> None:
        """Score the translations, if there are translations and references."""
        result = self.result
        scorer = self._scorer
        if scorer is None or not result.groups:
            return
        if not self._has_documents:
            name = "chrf" if self._settings.score.scoring == "chrf" else "bleu"
            result.scores[name] = scorer.score(result.groups)
            return
        # Documents have d-BLEU and, if sentences can be counted, s-BLEU.
        counts = np.array(result.counts)
        result.scores = scorer.document_scores(result.documents, result.groups, counts)
        # Leave out the score of sentences if groups were not divided.
        if result.num_mismatched is None:
            result.scores.pop("s_bleu", None)

    def _summarize(self, over_long: str) -> None:
        """Print the last lines, and write the files."""
        result = self.result
        split = self._split
        if self._has_documents:
            self._print(over_long)
        self._print(self._length_note())
        self._print("NOTE: hypothesis and token scores are output in base 2")
        if result.lengths is not None:
            self._print(f"{split.name}: {lengths_in_words(result.lengths)}")
            self._print(self._mismatch_line())
        self._print(limit_note(result.num_at_limit, self._config))
        # Print the speed as fairseq does.
        sentences = sum(result.counts)
        sentences_per_second = sentences / max(result.seconds, 1e-9)
        self._print(
            f"| Translated {sentences:,} sentences ({result.num_tokens:,} tokens) in "
            f"{result.seconds:.1f}s ({sentences_per_second:.2f} sentences/s, "
            f"{result.tokens_per_second:.2f} tokens/s)"
        )
        options = self._settings
        part = ""
        if options.num_shards > 1:
            part = f", shard {options.shard_id} of {options.num_shards},"
        beginning = f"Generate {split.name}{part} with beam={self._config.beam}"
        if result.scores and split.raw_target is None:
            self._print(
                "NOTE: the folder keeps no raw references; scored on its dictionary's tokens"
            )
        if self._scorer is not None and self._scorer.note and result.scores.keys() - {"chrf"}:
            self._print(f"NOTE: {self._scorer.note}")
        for score in result.scores.values():
            self._print(f"{beginning}: {score}")
        # Give the reason if the score of sentences is missing.
        cut = self._has_documents and result.num_mismatched is not None
        if cut and result.scores and "s_bleu" not in result.scores:
            reason = "no document has as many sentences as its reference"
            self._print(f"{beginning}: s-BLEU: none, {reason}")
        if options.output is not None:
            separator = options.output_separator
            text, notes = documents_text(result.documents, separator, options.output)
            write_output("--output", options.output, text)
            for note in notes:
                self._print(note)
        if options.results is not None:
            write_output("--results", options.results, json_text(self._results()))

    def _length_note(self) -> str:
        """Return a note on the length of the windows. "" for a model of sentences by default."""
        limit = self._settings.max_doc_tokens
        trained = self._translator.max_doc_tokens
        is_divided = self._split.documents is not None
        if limit is None and trained == SINGLE_SENTENCES and not is_divided:
            return ""
        return length_note(limit, trained, is_divided)

    def _mismatch_line(self) -> str:
        """Return the line that counts groups with another number of sentences."""
        result = self.result
        num_groups = len(result.groups)
        if result.num_mismatched is None:
            return (
                f"Groups: {num_groups:,}; the model was trained without --sentence-separator, so "
                f"that {result.num_undivided:,} of them are not cut into sentences"
            )
        wrong = share(result.num_mismatched, num_groups)
        return f"Groups: {num_groups:,}; mismatch of the number of sentences: {wrong}"

    def _results(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        result = self.result
        num_mismatched = result.num_mismatched
        num_groups = len(result.groups)
        scorer = self._scorer
        mismatch_rate = None
        if num_mismatched is not None:
            mismatch_rate = num_mismatched / max(1, num_groups)
        # Store null for scores that were not computed.
        scores: dict[str, dict[str, Any] | None] = dict.fromkeys(DOCUMENT_SCORES)
        for name, score in result.scores.items():
            scores[name] = {"score": score.value, "signature": score.signature}
        # Count n-grams by document, and score sentences by position.
        statistics = None
        by_position = None
        if scorer is not None and result.groups:
            statistics = scorer.document_statistics(result.documents).to_json()
            if num_mismatched is not None:
                by_position = scorer.scores_by_position(self._aligned)
        return {
            "split": self._split.name,
            "max_doc_tokens": self._windows.max_doc_tokens,
            "window_overlap": self._windows.window_overlap,
            "count_source_only": self._counts_source_only,
            "beam": self._config.beam,
            "documents": len(self._document_sizes),
            "sentences": len(self._split),
            "groups": num_groups,
            "tokens": result.num_tokens,
            "seconds": result.seconds,
            "tokens_per_second": result.tokens_per_second,
            "mismatches": num_mismatched,
            "mismatch_rate": mismatch_rate,
            "at_limit": result.num_at_limit,
            "memory_bytes": peak_resident_bytes(),
            "gpu_memory_bytes": peak_gpu_bytes(),
            **scores,
            "s_bleu_by_position": by_position,
            "lengths": result.lengths,
            "document_statistics": statistics,
        }


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


def documents_text(
    documents: Sequence[Sequence[Line]], separator: str, path: str
) -> tuple[str, list[str]]:
    """Return the documents as text, and notes on empty lines that the text leaves out."""
    lines = [[line.text for line in document] for document in documents]
    if separator == "tag":
        return "".join("\n".join([DOCUMENT_TAG, *texts, ""]) for texts in lines), []
    # Leave out empty lines, each of which would end the document.
    filled = [list(filter(str.strip, texts)) for texts in lines]
    num_lines = sum(map(len, lines))
    num_empty = num_lines - sum(map(len, filled))
    num_empty_documents = filled.count([])
    # Count a document that is one empty line as a document, not as a line.
    shares: list[str] = []
    if num_empty > num_empty_documents:
        shares.append(f"{share(num_empty, num_lines)} lines")
    if num_empty_documents:
        shares.append(f"{share(num_empty_documents, len(documents))} documents")
    ending = f"have an empty translation and are not in {path}; --output-separator tag keeps them"
    text = "\n".join("\n".join([*texts, ""]) for texts in filled if texts)
    return text, [f"NOTE: {part} {ending}" for part in shares]

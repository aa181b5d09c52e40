"""Translate a split of a data folder, sentence by sentence or as whole documents, and score it.

The model translates windows of consecutive sentences; single sentences are windows of one. Windows
are not repaired here, so that the scores measure the model's own output.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TextIO

import numpy as np

from relu_nmt.applications.analysis.statistics import AttentionStatistics, LayerStatistics
from relu_nmt.cli.generate import TranslateSplitSettings as Settings
from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.data.groups import (
    Groups,
    describe_lengths,
    lengths_in_words,
    longer_side,
    plan_groups,
)
from relu_nmt.data.split import Split
from relu_nmt.errors import DataError
from relu_nmt.evaluation.metrics import Score
from relu_nmt.evaluation.split_score import AlignedSentence, SplitScorer, aligned_sentences
from relu_nmt.io.safe_write import check_writable, replacing, write_file
from relu_nmt.io.work import hidden_progress, progress_bar
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.recipes.translation import (
    LineFormat,
    SplitTranslation,
    documents_text,
    length_note,
    limit_note,
    load_translator,
    source_limit,
)
from relu_nmt.training.results import peak_gpu_bytes, peak_resident_bytes
from relu_nmt.translation.attention_maps import checked_place, single_model
from relu_nmt.translation.search.document_search import TranslatedDocuments
from relu_nmt.translation.search.translations import (
    Line,
    SourceDocuments,
    SourceSentence,
    Translation,
)
from relu_nmt.translator import Translator

DOCUMENT_SCORES = ("d_bleu", "s_bleu", "group_bleu", "chrf")
MAX_SENTENCES = 50_000
"""Most sentences to read, sort by length and translate before the next ones."""


def run(settings: Settings, *, progress: bool = True) -> SplitTranslation:
    """Translate a split, print the lines and the scores, and write the requested files.

    Raises:
        ConfigError: the settings do not fit the model.
        CheckpointError: a checkpoint is missing or damaged.
        DataError: the split is missing, does not fit the model or has no document boundaries, or
            a file cannot be written.
    """
    translator = load_translator(settings.model, settings.data)
    # Make the statistics first, since they may not fit the model.
    attention = AttentionReport(settings, translator)
    with _output(settings, progress) as output:
        result = _SplitTranslator(translator, settings, attention, output).run(progress)
    # Measure attention last, so that it does not count for the speed.
    attention.write()
    return result


@contextmanager
def _output(settings: Settings, progress: bool) -> Iterator[TextIO]:
    """Open the results file, else standard output, else (without progress) the null device."""
    # Without a file, print to standard output or nowhere.
    path = settings.results_file
    if path is None:
        if progress:
            yield sys.stdout
            return
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield nowhere
        return
    folder = path.parent
    if os.path.lexists(folder) and not folder.is_dir():
        raise DataError(f"--results-path {folder}: is no folder; give the name of one")
    # Write to a temporary file, which replaces the old one at the end.
    check_writable("--results-path", str(path))
    try:
        with (
            replacing(path) as temporary,
            open(temporary, "w", encoding="utf-8", newline="\n") as lines,
        ):
            yield lines
    except OSError as error:
        raise DataError(f"--results-path {path}: cannot write it: {error.strerror}") from error
    if progress:
        print(f"results: {path}")


class AttentionReport:
    """Prints attention weights, and measures attention and memories for the options' files.

    Raises:
        ConfigError: several models, or a mechanism without weights, or a network without a memory.
        DataError: a file's folder cannot be made.
    """

    def __init__(self, options: Settings, translator: Translator) -> None:
        self._translator = translator
        self._subset = options.gen_subset
        self._place = None
        self._files: list[tuple[str, str, AttentionStatistics | LayerStatistics]] = []
        self._sources: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []
        if options.print_attention is not None:
            place = AttentionPlace.parse(options.print_attention)
            self._place = checked_place(single_model(translator.ensemble), place)
        # Make the statistics now: models without weights or memories are an error at the start.
        for flag, path, statistics in (
            ("--attention-stats", options.attention_stats, AttentionStatistics),
            ("--memory-stats", options.memory_stats, partial(LayerStatistics, memories_only=True)),
        ):
            if path is not None:
                self._files.append((flag, path, statistics(translator.ensemble)))
                check_writable(flag, path)

    def lines(self, number: int, source: SourceSentence, translation: Translation) -> list[str]:
        """Return the ``A-`` line of a translation, with ``--print-attention``."""
        if self._place is None:
            return []
        found = self._translator.attention_at(self._place, source, translation.hypothesis.tokens)
        return [f"A-{number}\t{found.to_json()}"]

    def add(
        self, sources: Sequence[SourceSentence], found: Sequence[Sequence[Translation]]
    ) -> None:
        """Keep sentences with words, and their references or else their best translations."""
        if not self._files:
            return
        for source, (best, *_) in zip(sources, found, strict=True):
            if len(source.ids) > 1:  # the model does not read empty sentences
                self._sources.append(source.ids)
                given = source.reference
                self._targets.append(best.hypothesis.tokens if given is None else given)

    def write(self) -> None:
        """Measure attention and memories, and write the files, each whole or not at all.

        This comes last, so that the measured time and memory are those of the translation.
        """
        for flag, path, statistics in self._files:
            statistics.add(self._sources, self._targets)
            report = {"subset": self._subset, **statistics.report()}
            write_file(flag, path, json.dumps(report, indent=1) + "\n")


class _SplitTranslator:
    """Translates a split, and prints the lines of each group."""

    def __init__(
        self, translator: Translator, settings: Settings, attention: AttentionReport, output: TextIO
    ) -> None:
        self._translator = translator
        self._task = translator.task
        self._settings = settings
        self._attention = attention
        self._limit = source_limit(settings.model, translator)
        self._out = output
        joined = settings.model.post_process is not None
        self._lines = LineFormat(self._task, joined, settings.search.print_alignment is not None)
        self._split = self._task.load_split(settings.gen_subset)
        self._note = self._choose_length()
        self._config = settings.search.resolved(self._has_documents, workers=0)
        # Keep the shard; the windows before it only count for the numbers of the lines.
        before, num_shards = None, settings.num_shards
        if num_shards > 1:
            before, self._split = self._split.cut(settings.shard_id, num_shards)
        self._scorer = None
        if self._split.target is not None and not self._config.score_reference:
            # Make the scorer now: an error in references or metric ends the run at its start.
            self._scorer = SplitScorer(self._task, self._split, settings.score)
        if self._has_documents:
            length = self._windows.max_doc_tokens
            self._counts = self._split.require_documents("--max-doc-tokens", length)
        else:  # each sentence is a document
            self._counts = np.ones(len(self._split), dtype=np.int64)
        self._sizes = self._sizes_of(self._split)
        self._found = SplitTranslation()
        self._aligned: list[AlignedSentence] = []
        self._first = 0 if before is None else self._num_windows(before)
        # Check the output files before the translation begins.
        for flag in ("output", "results"):
            check_writable(f"--{flag}", getattr(settings, flag))

    def _choose_length(self) -> str:
        """Choose the windows, and return a note on their length."""
        options, trained = self._settings, self._translator.max_doc_tokens
        asked, is_divided = options.max_doc_tokens, self._split.has_documents
        # Join sentences if asked, or if data and model both have documents.
        self._has_documents = asked is not None or (is_divided and trained != SINGLE_SENTENCES)
        if not self._has_documents:
            options.check_sentences()
        self._windows = options.windows(trained, has_documents=self._has_documents, repair=False)
        if asked is None and trained == SINGLE_SENTENCES and not is_divided:
            return ""  # sentences of a model of sentences
        return length_note(asked, trained, is_divided)

    def _sizes_of(self, split: Split) -> np.ndarray:
        """Return the tokens of each sentence that count towards the window's limit, int [N]."""
        by_source = self._settings.count_source_only
        return longer_side(split.source_sizes, None if by_source else split.target_sizes)

    def _num_windows(self, split: Split) -> int:
        """Return the number of windows in a part of the split."""
        if not self._has_documents or not len(split):
            return len(split)
        counts = split.require_documents("--max-doc-tokens", self._windows.max_doc_tokens)
        return len(self._plan(self._sizes_of(split), counts))

    def _plan(self, sizes: np.ndarray, counts: np.ndarray) -> Groups:
        limits = self._windows.max_doc_tokens, self._windows.window_overlap
        return plan_groups(sizes, counts, *limits)

    def run(self, progress: bool) -> SplitTranslation:
        """Translate everything."""
        split, found, note = self._split, self._found, self._over_long()
        # Plan the windows, to show their number and lengths.
        num_windows, unit = len(split), "sentences"
        if self._has_documents:
            groups = self._plan(self._sizes, self._counts)
            num_windows, unit = len(groups), "groups"
            max_doc_tokens = self._windows.max_doc_tokens
            found.lengths = describe_lengths(groups, max_doc_tokens, keep_over_long=True)
        else:
            self._print(note)
        if self._settings.results is not None:
            self._warm_up()
        # Translate some documents at a time, and print each window when its documents are done.
        hidden = self._settings.no_progress_bar or not progress
        label = f"translate {split.name}"
        with (
            hidden_progress(hidden),
            progress_bar(label, num_windows, unit, shows_waiting=True) as advance,
        ):
            for documents, numbers in _document_ranges(self._counts):
                counts = self._counts[documents.start : documents.stop]
                sources = self._documents(numbers, counts)
                # Measure the translation alone, without reading and printing.
                started = time.perf_counter()
                first_id = self._first + len(found.groups)
                translated = self._translator.answer(
                    sources, self._config, self._windows, first_id, advance
                )
                found.seconds += time.perf_counter() - started
                self._take(translated)
        # Report no mismatches if groups cannot be divided without separators.
        if found.num_undivided and self._task.separators is None:
            found.num_mismatched = None
        self._score()
        self._summarise(note)
        return found

    def _warm_up(self) -> None:
        """Translate one sentence, so that loading and compiling do not count for the speed."""
        for number in range(len(self._split)):
            if self._split.source_sizes[number] > 1 + self._task.has_sentence_separator:
                one = self._documents(range(number, number + 1), np.ones(1, dtype=np.int64))
                self._translator.answer(one, self._config, self._windows)
                return

    def _documents(self, numbers: range, counts: np.ndarray) -> SourceDocuments:
        """Return sentences as documents of ``counts`` sentences."""
        sizes = self._sizes[numbers.start : numbers.stop]
        return SourceDocuments(self._read(numbers), counts, sizes, self._task.separators)

    def _over_long(self) -> str:
        """Return a note on sentences that are too long, or ""."""
        # Find the sentences above the limit, and treat them as the flags say.
        limit, sizes = self._limit, self._split.source_sizes
        too_long = sizes > (np.inf if limit.tokens is None else limit.tokens)
        number = int(too_long.sum())
        skip = self._settings.skip_invalid_size_inputs_valid_test
        if number and not skip and not limit.truncate:
            raise DataError(
                f"split {self._split.name}: sentence {int(too_long.argmax())} has more than the "
                f"{limit.tokens} tokens that the model can read, or of --max-source-length "
                f"({number} such sentences); --skip-invalid-size-inputs-valid-test leaves them "
                "empty, --truncate-source cuts them"
            )
        done = "are cut" if limit.truncate else "stay empty"
        return f"NOTE: {number} sentences of more than {limit.tokens} tokens {done}" * bool(number)

    def _read(self, numbers: range) -> list[SourceSentence]:
        """Return sentences with their references; those that are too long are cut or empty."""
        task = self._task
        # Only the raw source still has the unknown words.
        raw = self._split.raw_source if self._config.replace_unk is not None else None
        sentences = []
        for i in numbers:
            ids, reference = self._split.pair(i)
            tokens = task.source_dictionary.symbols_of(ids)
            if raw is not None:
                tokens = task.source_text.encode(raw[i])
            sentences.append(self._limit.applied(SourceSentence(ids, tokens, reference)))
        return sentences

    def _take(self, translated: TranslatedDocuments) -> None:
        """Print the groups of some documents, and count them for the summary."""
        found = self._found
        # Print the lines of each window.
        self._aligned += aligned_sentences(translated, sum(found.counts))
        for own in translated.windows:
            if not self._settings.quiet:
                number = self._first + len(found.groups)
                lines = self._lines.of_split(number, own.source)
                for translation in own.translations:
                    lines += self._lines.hypothesis(number, translation)
                    lines += self._attention.lines(number, own.source, translation)
                self._print("\n".join(lines))
            # Keep the best translation.
            best = own.translations[0]
            found.groups.append(Line(best.text, best.tokens))
            found.counts.append(own.window.num_new)
            found.num_tokens += len(best.hypothesis.tokens)
        # Add up the counts.
        found.num_mismatched = (found.num_mismatched or 0) + translated.num_mismatched
        found.num_undivided += translated.num_undivided
        found.num_at_limit += translated.num_at_limit
        if self._has_documents:
            found.documents += translated.lines
        windows = translated.windows
        self._attention.add([own.source for own in windows], [own.translations for own in windows])

    def _print(self, text: str) -> None:
        if text:
            print(text, file=self._out)

    def _score(self) -> None:
        """Score the translations, if there are translations and references."""
        found, scorer = self._found, self._scorer
        if scorer is None or not found.groups:
            return
        if not self._has_documents:
            name = "chrf" if self._settings.score.scoring == "chrf" else "bleu"
            found.scores = {name: scorer.score(found.groups)}
            return
        # Documents have d-BLEU and, if sentences can be counted, s-BLEU.
        counts = np.array(found.counts)
        found.scores = scorer.document_scores(found.documents, found.groups, counts)
        # Leave out the score of sentences if groups were not divided.
        if found.num_mismatched is None:
            found.scores.pop("s_bleu", None)
        if self._settings.results is not None:
            found.statistics = scorer.document_statistics(found.documents)
            if found.num_mismatched is not None:
                found.by_position = scorer.position_scores(self._aligned)

    def _summarise(self, over_long: str) -> None:
        """Print the last lines, and write the files."""
        split, found = self._split, self._found
        if self._has_documents:
            self._print(over_long)
        self._print(self._note)
        self._print("NOTE: hypothesis and token scores are output in base 2")
        if found.lengths is not None:
            self._print(f"{split.name}: {lengths_in_words(found.lengths)}")
            self._print(found.mismatch_line())
        self._print(limit_note(found.num_at_limit, self._config))
        self._print(found.speed_line())
        # Print the scores.
        options = self._settings
        part = f", shard {options.shard_id} of {options.num_shards}," * (options.num_shards > 1)
        beginning = f"Generate {split.name}{part} with beam={self._config.beam}"
        if found.scores and split.raw_target is None:
            self._print(
                "NOTE: the folder keeps no raw references; scored on its dictionary's tokens"
            )
        if self._scorer is not None and self._scorer.note and found.scores.keys() - {"chrf"}:
            self._print(f"NOTE: {self._scorer.note}")
        for score in found.scores.values():
            self._print(f"{beginning}: {score}")
        # Give the reason if the score of sentences is missing.
        cut = self._has_documents and found.num_mismatched is not None
        if cut and found.scores and "s_bleu" not in found.scores:
            reason = "no document has as many sentences as its reference"
            self._print(f"{beginning}: s-BLEU: none, {reason}")
        # Write the files.
        files = self._settings
        if files.output is not None:
            text, notes = documents_text(found.documents, files.output_separator, files.output)
            write_file("--output", files.output, text)
            for note in notes:
                self._print(note)
        if files.results is not None:
            text = json.dumps(self._results(), indent=1) + "\n"
            write_file("--results", files.results, text)

    def _results(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        found, wrong, num_groups = self._found, self._found.num_mismatched, len(self._found.groups)
        return {
            "split": self._split.name,
            "max_doc_tokens": self._windows.max_doc_tokens,
            "window_overlap": self._windows.window_overlap,
            "count_source_only": self._settings.count_source_only,
            "beam": self._config.beam,
            "documents": len(self._counts),
            "sentences": len(self._split),
            "groups": num_groups,
            "tokens": found.num_tokens,
            "seconds": found.seconds,
            "tokens_per_second": found.tokens_per_second,
            "mismatches": wrong,
            "mismatch_rate": None if wrong is None else wrong / max(1, num_groups),
            "at_limit": found.num_at_limit,
            "memory_bytes": peak_resident_bytes(),
            "gpu_memory_bytes": peak_gpu_bytes(),
            # Store null for scores that were not computed.
            **{name: _values(found.scores.get(name)) for name in DOCUMENT_SCORES},
            "s_bleu_by_position": found.by_position,
            "lengths": found.lengths,
            "document_statistics": found.statistics and found.statistics.to_json(),
        }


def _document_ranges(counts: np.ndarray) -> Iterator[tuple[range, range]]:
    """Yield ranges of documents and of their sentences, to read together."""
    begin, first, last = 0, 0, 0
    for number, count in enumerate(counts.tolist()):
        last += count
        if last - first >= MAX_SENTENCES or number == len(counts) - 1:
            yield range(begin, number + 1), range(first, last)
            begin, first = number + 1, last


def _values(score: Score | None) -> dict[str, Any] | None:
    return None if score is None else {"score": score.value, "signature": score.signature}

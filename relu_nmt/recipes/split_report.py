"""Results of translating a split: translations and scores, text of documents, attention."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relu_nmt.applications.analysis.statistics import AttentionStatistics, MemoryStatistics
from relu_nmt.cli.generate import TranslateSplitSettings
from relu_nmt.data.documents import DOCUMENT_TAG
from relu_nmt.evaluation.metrics import Score
from relu_nmt.evaluation.significance import SegmentStatistics
from relu_nmt.io.safe_write import check_writable, write_file
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.recipes.translation import share
from relu_nmt.translation.attention_maps import checked_place, single_model
from relu_nmt.translation.search.translations import Line, SourceSentence, Translation
from relu_nmt.translator import Translator


@dataclass
class SplitTranslation:
    """The translations of a split.

    Args:
        groups: the translation of each sentence, or of each group of sentences, in order.
        counts: sentences of each group.
        documents: lines of each document, if documents are translated: one for each sentence, or
            one for a group whose translation has another number of sentences.
        num_tokens: target tokens of the best translations, ``</s>`` included.
        seconds: time of the search; with ``--results`` without loading and compiling.
        num_at_limit: groups whose translation reached the longest output and may be cut off.
        num_mismatched: groups with another number of sentences; None if the model has no
            separators, so that sentences cannot be counted.
        num_undivided: groups of several sentences that became one line.
        scores: all scores, the main one first: ``bleu`` or ``chrf`` of sentences, or
            :meth:`relu_nmt.evaluation.split_score.SplitScorer.document_scores`.
        statistics: d-BLEU statistics of each document, for ``--results`` only.
        by_position: s-BLEU by position (:meth:`SplitScorer.position_scores`), likewise.
        lengths: lengths of the groups (:func:`relu_nmt.data.groups.describe_lengths`).
    """

    groups: list[Line] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    documents: list[list[Line]] = field(default_factory=list)
    num_tokens: int = 0
    seconds: float = 0.0
    num_at_limit: int = 0
    num_mismatched: int | None = 0
    num_undivided: int = 0
    scores: dict[str, Score] = field(default_factory=dict)
    statistics: SegmentStatistics | None = None
    by_position: dict[str, Any] | None = None
    lengths: dict[str, Any] | None = None

    @property
    def tokens_per_second(self) -> float:
        """Speed of the search."""
        return self.num_tokens / max(self.seconds, 1e-9)

    @property
    def score(self) -> Score | None:
        """The main score; None without references."""
        return next(iter(self.scores.values()), None)

    def speed_line(self) -> str:
        """Return fairseq's line about the speed."""
        sentences, seconds = sum(self.counts), max(self.seconds, 1e-9)
        return (
            f"| Translated {sentences:,} sentences ({self.num_tokens:,} tokens) in "
            f"{self.seconds:.1f}s ({sentences / seconds:.2f} sentences/s, "
            f"{self.tokens_per_second:.2f} tokens/s)"
        )

    def mismatch_line(self) -> str:
        """Return the line that counts groups with another number of sentences."""
        num_groups = len(self.groups)
        if self.num_mismatched is None:
            return (
                f"Groups: {num_groups:,}; the model was trained without --sentence-separator, so "
                f"that {self.num_undivided:,} of them are not cut into sentences"
            )
        wrong = share(self.num_mismatched, num_groups)
        return f"Groups: {num_groups:,}; mismatch of the number of sentences: {wrong}"


def documents_text(
    documents: Sequence[Sequence[Line]], separator: str, path: str
) -> tuple[str, list[str]]:
    """Return the documents as text, and notes on empty lines that the text leaves out."""
    texts = [[line.text for line in lines] for lines in documents]
    if separator == "tag":
        return "".join(f"{line}\n" for own in texts for line in (DOCUMENT_TAG, *own)), []
    # Leave out empty lines: each would end the document.
    filled = [[text for text in own if text.strip()] for own in texts]
    text = "\n".join("".join(f"{line}\n" for line in own) for own in filled if own)
    empty = sum(not own for own in filled)
    num_lines = sum(map(len, texts))
    left_out = num_lines - sum(map(len, filled))
    # Count a document that is one empty line as a document, not as a line.
    counted = [(left_out, num_lines, "lines")] if left_out > empty else []
    counted += [(empty, len(filled), "documents")] if empty else []
    return text, [
        f"NOTE: {share(number, total)} {unit} have an empty translation and are not in {path}; "
        "--output-separator tag keeps them"
        for number, total, unit in counted
    ]


class AttentionReport:
    """Prints attention weights, and measures attention and memories for the options' files.

    Raises:
        ConfigError: several models, or a mechanism without weights, or a network without a memory.
        DataError: a file's folder cannot be made.
    """

    def __init__(self, options: TranslateSplitSettings, translator: Translator) -> None:
        self._translator = translator
        self._subset = options.gen_subset
        self._place = None
        self._files: list[tuple[str, str, AttentionStatistics | MemoryStatistics]] = []
        self._sources: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []
        if options.print_attention is not None:
            place = AttentionPlace.parse(options.print_attention)
            self._place = checked_place(single_model(translator.ensemble), place)
        # Make the statistics now: models without weights or memories are an error at the start.
        for flag, path, statistics in (
            ("--attention-stats", options.attention_stats, AttentionStatistics),
            ("--memory-stats", options.memory_stats, MemoryStatistics),
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

"""Scores of translations of a split of a data folder against its references."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.data.split import Split
from relu_nmt.evaluation.document_scores import (
    DEFAULT_POSITIONS,
    AlignedDocuments,
    bucket_scores,
    cut_by_counts,
    join_lines,
    position_buckets,
)
from relu_nmt.evaluation.metrics import (
    COMPOUND,
    WITH_SPACES,
    Metric,
    Score,
    ScoringConfig,
    choose_tokenizer,
)
from relu_nmt.evaluation.significance import SegmentStatistics
from relu_nmt.translation.search.translations import Line
from relu_nmt.translation.task import ESCAPED_UNK, TranslationTask

AlignedSentence = tuple[int, int, Line]
"""A sentence whose translation is a separate line: its number in the split (from 0), its position
in its window with context (from 1), and the translation."""


class SplitScorer:
    """Comparison of translations of a split with its references.

    References are raw text if the folder keeps it. Otherwise both sides are compared as symbols of
    the dictionary, with ``tok:none``, unless the task detokenizes them or the language has no
    spaces. ``--scoring bleu`` and ``compound-bleu`` compare words. ``note`` is a line about the
    tokenizer.
    """

    def __init__(self, task: TranslationTask, split: Split, config: ScoringConfig) -> None:
        pipeline = task.target_text
        self.note = ""
        self._task = task
        self._split = split
        # Ignore case where the data was lower-cased, unless set.
        lowercase = config.sacrebleu_lowercase
        if lowercase is None:
            lowercase = pipeline.lowercase
        self._chrf = Metric("chrf", lowercase)
        # The form of translations in which they are compared with the references.
        self._form: Callable[[Line], str] = attrgetter("text")
        self._compares_words = config.scoring in ("bleu", "compound-bleu")
        if self._compares_words:
            self._references = self._reference_words()
            self._form = lambda line: " ".join(pipeline.join_words(line.tokens))
            self._bleu = Metric("bleu", lowercase, "none", smooth="none")
            if config.scoring == "compound-bleu":
                self._bleu = replace(self._bleu, tokenize=COMPOUND)
        else:
            self._references = task.references(split)
            tokenize = config.sacrebleu_tokenizer or self._choose_tokenizer()
            self._bleu = Metric("bleu", lowercase, tokenize)
        self._bleu.build()  # report a bad tokenizer before the translation starts
        self._metric = self._bleu
        if config.scoring == "chrf":
            self._metric = self._chrf

    @property
    def signature(self) -> str:
        """The signature of the scores of single sentences."""
        return self._metric.signature

    def _reference_words(self) -> list[str]:
        """Return the references as words between spaces."""
        pipeline = self._task.target_text
        # Encode raw text and join it, so that text that arrived in pieces is joined too.
        if self._split.raw_target is not None:
            references = map(pipeline.encode, self._split.raw_target)
        else:
            symbols_of = partial(self._task.target_dictionary.symbols_of, unk=ESCAPED_UNK)
            references = map(symbols_of, self._split.targets())
        return [" ".join(pipeline.join_words(tokens)) for tokens in references]

    def _choose_tokenizer(self) -> str:
        """Return the tokenizer for the target language. Set :attr:`note`."""
        pipeline = self._task.target_text
        name, note = choose_tokenizer(pipeline.language, self._references)
        # Keep the words of tokenized text, which no step detokenizes.
        if name in WITH_SPACES and pipeline.keeps_text and pipeline.detokenizer == "none":
            return "none"
        self.note = note
        return name

    def score(
        self,
        lines: Sequence[Line],
        counts: np.ndarray | None = None,
        metric: Metric | None = None,
    ) -> Score:
        """Return the score of all lines. Lines that are groups have ``counts`` sentences."""
        references = self._references
        if counts is not None:
            cut = cut_by_counts(references, counts, self._split.name)
            references = join_lines(cut, self._task.target_lang)
        return (metric or self._metric).score(list(map(self._form, lines)), [references])

    def segment_statistics(
        self, texts: Sequence[str], segments: Sequence[Sequence[int]]
    ) -> SegmentStatistics:
        """Return the counts of texts, each a translation of the sentences numbered in a segment."""
        lines = self._references
        references = [[lines[number] for number in numbers] for numbers in segments]
        language = self._task.target_lang
        joined = join_lines([[text] for text in texts], language)
        return SegmentStatistics.of(self._metric, joined, [join_lines(references, language)])

    def document_scores(
        self, documents: Sequence[Sequence[Line]], groups: Sequence[Line], counts: np.ndarray
    ) -> dict[str, Score]:
        """Return the scores of the split's documents, by name.

        A line of a document is a sentence, or a group that could not be cut into sentences.
        ``groups`` has the translation of each group of ``counts`` sentences. Segments are documents
        in ``d_bleu``, groups in ``group_bleu``, and sentences in ``s_bleu``, where a mismatched
        document stays one segment. ``chrf`` is d-chrF2 of raw text.
        """
        aligned = raw = self._aligned(documents, self._form, self._references)
        # Take raw text for chrF, even where BLEU compares words.
        if self._compares_words:
            references = self._task.references(self._split)
            raw = self._aligned(documents, attrgetter("text"), references)
        scores = {"d_bleu": aligned.document_score(self._bleu)}
        sentence_score = aligned.sentence_score(self._bleu)
        if sentence_score is not None:
            scores["s_bleu"] = sentence_score
        group_score = self.score(groups, counts, self._bleu)
        scores["group_bleu"] = group_score.labeled("group ", f"groups = {len(groups)}")
        scores["chrf"] = raw.document_score(self._chrf)
        return scores

    def document_statistics(self, documents: Sequence[Sequence[Line]]) -> SegmentStatistics:
        """Return the statistics of ``d_bleu``, with the documents as segments."""
        aligned = self._aligned(documents, self._form, self._references)
        hypotheses, references = aligned.documents
        return SegmentStatistics.of(self._bleu, hypotheses, [references])

    def scores_by_position(self, sentences: Sequence[AlignedSentence]) -> dict[str, Any]:
        """Return BLEU by bucket of ``position`` (in the document) and ``group position``.

        Positions in the document do not depend on the groups. The position in the group says how
        much text was translated before. In the literature quality falls with it.
        """
        counts = self._split.require_documents("a score of documents", SINGLE_SENTENCES)
        in_document: list[int] = []
        for count in counts:
            in_document += range(1, count + 1)
        lines = []
        references = []
        positions: dict[str, list[int]] = {"position": [], "group position": []}
        for number, position, line in sentences:
            lines.append(line)
            references.append(self._references[number])
            positions["position"].append(in_document[number])
            positions["group position"].append(position)
        hypotheses = list(map(self._form, lines))
        values: dict[str, Any] = {}
        for name, numbers in positions.items():
            buckets = position_buckets(numbers, DEFAULT_POSITIONS)
            scores = bucket_scores(self._bleu, buckets, hypotheses, [references])
            for bucket, size, score in scores:
                values.setdefault(name, {})[bucket] = {
                    "sentences": size,
                    "score": None if score is None else score.value,
                    "signature": None if score is None else score.signature,
                }
        return values

    def _aligned(
        self,
        documents: Sequence[Sequence[Line]],
        form: Callable[[Line], str],
        references: Sequence[str],
    ) -> AlignedDocuments:
        """Return translations in a form, and references, by document."""
        hypotheses = [list(map(form, lines)) for lines in documents]
        # Boundaries are known if groups were translated.
        counts = self._split.require_documents("a score of documents", SINGLE_SENTENCES)
        reference_documents = cut_by_counts(references, counts, self._split.name)
        return AlignedDocuments(hypotheses, [reference_documents], self._task.target_lang)

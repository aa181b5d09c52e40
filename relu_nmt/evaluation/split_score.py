"""The scores of translations of one split of a data folder: of sentences, groups and documents.

A segment is a group of consecutive sentences, compared with the joined references of these; a
sentence is a group of one, a document a group of all its sentences.
"""

from collections.abc import Sequence

import numpy as np

from relu_nmt.corpus.translation import ESCAPED_UNK, TranslationTask
from relu_nmt.data.split import Split
from relu_nmt.decoding.translations import Line
from relu_nmt.evaluation.bleu import MetricConfig, Score
from relu_nmt.evaluation.config import ScoringConfig
from relu_nmt.evaluation.document_scores import (
    align_sentences,
    cut_by_counts,
    document_score,
    join_lines,
    sentence_score,
)
from relu_nmt.evaluation.significance import SegmentStatistics


class SplitScorer:
    """Compares translations of a split with its references.

    The references are the raw ones where the folder keeps them. A folder that fairseq-preprocess
    made has only token ids: translations and references are then compared as they come out
    of the dictionary, with ``tok:none``, unless the task detokenises them. ``--scoring bleu``
    compares words of the tokeniser, subwords joined.

    Args:
        task: tokenisation and dictionaries.
        split: ``valid``, ``test``...
        config: metric and its settings.

    Raises:
        DataError: the split has no references.
    """

    def __init__(self, task: TranslationTask, split: Split, config: ScoringConfig) -> None:
        pipeline = task.target_text
        self._task = task
        self._split = split
        self._tokenised = config.scoring == "bleu"
        lowercase = config.sacrebleu_lowercase
        if lowercase is None:
            lowercase = pipeline.lowercase
        prepared = pipeline.keeps_text and pipeline.detokenizer == "none"
        tokenize = config.sacrebleu_tokenizer or ("none" if prepared else "13a")
        self._chrf = MetricConfig("chrf", lowercase)
        self._bleu = MetricConfig("bleu", lowercase, tokenize)
        if self._tokenised:
            self._bleu = MetricConfig("bleu", lowercase, "none", smooth="none")
        self._metric = self._chrf if config.scoring == "chrf" else self._bleu
        self._references = (
            self._tokenised_references() if self._tokenised else task.references(split)
        )

    def score(self, lines: Sequence[Line], counts: np.ndarray | None = None) -> Score:
        """Return the score of the translations of the whole split, one segment per line.

        Args:
            lines: the translations.
            counts: sentences of each line, int [lines], where lines are groups or whole documents;
                None: each is one sentence.

        Raises:
            DataError: there are not as many references.
        """
        return self._score(self._metric, lines, counts)

    def _score(
        self, metric: MetricConfig, lines: Sequence[Line], counts: np.ndarray | None
    ) -> Score:
        references = self._references
        if counts is not None:
            references = join_lines(cut_by_counts(references, counts, self._split.name))
        return metric.score([self._shown(line) for line in lines], [references])

    def document_scores(
        self, documents: Sequence[Sequence[Line]], groups: Sequence[Line], counts: np.ndarray
    ) -> dict[str, Score]:
        """Return the scores of the split's documents, by name.

        Args:
            documents: the lines of each document; a line is a sentence, or a group that could not
                be cut into sentences.
            groups: the translation of each group.
            counts: sentences of each group, int [groups].

        Returns:
            ``d_bleu``, one segment per document; ``s_bleu``, one per sentence, where documents
            with other numbers of lines are one segment each (absent if all are); ``group_bleu``,
            one per group, so that its references depend on the groups; ``chrf``, that is d-chrF2
            of raw text.

        Raises:
            DataError: there are no document boundaries.
        """
        shown, references = self._by_document(documents)
        texts = [[text for text, _ in lines] for lines in documents]
        raw = references
        if self._tokenised:
            raw = self._cut(self._task.references(self._split))
        scores = {
            "d_bleu": document_score(self._bleu, shown, [references]),
            "s_bleu": sentence_score(self._bleu, align_sentences(shown, [references])),
            "group_bleu": self._score(self._bleu, groups, counts).labelled(
                "group ", f"groups = {len(groups)}"
            ),
            "chrf": document_score(self._chrf, texts, [raw]),
        }
        return {name: score for name, score in scores.items() if score is not None}

    def document_statistics(self, documents: Sequence[Sequence[Line]]) -> SegmentStatistics:
        """Return what ``d_bleu`` adds up, by document; see :meth:`document_scores`."""
        shown, references = self._by_document(documents)
        return SegmentStatistics.of(self._bleu, join_lines(shown), [join_lines(references)])

    def _by_document(
        self, documents: Sequence[Sequence[Line]]
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Return translations and references as they are compared."""
        shown = [[self._shown(line) for line in document] for document in documents]
        return shown, self._cut(self._references)

    def _cut(self, references: Sequence[str]) -> list[list[str]]:
        counts = self._split.require_documents("a score of documents")
        return cut_by_counts(references, counts, self._split.name)

    def _shown(self, line: Line) -> str:
        """Return a translation as it is compared."""
        text, tokens = line
        return " ".join(self._task.target_text.join_words(tokens)) if self._tokenised else text

    def _tokenised_references(self) -> list[str]:
        raw, pipeline = self._split.raw_target, self._task.target_text
        if raw is not None:
            # Through the subword model and back, so that text that came segmented is joined too.
            return [" ".join(pipeline.join_words(pipeline.encode(line))) for line in raw]
        targets = self._split.targets()
        lines = (self._task.target_tokens(ids, ESCAPED_UNK) for ids in targets)
        return [" ".join(pipeline.join_words(line.split())) for line in lines]

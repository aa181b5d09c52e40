"""The scores of translations of one split of a data folder: of sentences, groups and documents.

A segment is a group of consecutive sentences, compared with the joined references of these; a
sentence is a group of one, a document a group of all its sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class SplitMetric:
    """What the translations of a split are compared with, and how.

    Args:
        metric: metric and its settings.
        references: the reference of each sentence.
        tokenised: translations are compared as words of the tokeniser, subwords joined, not as
            raw text.
        task: for the way from tokens to words.
    """

    metric: MetricConfig
    references: list[str]
    tokenised: bool
    task: TranslationTask

    def shown(self, line: Line) -> str:
        """Return a translation as it is compared."""
        text, tokens = line
        return " ".join(self.task.target_text.join_words(tokens)) if self.tokenised else text

    def score(
        self, lines: Sequence[Line], counts: Sequence[int] | np.ndarray | None, split: Split
    ) -> Score:
        """Return the score with one segment per line, see :func:`score_split`."""
        references = self.references
        if counts is not None:
            references = join_lines(cut_by_counts(references, counts, split.name))
        return self.metric.score([self.shown(line) for line in lines], [references])


def split_metric(task: TranslationTask, split: Split, config: ScoringConfig) -> SplitMetric:
    """Return how translations of a split are scored.

    The references are the raw ones where the folder keeps them. A folder that fairseq-preprocess
    made has only token ids: translations and references are then compared as they come out
    of the dictionary, with ``tok:none``, unless the task detokenises them.

    Args:
        task: tokenisation and dictionaries.
        split: ``valid``, ``test``...
        config: metric and its settings.

    Raises:
        DataError: the split has no references.
    """
    pipeline = task.target_text
    lowercase = config.sacrebleu_lowercase
    if lowercase is None:
        lowercase = pipeline.lowercase
    if config.scoring == "bleu":
        metric = MetricConfig("bleu", lowercase, "none", smooth="none")
        return SplitMetric(metric, _tokenised_references(task, split), True, task)
    references = task.references(split)
    if config.scoring == "chrf":
        return SplitMetric(MetricConfig("chrf", lowercase), references, False, task)
    prepared = pipeline.keeps_text and pipeline.detokenizer == "none"
    tokenize = config.sacrebleu_tokenizer or ("none" if prepared else "13a")
    return SplitMetric(MetricConfig("bleu", lowercase, tokenize), references, False, task)


def score_split(
    task: TranslationTask,
    split: Split,
    lines: Sequence[Line],
    config: ScoringConfig,
    counts: np.ndarray | None = None,
) -> Score:
    """Return the score of the translations of a whole split, one segment per line.

    Args:
        task: tokenisation and dictionaries.
        split: ``valid``, ``test``...
        lines: the translations.
        config: metric and its settings, see :func:`split_metric`.
        counts: sentences of each line, int [lines], where lines are groups or whole documents;
            None: each is one sentence.

    Raises:
        DataError: the split has no references, or not as many.
    """
    return split_metric(task, split, config).score(lines, counts, split)


@dataclass(frozen=True)
class DocumentScores:
    """Scores of documents.

    Args:
        d_bleu: one segment per document.
        s_bleu: one per sentence; documents with other numbers of lines are one segment each. None
            if all are.
        group_bleu: one per group; its references depend on the groups.
        chrf: d-chrF2, one segment per document.
        statistics: what ``d_bleu`` adds up, by document.
    """

    d_bleu: Score
    s_bleu: Score | None
    group_bleu: Score
    chrf: Score
    statistics: SegmentStatistics


def score_documents(
    task: TranslationTask,
    split: Split,
    documents: Sequence[Sequence[Line]],
    groups: Sequence[Line],
    counts: np.ndarray,
    config: ScoringConfig,
) -> DocumentScores:
    """Return the scores of a split's documents.

    Args:
        task: tokenisation and dictionaries.
        split: ``valid``, ``test``..., with document boundaries.
        documents: the lines of each document; a line is a sentence, or a group that could not be
            cut into sentences.
        groups: the translation of each group.
        counts: sentences of each group, int [groups].
        config: settings of BLEU; ``scoring="bleu"`` is that of tokenised text.

    Raises:
        DataError: the split has no references, or no document boundaries.
    """
    sentences = split.require_documents("a score of documents")
    bleu = replace(config, scoring="bleu" if config.scoring == "bleu" else "sacrebleu")
    own = split_metric(task, split, bleu)
    texts = [[text for text, _ in lines] for lines in documents]
    references = cut_by_counts(task.references(split), sentences, split.name)
    chrf = document_score(MetricConfig("chrf", own.metric.lowercase), texts, [references])
    shown = [[own.shown(line) for line in document] for document in documents]
    references = cut_by_counts(own.references, sentences, split.name)
    return DocumentScores(
        document_score(own.metric, shown, [references]),
        sentence_score(own.metric, align_sentences(shown, [references])),
        own.score(groups, counts, split).labelled("group ", f"groups = {len(groups)}"),
        chrf,
        SegmentStatistics.of(own.metric, join_lines(shown), [join_lines(references)]),
    )


def _tokenised_references(task: TranslationTask, split: Split) -> list[str]:
    raw, pipeline = split.raw_target, task.target_text
    if raw is not None:
        # Through the subword model and back, so that text that came segmented is joined too.
        return [" ".join(pipeline.join_words(pipeline.encode(line))) for line in raw]
    lines = (task.target_tokens(ids, ESCAPED_UNK) for ids in split.targets())
    return [" ".join(pipeline.join_words(line.split())) for line in lines]

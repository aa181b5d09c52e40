"""The scores of translated documents of one split of a data folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from relu_nmt.corpus.translation import TranslationTask
from relu_nmt.evaluation.bleu import MetricConfig, Score
from relu_nmt.evaluation.config import ScoringConfig
from relu_nmt.evaluation.document_scores import (
    align_sentences,
    cut_by_counts,
    document_score,
    join_lines,
    sentence_score,
)
from relu_nmt.evaluation.split_score import split_metric


@dataclass(frozen=True)
class TranslatedSplit:
    """All documents of a split, translated.

    Args:
        lines: text and dictionary tokens of the lines of each document; a line is a sentence, or
            a group that could not be cut into sentences.
        groups: text and dictionary tokens of each group.
        counts: sentences of each document, int [documents].
        group_counts: sentences of each group, int [groups].
    """

    lines: Sequence[Sequence[tuple[str, Sequence[str]]]]
    groups: Sequence[tuple[str, Sequence[str]]]
    counts: np.ndarray
    group_counts: np.ndarray


@dataclass(frozen=True)
class DocumentScores:
    """Scores of documents.

    Args:
        d_bleu: one segment per document.
        s_bleu: one per sentence; documents with other numbers of lines are one segment each. None
            if all are.
        group_bleu: one per group; its references depend on the groups.
        chrf: d-chrF2, one segment per document.
    """

    d_bleu: Score
    s_bleu: Score | None
    group_bleu: Score
    chrf: Score


def score_documents(
    task: TranslationTask, split: str, found: TranslatedSplit, config: ScoringConfig
) -> DocumentScores:
    """Return the scores of a split's documents.

    Args:
        task: with a data folder.
        split: ``valid``, ``test``...
        found: the translations.
        config: settings of BLEU; ``scoring="bleu"`` is that of tokenised text.

    Raises:
        DataError: the split has no references.
    """
    bleu = replace(config, scoring="bleu" if config.scoring == "bleu" else "sacrebleu")
    own = split_metric(task, split, bleu)
    texts = [[text for text, _ in lines] for lines in found.lines]
    references = cut_by_counts(task.references(split), found.counts, split)
    chrf = document_score(MetricConfig("chrf", own.metric.lowercase), texts, [references])

    def shown(line: tuple[str, Sequence[str]]) -> str:
        return " ".join(task.target_text.join_words(line[1])) if own.tokenised else line[0]

    lines = [[shown(line) for line in document] for document in found.lines]
    references = cut_by_counts(own.references, found.counts, split)
    by_group = join_lines(cut_by_counts(own.references, found.group_counts, split))
    groups = own.metric.score([shown(group) for group in found.groups], [by_group])
    return DocumentScores(
        document_score(own.metric, lines, [references]),
        sentence_score(own.metric, align_sentences(lines, [references])),
        groups.labelled("group ", f"groups = {len(by_group)}"),
        chrf,
    )

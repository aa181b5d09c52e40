"""Scores of whole documents (d-BLEU) and of the sentences in them (s-BLEU).

For d-BLEU the lines of each document are joined, in translations and references alike, and each
document is one segment. It does not matter what a line is: a sentence, or a group of them that was
translated at once. So translations that were made in groups of any length are compared with the
same references, and n-grams across sentence borders count.

With separators, if every sentence ends in its own, this holds to the letter: sentences are
detokenised one by one, see :meth:`relu_nmt.tokenization.pipeline.TextPipeline.decode`. What no
separator divides is detokenised in one go, as nothing tells where its sentences end; a quote that
Moses takes for open can then change the spaces in the next sentence, and with them the score.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from relu_nmt.data.groups import SEPARATOR_TESTS, join_texts
from relu_nmt.data.split import sentence_slices
from relu_nmt.errors import DataError
from relu_nmt.evaluation.bleu import MetricConfig, Score
from relu_nmt.evaluation.buckets import BucketScore, bucket_scores, position_buckets

Documents = list[list[str]]
"""The lines of each document."""
LineT = TypeVar("LineT")


def split_at_separators(lines: Sequence[str], separator: str) -> Documents:
    """Return the documents of a text with separators between them, as relu-nmt-preprocess does.

    Separators that follow each other count once, those at the beginning and the end not at all.

    Args:
        lines: the text.
        separator: ``blank``, an empty line between documents; ``tag``, a line ``<d>`` before each.
    """
    runs = itertools.groupby(lines, SEPARATOR_TESTS[separator])
    return [list(run) for is_separator, run in runs if not is_separator]


def cut_by_counts(
    lines: Sequence[LineT], counts: Sequence[int] | np.ndarray, name: str
) -> list[list[LineT]]:
    """Return the documents of a text without separators.

    Args:
        lines: the text.
        counts: lines of each document.
        name: of the text, for the message.

    Raises:
        DataError: the counts do not add up to the lines.
    """
    if sum(counts) != len(lines):
        raise DataError(
            f"{name}: {len(lines):,} lines, but the documents have {sum(counts):,}; give the "
            "document lengths of this very text"
        )
    rest = iter(lines)
    return [list(itertools.islice(rest, int(count))) for count in counts]


def split_sentences(documents: Documents, separator: str) -> Documents:
    """Return the documents with every line cut at the symbol that stands between sentences.

    A symbol at the end of a line, behind the last sentence, is left out.

    Args:
        documents: lines of one or several sentences each.
        separator: what stands between (or behind) sentences, ``<sep>``.
    """
    split = []
    for lines in documents:
        sentences: list[str] = []
        for line in lines:
            parts = re.split(f"({re.escape(separator)})", line)
            parts = [part for part in parts if part == separator or part.strip()]
            own = ["".join(parts[one]).strip() for one in sentence_slices(parts, separator)]
            sentences += own or [""]
        split.append(sentences)
    return split


def join_lines(documents: Documents, language: str = "") -> list[str]:
    """Return each document as one line; how it was divided into lines leaves no trace."""
    return [join_texts((" ".join(line.split()) for line in own), language) for own in documents]


def document_score(
    metric: MetricConfig,
    hypotheses: Documents,
    references: Sequence[Documents],
    language: str = "",
) -> Score:
    """Return d-BLEU or d-chrF: one segment per document.

    Args:
        metric: metric and its settings.
        hypotheses: lines of each document; sentences or groups of them.
        references: one or more sets of the same documents, divided into lines in any way.
        language: its code, which decides about spaces between lines.

    Raises:
        DataError: numbers of documents differ, or there are none.

    Reference: Liu et al. 2020 (mBART), section 4.

    Example:
        >>> groups, sentences = [["a dog . it barks ."]], [["a dog .", "it barks ."]]
        >>> score = document_score(MetricConfig(), groups, [sentences])
        >>> score.name, round(score.value)
        ('d-BLEU', 100)
    """
    segments = [join_lines(documents, language) for documents in references]
    score = metric.score(join_lines(hypotheses, language), segments)
    return score.labelled("d-", f"documents = {len(hypotheses)}")


@dataclass(frozen=True)
class SentenceAlignment:
    """Sentences beside their references, document by document.

    A document in which the numbers of sentences differ is a mismatch and becomes one segment.

    Args:
        hypotheses: a segment each.
        references: for each set, as many segments.
        num_documents: of all.
        num_mismatched: documents that became one segment.
        positions: of each segment in its document, from 1; 0: it is a whole document.
    """

    hypotheses: list[str]
    references: list[list[str]]
    num_documents: int
    num_mismatched: int
    positions: list[int]

    def score(self, metric: MetricConfig) -> Score | None:
        """Return s-BLEU or s-chrF; None if no document could be aligned."""
        total, wrong = self.num_documents, self.num_mismatched
        if wrong == total:
            return None
        score = metric.score(self.hypotheses, self.references)
        return score.labelled(
            "s-",
            f"segments = {len(self.hypotheses)} "
            f"mismatched documents = {wrong}/{total} ({wrong / total:.2%})",
        )

    def by_position(self, metric: MetricConfig, edges: Sequence[int]) -> list[BucketScore]:
        """Return the scores of the sentences by their position; mismatched documents have no part.

        Args:
            metric: metric and its settings.
            edges: see :func:`relu_nmt.evaluation.buckets.position_buckets`.
        """
        texts = (self.hypotheses, *self.references)
        own, *others = (list(itertools.compress(lines, self.positions)) for lines in texts)
        positions = [position for position in self.positions if position]
        return bucket_scores(metric, position_buckets(positions, edges), own, others)


def align_sentences(
    hypotheses: Documents, references: Sequence[Documents], language: str = ""
) -> SentenceAlignment:
    """Return the sentences beside their references.

    Args:
        hypotheses: the sentences of each document.
        references: one or more sets of the same documents.
        language: its code, which decides about spaces between lines.

    Raises:
        DataError: the sets of references differ in their sentences.
    """
    segments: list[str] = []
    aligned: list[list[str]] = [[] for _ in references]
    positions: list[int] = []
    mismatched = 0
    for number, (own, *others) in enumerate(zip(hypotheses, *references, strict=True), 1):
        if len({len(lines) for lines in others}) > 1:
            counts = " and ".join(f"{len(lines):,}" for lines in others)
            raise DataError(
                f"document {number}: the sets of references have {counts} sentences; they need "
                "the same sentences"
            )
        texts = [own, *others]
        if len(own) != len(others[0]):
            mismatched += 1
            texts = [join_lines([lines], language) for lines in texts]
            positions.append(0)
        else:
            positions += range(1, len(own) + 1)
        segments += texts[0]
        for target, lines in zip(aligned, texts[1:], strict=True):
            target += lines
    return SentenceAlignment(segments, aligned, len(hypotheses), mismatched, positions)

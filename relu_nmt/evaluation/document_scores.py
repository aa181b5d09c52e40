"""Scores of documents (d-BLEU), of their sentences (s-BLEU), and of buckets of segments.

d-BLEU joins the lines of each document, in translations and references, to one segment. A line may
be a sentence or a group of sentences that was translated at once. So translations in groups of any
length are compared with the same references, and n-grams across sentence boundaries count. If a
separator ends every sentence, d-BLEU does not depend on the groups at all, see
:meth:`relu_nmt.tokenization.pipeline.TextPipeline.decode`.

Buckets divide segments by length and sentences by position. Reference: Zhang et al., EMNLP 2023,
and Peng et al. 2024, "Investigating length issues in document-level machine translation": quality
falls with the length of the text that is translated at once, and with the position in it.
"""

import bisect
import itertools
import re
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from relu_nmt.data.documents import SEPARATOR_TESTS
from relu_nmt.data.separators import sentence_slices
from relu_nmt.errors import ConfigError, DataError, counted
from relu_nmt.evaluation.metrics import Metric, Score
from relu_nmt.tokenization.sentences import join_texts

Documents = list[list[str]]  # the lines of each document
LineT = TypeVar("LineT")
DEFAULT_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048)  # of length buckets, in tokens
DEFAULT_POSITIONS = (1, 4, 9, 19)  # last positions of the buckets of sentences
Buckets = dict[str, list[int]]  # indices of segments by the name of their bucket, ``17-32``
BucketScore = tuple[str, int, Score | None]  # name of a bucket, its segments, their score


def length_buckets(lengths: Sequence[int], edges: Sequence[int]) -> Buckets:
    """Return the segments of each range of lengths in tokens, shortest first, without empty ranges.

    The edges are rising limits of the buckets. Longer segments go to a last bucket (ConfigError:
    the edges do not rise from at least 1).

    Example:
        >>> length_buckets([3, 20, 16, 900], (16, 32))
        {'0-16': [0, 2], '17-32': [1], '>32': [3]}
    """
    buckets = _buckets(lengths, edges, 0, "length buckets", "tokens, as in 128,256,512")
    return {name: members for name, members in buckets.items() if members}


def position_buckets(positions: Sequence[int], edges: Sequence[int]) -> Buckets:
    """Return the sentences of each range of positions (from 1), in order, with empty ranges.

    The edges are limits as in :func:`length_buckets`.

    Example:
        >>> position_buckets([1, 2, 3, 1, 2], (1, 4))
        {'1': [0, 3], '2-4': [1, 2, 4], '>4': []}
    """
    return _buckets(positions, edges, 1, "position buckets", "sentences, as in 1,4,9,19")


def _buckets(
    values: Sequence[int], edges: Sequence[int], lowest_value: int, name: str, unit: str
) -> Buckets:
    if not edges or edges[0] < 1 or any(a >= b for a, b in itertools.pairwise(edges)):
        shown_edges = ",".join(map(str, edges))
        raise ConfigError(f"{name} {shown_edges}: expected rising numbers of {unit}")
    names = []
    low = lowest_value
    for high in edges:
        names.append(str(high))
        if low < high:
            names[-1] = f"{low}-{high}"
        low = high + 1
    names.append(f">{edges[-1]}")
    # Put each segment into its bucket. An edge belongs to the lower one.
    buckets: Buckets = {name: [] for name in names}
    for number, value in enumerate(values):
        buckets[names[bisect.bisect_left(edges, value)]].append(number)
    return buckets


def bucket_scores(
    metric: Metric,
    buckets: Buckets,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
) -> list[BucketScore]:
    """Return the corpus score of the segments of each bucket."""
    scores: list[BucketScore] = []
    for bucket, members in buckets.items():
        score = None
        if members:
            sides = []
            for lines in (hypotheses, *references):
                sides.append(list(map(lines.__getitem__, members)))
            score = metric.score(sides[0], sides[1:])
        scores.append((bucket, len(members), score))
    return scores


def split_at_separators(lines: Sequence[str], separator: str) -> Documents:
    """Cut a text into documents: ``blank`` lines stand between, ``tag`` lines ``<d>`` in front."""
    runs = itertools.groupby(lines, SEPARATOR_TESTS[separator])
    return [list(run) for is_separator, run in runs if not is_separator]


def cut_by_counts(
    lines: Sequence[LineT], counts: Sequence[int] | np.ndarray, name: str
) -> list[list[LineT]]:
    """Cut a text into documents with these numbers of lines (DataError: the sum differs)."""
    if sum(counts) != len(lines):
        raise DataError(
            f"{name}: {counted(len(lines), 'line')}, but the documents have {sum(counts):,}; "
            "give the document lengths of this very text"
        )
    remaining = iter(lines)
    return [list(itertools.islice(remaining, int(count))) for count in counts]


def split_sentences(documents: Documents, separator: str) -> Documents:
    """Cut every line of the documents into sentences at a separator."""
    split = []
    for lines in documents:
        sentences: list[str] = []
        for line in lines:
            parts = []
            for part in re.split(f"({re.escape(separator)})", line):
                if part == separator or part.strip():  # so that no blank sentence arises
                    parts.append(part)
            slices = sentence_slices(parts, separator)
            sentences += ["".join(parts[where]).strip() for where in slices] or [""]
        split.append(sentences)
    return split


def join_lines(documents: Documents, language: str = "") -> list[str]:
    """Return each document as one line, independent of its division into lines."""
    joined = []
    for lines in documents:
        sentences = map(" ".join, map(str.split, lines))
        joined.append(join_texts(sentences, language))
    return joined


class AlignedDocuments:
    """Translated documents beside one or more sets of references, divided into segments.

    ``documents`` has the documents as segments: of the translations, then of each set of
    references. ``sentences`` has the sentences likewise. A document whose numbers of sentences
    differ is a mismatch and stays a single segment. ``positions`` are the positions of the
    sentences in their documents, from 1, and 0 for a mismatch.
    """

    def __init__(
        self, hypotheses: Documents, references: Sequence[Documents], language: str = ""
    ) -> None:
        sides = [hypotheses, *references]
        self.documents = [join_lines(side, language) for side in sides]
        self.sentences: list[list[str]] = [[] for _ in sides]
        self.positions: list[int] = []
        for number, lines in enumerate(zip(*sides, strict=True)):
            # Compare the references first, since all must have the same sentences.
            segments_of_sides = list(lines)
            num_translated, *counts = map(len, lines)
            if len(set(counts)) > 1:
                raise DataError(
                    f"document {number + 1}: the sets of references have "
                    f"{' and '.join(map('{:,}'.format, counts))} sentences; they need the "
                    "same sentences"
                )
            if num_translated == counts[0]:
                self.positions += range(1, num_translated + 1)
            else:
                self.positions.append(0)
                segments_of_sides = [[side[number]] for side in self.documents]
            for sentences, segments in zip(self.sentences, segments_of_sides, strict=True):
                sentences += segments

    @property
    def num_mismatched(self) -> int:
        """Number of documents with another number of sentences than their reference."""
        return self.positions.count(0)

    def document_score(self, metric: Metric) -> Score:
        """Return d-BLEU or d-chrF.

        Reference: Liu et al. 2020 (mBART), section 4.
        """
        hypotheses, *references = self.documents
        return metric.score(hypotheses, references).labeled("d-", f"documents = {len(hypotheses)}")

    def sentence_score(self, metric: Metric) -> Score | None:
        """Return s-BLEU or s-chrF, or None if all documents are mismatches."""
        total = len(self.documents[0])
        wrong = self.num_mismatched
        if wrong == total:
            return None
        hypotheses, *references = self.sentences
        mismatched = f"mismatched documents = {wrong}/{total} ({wrong / total:.2%})"
        score = metric.score(hypotheses, references)
        return score.labeled("s-", f"segments = {len(hypotheses)} {mismatched}")

    def position_scores(self, metric: Metric, edges: Sequence[int]) -> list[BucketScore]:
        """Return the scores of sentences by position, without mismatched documents."""
        sides = []
        for side in self.sentences:
            sides.append(list(itertools.compress(side, self.positions)))
        hypotheses, *references = sides
        buckets = position_buckets(list(filter(None, self.positions)), edges)
        return bucket_scores(metric, buckets, hypotheses, references)

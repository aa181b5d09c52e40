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
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from relu_nmt.data.documents import SEPARATOR_TESTS, join_texts
from relu_nmt.data.groups import sentence_slices
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.evaluation.metrics import MetricConfig, Score

Documents = list[list[str]]
"""The lines of each document."""
LineT = TypeVar("LineT")
DEFAULT_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Longest reference of each length bucket in tokens, for sentences and documents."""
DEFAULT_POSITIONS = (1, 4, 9, 19)
"""Last position of each bucket of sentences; the first sentence has a bucket of its own."""
Buckets = dict[str, list[int]]
"""Indices of segments by the name of their bucket, ``17-32``."""
BucketScore = tuple[str, int, Score | None]
"""Name of a bucket, number of its segments, and their score; None for an empty bucket."""


def length_buckets(lengths: Sequence[int], edges: Sequence[int]) -> Buckets:
    """Return the segments of each range of lengths in tokens, shortest first, without empty ranges.

    The edges are rising limits of the buckets; longer segments go to a last bucket.

    Raises:
        ConfigError: the edges do not rise from at least 1.

    Example:
        >>> length_buckets([3, 20, 16, 900], (16, 32))
        {'0-16': [0, 2], '17-32': [1], '>32': [3]}
    """
    unit = "tokens, as in 128,256,512"
    return {name: own for name, own in _buckets(lengths, edges, 0, "length", unit).items() if own}


def position_buckets(positions: Sequence[int], edges: Sequence[int]) -> Buckets:
    """Return the sentences of each range of positions (from 1), in order, with empty ranges.

    The edges are rising last positions of the buckets; later sentences go to a last bucket.

    Raises:
        ConfigError: the edges do not rise from at least 1.

    Example:
        >>> position_buckets([1, 2, 3, 1, 2], (1, 4))
        {'1': [0, 3], '2-4': [1, 2, 4], '>4': []}
    """
    return _buckets(positions, edges, 1, "position", "sentences, as in 1,4,9,19")


def _buckets(
    values: Sequence[int], edges: Sequence[int], least: int, what: str, unit: str
) -> Buckets:
    if not edges or edges[0] < 1 or any(a >= b for a, b in itertools.pairwise(edges)):
        shown = ",".join(map(str, edges))
        raise ConfigError(f"{what} buckets {shown}: expected rising numbers of {unit}")
    # Name each bucket by its range, the last one by its limit.
    lowest = [least, *(edge + 1 for edge in edges)]
    ranges = zip(lowest, edges, strict=False)
    names = [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
    buckets: Buckets = {name: [] for name in (*names, f">{edges[-1]}")}
    # Put each segment into its bucket; an edge belongs to the lower one.
    members = list(buckets.values())
    for number, value in enumerate(values):
        members[bisect.bisect_left(edges, value)].append(number)
    return buckets


def bucket_scores(
    metric: MetricConfig,
    buckets: Buckets,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
) -> list[BucketScore]:
    """Return the corpus score of the segments of each bucket."""
    found: list[BucketScore] = []
    for bucket, members in buckets.items():
        own, *others = ([lines[i] for i in members] for lines in (hypotheses, *references))
        score = metric.score(own, others) if members else None
        found.append((bucket, len(members), score))
    return found


def split_at_separators(lines: Sequence[str], separator: str) -> Documents:
    """Return the documents of a text with separators, as relu-nmt-preprocess does.

    The separator is ``blank``, an empty line between documents, or ``tag``, a line ``<d>`` before
    each. Several in a row count once; those at the beginning and the end do not count.
    """
    runs = itertools.groupby(lines, SEPARATOR_TESTS[separator])
    return [list(run) for is_separator, run in runs if not is_separator]


def cut_by_counts(
    lines: Sequence[LineT], counts: Sequence[int] | np.ndarray, name: str
) -> list[list[LineT]]:
    """Return the documents of a text without separators, by the lines of each document.

    Raises:
        DataError: the counts do not add up to the number of lines.
    """
    if sum(counts) != len(lines):
        raise DataError(
            f"{name}: {len(lines):,} lines, but the documents have {sum(counts):,}; give the "
            "document lengths of this very text"
        )
    rest = iter(lines)
    return [list(itertools.islice(rest, int(count))) for count in counts]


def split_sentences(documents: Documents, separator: str) -> Documents:
    """Cut every line of the documents into sentences at a separator."""
    split = []
    for lines in documents:
        sentences: list[str] = []
        for line in lines:
            parts = re.split(f"({re.escape(separator)})", line)
            # Drop blank parts, so that no blank sentence arises.
            parts = [part for part in parts if part == separator or part.strip()]
            own = ["".join(parts[one]).strip() for one in sentence_slices(parts, separator)]
            sentences += own or [""]
        split.append(sentences)
    return split


def join_lines(documents: Documents, language: str = "") -> list[str]:
    """Return each document as one line, independent of its division into lines."""
    return [join_texts((" ".join(line.split()) for line in own), language) for own in documents]


def document_score(
    metric: MetricConfig,
    hypotheses: Documents,
    references: Sequence[Documents],
    language: str = "",
) -> Score:
    """Return d-BLEU or d-chrF: one segment per document.

    Raises:
        DataError: the numbers of documents differ or are 0.

    Reference: Liu et al. 2020 (mBART), section 4.
    """
    segments = [join_lines(documents, language) for documents in references]
    score = metric.score(join_lines(hypotheses, language), segments)
    return score.labelled("d-", f"documents = {len(hypotheses)}")


@dataclass(frozen=True)
class SentenceAlignment:
    """Sentences with their references, one segment each in every set.

    A document whose numbers of sentences differ is a mismatch and becomes one segment. Positions
    are those of segments in their document, from 1; 0 for a whole document.
    """

    hypotheses: list[str]
    references: list[list[str]]
    num_documents: int
    num_mismatched: int
    positions: list[int]

    def score(self, metric: MetricConfig) -> Score | None:
        """Return s-BLEU or s-chrF; None if all documents are mismatches."""
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
        """Return the scores of sentences by position, without mismatched documents."""
        # Leave out whole documents, whose position is 0.
        texts = (self.hypotheses, *self.references)
        own, *others = (list(itertools.compress(lines, self.positions)) for lines in texts)
        positions = [position for position in self.positions if position]
        return bucket_scores(metric, position_buckets(positions, edges), own, others)


def align_sentences(
    hypotheses: Documents, references: Sequence[Documents], language: str = ""
) -> SentenceAlignment:
    """Pair the sentences with their references.

    Raises:
        DataError: the sets of references differ in their sentences.
    """
    segments: list[str] = []
    aligned: list[list[str]] = [[] for _ in references]
    positions: list[int] = []
    mismatched = 0
    for number, (own, *others) in enumerate(zip(hypotheses, *references, strict=True), 1):
        # Compare the references first, since all must have the same sentences.
        if len({len(lines) for lines in others}) > 1:
            counts = " and ".join(f"{len(lines):,}" for lines in others)
            raise DataError(
                f"document {number}: the sets of references have {counts} sentences; they need "
                "the same sentences"
            )
        # Keep matching sentences apart; a mismatched document becomes one segment.
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

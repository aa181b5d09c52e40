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
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from relu_nmt.data.documents import (
    SEPARATOR_TESTS,
    SINGLE_SENTENCES,
    Line,
    join_texts,
    sentence_slices,
)
from relu_nmt.data.split import Split
from relu_nmt.errors import ConfigError, DataError, counted
from relu_nmt.evaluation.metrics import (
    COMPOUND,
    WITH_SPACES,
    Metric,
    Score,
    ScoringConfig,
    choose_tokenizer,
)
from relu_nmt.evaluation.significance import SegmentStatistics
from relu_nmt.translation.task import ESCAPED_UNK, TranslationTask

Documents = list[list[str]]  # the lines of each document
LineT = TypeVar("LineT")
DEFAULT_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048)  # of length buckets, in tokens
DEFAULT_POSITIONS = (1, 4, 9, 19)  # last positions of the buckets of sentences
Buckets = dict[str, list[int]]  # indices of segments by the name of their bucket, ``17-32``
AlignedSentence = tuple[int, int, Line]
"""A sentence whose translation is a separate line: its number in the split (from 0), its position
in its window with context (from 1), and the translation."""
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
        for number, side in enumerate(references, 1):
            if len(side) != len(hypotheses):
                raise DataError(
                    f"{len(hypotheses):,} translated documents, but {len(side):,} references (set "
                    f"{number}); both need the same documents in the same order"
                )
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


class _RawText:
    """The references of a split, and translations, as raw text."""

    def __init__(self, task: TranslationTask, split: Split) -> None:
        self.references = task.references(split)

    def form(self, line: Line) -> str:
        """Return a translation in the form that is compared."""
        return line.text


class _Words(_RawText):
    """The references of a split, and translations, as words between spaces."""

    def __init__(self, task: TranslationTask, split: Split) -> None:
        self._join = task.target_text.join_words
        # Encode raw text and join it, so that text that arrived in pieces is joined too.
        if split.raw_target is not None:
            references = map(task.target_text.encode, split.raw_target)
        else:
            symbols_of = partial(task.target_dictionary.symbols_of, unk=ESCAPED_UNK)
            references = map(symbols_of, split.targets())
        self.references = [" ".join(self._join(tokens)) for tokens in references]

    def form(self, line: Line) -> str:
        return " ".join(self._join(line.tokens))


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
        self._text: _RawText
        if config.scoring in ("bleu", "compound-bleu"):
            self._text = _Words(task, split)
            self._bleu = Metric("bleu", lowercase, "none", smooth="none")
            if config.scoring == "compound-bleu":
                self._bleu = replace(self._bleu, tokenize=COMPOUND)
        else:
            self._text = _RawText(task, split)
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

    def _choose_tokenizer(self) -> str:
        """Return the tokenizer for the target language. Set :attr:`note`."""
        pipeline = self._task.target_text
        name, note = choose_tokenizer(pipeline.language, self._text.references)
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
        references = self._text.references
        if counts is not None:
            cut = cut_by_counts(references, counts, self._split.name)
            references = join_lines(cut, self._task.target_lang)
        return (metric or self._metric).score(list(map(self._text.form, lines)), [references])

    def segment_statistics(
        self, texts: Sequence[str], segments: Sequence[Sequence[int]]
    ) -> SegmentStatistics:
        """Return the counts of texts, each a translation of the sentences numbered in a segment."""
        lines = self._text.references
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
        aligned = raw = self._aligned(documents, self._text)
        # Take raw text for chrF, even where BLEU compares words.
        if isinstance(self._text, _Words):
            raw = self._aligned(documents, _RawText(self._task, self._split))
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
        hypotheses, references = self._aligned(documents, self._text).documents
        return SegmentStatistics.of(self._bleu, hypotheses, [references])

    def position_scores(self, sentences: Sequence[AlignedSentence]) -> dict[str, Any]:
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
            references.append(self._text.references[number])
            positions["position"].append(in_document[number])
            positions["group position"].append(position)
        hypotheses = list(map(self._text.form, lines))
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

    def _aligned(self, documents: Sequence[Sequence[Line]], text: _RawText) -> AlignedDocuments:
        """Return translations and references by document, in the form of a text."""
        hypotheses = [list(map(text.form, lines)) for lines in documents]
        # Boundaries are known if groups were translated.
        counts = self._split.require_documents("a score of documents", SINGLE_SENTENCES)
        references = cut_by_counts(text.references, counts, self._split.name)
        return AlignedDocuments(hypotheses, [references], self._task.target_lang)

"""Scores of translations of a data folder's split, by sentence, group or document.

A segment is a group of consecutive sentences, compared with their joined references. A sentence is
a group of one, a document a group of all its sentences.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.data.split import Split
from relu_nmt.evaluation.document_scores import (
    DEFAULT_POSITIONS,
    align_sentences,
    bucket_scores,
    cut_by_counts,
    document_score,
    join_lines,
    position_buckets,
)
from relu_nmt.evaluation.metrics import (
    COMPOUND,
    WITH_SPACES,
    MetricConfig,
    Score,
    ScoringConfig,
    choose_tokenizer,
)
from relu_nmt.evaluation.significance import SegmentStatistics
from relu_nmt.translation.search.document_search import TranslatedDocuments
from relu_nmt.translation.search.translations import Line
from relu_nmt.translation.task import ESCAPED_UNK, TranslationTask


class AlignedSentence(NamedTuple):
    """A sentence whose translation is a line of its own.

    ``number`` is that of the sentence in the split, from 0, ``position`` that in its window,
    context included, from 1.
    """

    number: int
    position: int
    line: Line


def aligned_sentences(documents: TranslatedDocuments, first: int) -> list[AlignedSentence]:
    """Return the sentences of all windows whose translation has the same number of sentences."""
    return [
        AlignedSentence(first + number, number - own.window.context + 1, line)
        for own in documents.windows
        if own.divided
        for number, line in enumerate(own.lines, own.window.first)
    ]


class SplitScorer:
    """Comparison of translations of a split with its references.

    The references are raw text if the folder keeps it. A folder of fairseq-preprocess has only
    token ids. Translations and references are then compared as symbols of the dictionary, with
    ``tok:none``, unless the task detokenises them or the language has no spaces. ``--scoring bleu``
    and ``compound-bleu`` compare words of the tokeniser, subwords joined.

    Attributes:
        note: one line about the tokeniser that the language has chosen; empty for the usual one.

    Raises:
        ConfigError: the tokeniser is unknown, or its package is missing.
        DataError: the split has no references.
    """

    def __init__(self, task: TranslationTask, split: Split, config: ScoringConfig) -> None:
        pipeline = task.target_text
        self.note = ""
        self._task = task
        self._split = split
        self._tokenised = config.scoring in ("bleu", "compound-bleu")
        # Ignore case where the data was lower-cased, unless set.
        lowercase = config.sacrebleu_lowercase
        if lowercase is None:
            lowercase = pipeline.lowercase
        self._references = (
            self._tokenised_references() if self._tokenised else task.references(split)
        )
        # Choose metric and tokeniser.
        self._chrf = MetricConfig("chrf", lowercase)
        if self._tokenised:
            tokenize = "none" if config.scoring == "bleu" else COMPOUND
            self._bleu = MetricConfig("bleu", lowercase, tokenize, smooth="none")
        else:
            tokenize = config.sacrebleu_tokenizer or self._choose_tokenizer()
            self._bleu = MetricConfig("bleu", lowercase, tokenize)
        self._bleu.build()  # report a bad tokeniser before the translation starts
        self._metric = self._chrf if config.scoring == "chrf" else self._bleu

    @property
    def signature(self) -> str:
        """The signature of the scores of single sentences."""
        return self._metric.signature

    def _choose_tokenizer(self) -> str:
        """Return the tokeniser for the target language; set :attr:`note`."""
        pipeline = self._task.target_text
        name, note = choose_tokenizer(pipeline.language, self._references)
        # Keep the words of tokenised text, which no step detokenises.
        if name in WITH_SPACES and pipeline.keeps_text and pipeline.detokenizer == "none":
            return "none"
        self.note = note
        return name

    def score(
        self,
        lines: Sequence[Line],
        counts: np.ndarray | None = None,
        metric: MetricConfig | None = None,
    ) -> Score:
        """Return the score of the translations of the whole split, one segment per line.

        ``counts`` are the sentences of each line, int [lines], if lines are groups or documents.

        Raises:
            DataError: the numbers of translations and references differ.
        """
        references = self._references
        if counts is not None:
            cut = cut_by_counts(references, counts, self._split.name)
            references = join_lines(cut, self._task.target_lang)
        return (metric or self._metric).score([self._shown(line) for line in lines], [references])

    def document_scores(
        self, documents: Sequence[Sequence[Line]], groups: Sequence[Line], counts: np.ndarray
    ) -> dict[str, Score]:
        """Return the scores of the split's documents, by name.

        A line of a document is a sentence, or a group that could not be cut into sentences. Each
        group has its translation in ``groups``, and its sentences in ``counts``, int [groups].

        Returns:
            ``d_bleu``, one segment per document; ``s_bleu``, one per sentence, except that a
            mismatched document is one segment (absent if all documents are mismatched);
            ``group_bleu``, one per group, so that its references depend on the groups; ``chrf``,
            that is d-chrF2 of raw text.

        Raises:
            DataError: document boundaries are unknown.
        """
        shown, references = self._by_document(documents)
        language = self._task.target_lang
        # Take raw text for chrF, even where BLEU compares words.
        texts = [[text for text, _ in lines] for lines in documents]
        raw = references
        if self._tokenised:
            raw = self._cut(self._task.references(self._split))
        scores = {
            "d_bleu": document_score(self._bleu, shown, [references], language),
            "s_bleu": align_sentences(shown, [references], language).score(self._bleu),
            "group_bleu": self.score(groups, counts, self._bleu).labelled(
                "group ", f"groups = {len(groups)}"
            ),
            "chrf": document_score(self._chrf, texts, [raw], language),
        }
        # Leave out s-BLEU if all documents are mismatched.
        return {name: score for name, score in scores.items() if score is not None}

    def document_statistics(self, documents: Sequence[Sequence[Line]]) -> SegmentStatistics:
        """Return the statistics of ``d_bleu`` by document; see :meth:`document_scores`."""
        shown, references = self._by_document(documents)
        own, others = (join_lines(texts, self._task.target_lang) for texts in (shown, references))
        return SegmentStatistics.of(self._bleu, own, [others])

    def position_scores(self, sentences: Sequence[AlignedSentence]) -> dict[str, Any]:
        """Return the BLEU of sentences by their position, as JSON values.

        Positions in the document do not depend on the groups, so that scores of several lengths
        can be compared. The position in the group is the amount of text translated before, with
        which quality falls in the literature.

        Returns:
            ``position``, in the document, and ``group position``: by bucket ``sentences``, and
            ``score`` and ``signature``, None for an empty bucket.
        """
        # Boundaries are known if groups were translated.
        counts = self._split.require_documents("a score of documents", SINGLE_SENTENCES)
        # Number the sentences of each document from 1.
        in_document = np.concatenate([np.arange(1, count + 1) for count in counts]).tolist()
        shown = [self._shown(one.line) for one in sentences]
        references = [self._references[one.number] for one in sentences]
        # Score the same sentences in buckets of both positions.
        positions = {
            "position": [in_document[one.number] for one in sentences],
            "group position": [one.position for one in sentences],
        }
        return {
            name: {
                bucket: {
                    "sentences": size,
                    "score": score and score.value,
                    "signature": score and score.signature,
                }
                for bucket, size, score in bucket_scores(
                    self._bleu, position_buckets(own, DEFAULT_POSITIONS), shown, [references]
                )
            }
            for name, own in positions.items()
        }

    def _by_document(
        self, documents: Sequence[Sequence[Line]]
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Return translations and references by document, in the form that is compared."""
        shown = [[self._shown(line) for line in document] for document in documents]
        return shown, self._cut(self._references)

    def _cut(self, references: Sequence[str]) -> list[list[str]]:
        # Boundaries are known if groups were translated.
        counts = self._split.require_documents("a score of documents", SINGLE_SENTENCES)
        return cut_by_counts(references, counts, self._split.name)

    def _shown(self, line: Line) -> str:
        """Return a translation in the form that is compared."""
        text, tokens = line
        return " ".join(self._task.target_text.join_words(tokens)) if self._tokenised else text

    def _tokenised_references(self) -> list[str]:
        raw, pipeline = self._split.raw_target, self._task.target_text
        if raw is not None:
            # Encode and join, so that text that arrived in pieces is joined too.
            return [" ".join(pipeline.join_words(pipeline.encode(line))) for line in raw]
        targets = self._split.targets()
        lines = (self._task.target_tokens(ids, ESCAPED_UNK) for ids in targets)
        return [" ".join(pipeline.join_words(line.split())) for line in lines]

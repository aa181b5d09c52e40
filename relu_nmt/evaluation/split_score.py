"""The score of translations of one split of a data folder."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relu_nmt.corpus.translation import TranslationTask
from relu_nmt.data.dictionary import UNK
from relu_nmt.errors import DataError
from relu_nmt.evaluation.bleu import MetricConfig, Score
from relu_nmt.evaluation.config import ScoringConfig
from relu_nmt.evaluation.document_scores import cut_by_counts, join_lines

ESCAPED_UNK = f"<{UNK}>"
"""An unknown word in a reference, so that no unknown word of a translation matches it."""


@dataclass(frozen=True)
class SplitMetric:
    """What the translations of a split are compared with, and how.

    Args:
        metric: metric and its settings.
        references: the reference of each sentence.
        tokenised: translations are compared as words of the tokeniser, subwords joined, not as
            raw text.
    """

    metric: MetricConfig
    references: list[str]
    tokenised: bool


def split_metric(task: TranslationTask, split: str, config: ScoringConfig) -> SplitMetric:
    """Return how translations of a split are scored.

    The references are the raw ones where the folder keeps them. A folder that fairseq-preprocess
    made has only token numbers: translations and references are then compared as they come out
    of the dictionary, with ``tok:none``, unless the task detokenises them.

    Args:
        task: with a data folder.
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
        return SplitMetric(metric, _tokenised_references(task, split), True)
    references = task.references(split)
    if config.scoring == "chrf":
        return SplitMetric(MetricConfig("chrf", lowercase), references, False)
    prepared = pipeline.keeps_text and pipeline.detokenizer == "none"
    tokenize = config.sacrebleu_tokenizer or ("none" if prepared else "13a")
    return SplitMetric(MetricConfig("bleu", lowercase, tokenize), references, False)


def score_split(
    task: TranslationTask,
    split: str,
    texts: Sequence[str],
    tokens: Sequence[Sequence[str]],
    config: ScoringConfig,
    documents: np.ndarray | None = None,
) -> Score:
    """Return the score of the translations of all sentences of a split.

    Args:
        task: with a data folder.
        split: ``valid``, ``test``...
        texts: the translations as raw text.
        tokens: the same as dictionary tokens.
        config: metric and its settings, see :func:`split_metric`.
        documents: sentences of each document, int [documents], if ``texts`` and ``tokens`` are
            whole documents; the score is then that of documents (d-BLEU). None for sentences.

    Raises:
        DataError: the split has no references, or not as many.
    """
    own = split_metric(task, split, config)
    lines, references = texts, own.references
    if own.tokenised:
        lines = [" ".join(task.target_text.join_words(line)) for line in tokens]
    if documents is not None:
        references = join_lines(cut_by_counts(references, documents, split))
    return own.metric.score(lines, [references])


def _tokenised_references(task: TranslationTask, split: str) -> list[str]:
    raw = task.raw_lines(split, "target")
    pipeline = task.target_text
    if raw is not None:
        # Through the subword model and back, so that text that came segmented is joined too.
        return [" ".join(pipeline.join_words(pipeline.encode(line))) for line in raw]
    dataset = task.load_split(split)
    if dataset.target is None:
        raise DataError(f"{dataset.source.prefix}.idx: source-only data has no references")
    lines = (task.target_tokens(dataset.pair(i)[1], ESCAPED_UNK) for i in range(len(dataset)))
    return [" ".join(pipeline.join_words(line.split())) for line in lines]

"""The score of translations of one split of a data folder."""

from collections.abc import Sequence

import numpy as np

from relu_nmt.data.dictionary import UNK
from relu_nmt.data.documents import join_documents
from relu_nmt.errors import DataError
from relu_nmt.evaluation.bleu import Score, corpus_bleu, corpus_chrf
from relu_nmt.evaluation.config import ScoringConfig
from relu_nmt.tasks.translation import TranslationTask

ESCAPED_UNK = f"<{UNK}>"
"""An unknown word in a reference, so that no unknown word of a translation matches it."""


def score_split(
    task: TranslationTask,
    split: str,
    texts: Sequence[str],
    tokens: Sequence[Sequence[str]],
    config: ScoringConfig,
    documents: np.ndarray | None = None,
) -> Score:
    """Return the score of the translations of all sentences of a split.

    The references are the raw ones where the folder keeps them. A folder that fairseq-preprocess
    made has only token numbers: translations and references are then compared as they come out
    of the dictionary, with ``tok:none``, unless the task detokenises them.

    Args:
        task: with a data folder.
        split: ``valid``, ``test``...
        texts: the translations as raw text.
        tokens: the same as dictionary tokens.
        config: metric and its settings.
        documents: sentences of each document, int [documents], if ``texts`` and ``tokens`` are
            whole documents; the score is then that of documents (d-BLEU). None for sentences.

    Raises:
        DataError: the split has no references, or not as many.
    """
    pipeline = task.target_text
    lowercase = config.sacrebleu_lowercase
    if lowercase is None:
        lowercase = pipeline.lowercase
    if config.scoring == "bleu":
        words = [" ".join(pipeline.join_words(line)) for line in tokens]
        references = _joined(_tokenised_references(task, split), documents)
        return corpus_bleu(words, [references], lowercase=lowercase, tokenize="none", smooth="none")
    references = _joined(task.references(split), documents)
    if config.scoring == "chrf":
        return corpus_chrf(texts, [references], lowercase=lowercase)
    prepared = pipeline.keeps_text and pipeline.detokenizer == "none"
    tokenize = config.sacrebleu_tokenizer or ("none" if prepared else "13a")
    return corpus_bleu(texts, [references], lowercase=lowercase, tokenize=tokenize)


def _joined(references: list[str], documents: np.ndarray | None) -> list[str]:
    return references if documents is None else join_documents(references, documents)


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

"""d-BLEU document by document: the counts that it is computed from."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from relu_nmt.data.data_folder import documents_path, find_pair, infer_languages, raw_path
from relu_nmt.data.documents import read_documents
from relu_nmt.evaluation import document_scores as docs
from relu_nmt.evaluation.bleu import MetricConfig
from relu_nmt.io.safe_write import write_text
from relu_nmt.io.text_lines import read_lines
from relu_nmt.sweep.plan import OUTPUT_SEPARATOR

ORDER = 4
"""Longest n-gram. A document has 2 * ORDER + 2 counts: n-grams that are in the reference and all
of the translation, each by n, then length of translation and reference in tokens."""


def reference_documents(
    data: str, split: str, languages: Sequence[str] = ()
) -> docs.Documents | None:
    """Return the raw reference sentences of each document of a split; None if there are none.

    Args:
        data: the data folder.
        split: ``test``...
        languages: source and target language; by default those of the folder's only pair.

    Raises:
        DataError: files of the folder are missing or do not fit.
    """
    source, target = languages or infer_languages(data)
    pair = find_pair(data, split, source, target)
    raw, counts = raw_path(data, split, pair, target), documents_path(data, split, pair)
    if not raw.exists() or not counts.exists():
        return None
    return docs.cut_by_counts(read_lines(raw), read_documents(counts), f"{raw} with {counts}")


def metric_of_signature(signature: str) -> MetricConfig:
    """Return the BLEU that a sacreBLEU signature describes.

    Example:
        >>> metric_of_signature("nrefs:1|case:lc|eff:no|tok:none|smooth:exp").tokenize
        'none'
    """
    parts = dict(part.split(":", 1) for part in signature.split("|") if ":" in part)
    return MetricConfig(lowercase=parts.get("case") == "lc", tokenize=parts.get("tok", "13a"))


def count_documents(
    hypotheses: docs.Documents, references: docs.Documents, metric: MetricConfig
) -> np.ndarray:
    """Return the counts of each document, int64 [documents, 2 * ORDER + 2].

    Args:
        hypotheses: lines of each document.
        references: lines of each document.
        metric: BLEU and its settings.

    Raises:
        DataError: numbers of documents differ.
    """
    docs.check_same_documents(hypotheses, [references], ["the translation", "the reference"])
    bleu = metric.build()
    rows = []
    texts = zip(docs.join_lines(hypotheses), docs.join_lines(references), strict=True)
    for hypothesis, reference in texts:
        score = bleu.corpus_score([hypothesis], [[reference]])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(rows, dtype=np.int64).reshape(-1, 2 * ORDER + 2)


def bleu_of(counts: np.ndarray) -> float:
    """Return the BLEU, 0 to 100, of sums of counts [2 * ORDER + 2]."""
    from sacrebleu.metrics import BLEU

    values = counts.tolist()
    score = BLEU.compute_bleu(
        values[:ORDER], values[ORDER : 2 * ORDER], *values[2 * ORDER :], smooth_method="exp"
    )
    return float(score.score)


def stored_counts(
    translation: Path, references: docs.Documents, signature: str, of: str
) -> np.ndarray:
    """Return the counts of a file of translations; counted once, then read from beside it.

    Args:
        translation: text with a line ``<d>`` before each document.
        references: lines of each document.
        signature: sacreBLEU's, of the score to take apart.
        of: identifies the run that made the translation.

    Raises:
        DataError: the file cannot be read, or has other documents than the reference.
    """
    path = translation.with_suffix(".counts.json")
    key = [of, re.sub(r"\|version:.*", "", signature), len(references)]
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["key"] == key:
            return np.array(stored["counts"], dtype=np.int64).reshape(-1, 2 * ORDER + 2)
    except (OSError, ValueError, TypeError, KeyError):
        pass  # counted anew
    hypotheses = docs.split_at_separators(read_lines(translation), OUTPUT_SEPARATOR)
    counts = count_documents(hypotheses, references, metric_of_signature(signature))
    write_text(path, json.dumps({"key": key, "counts": counts.tolist()}) + "\n")
    return counts

"""BLEU and chrF by sacreBLEU; no score leaves without its signature."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relu_nmt.errors import ConfigError, DataError

METRICS = ("bleu", "chrf")


@dataclass(frozen=True)
class Score:
    """A score of a whole corpus (or of one sentence).

    Args:
        value: 0 to 100.
        text: the score as sacreBLEU prints it, with its parts.
        signature: the settings it was computed with.
    """

    value: float
    text: str
    signature: str

    def __str__(self) -> str:
        return f"{self.text} signature: {self.signature}"


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
    smooth: str = "exp",
    order: int = 4,
) -> Score:
    """Return the corpus BLEU.

    Args:
        hypotheses: one line each.
        references: one or more lists, each as long as ``hypotheses``.
        lowercase: ignore case.
        tokenize: sacreBLEU's tokeniser: ``13a``, ``intl``, ``char``, ``zh``, ``none``...
        smooth: ``exp`` (sacreBLEU's default) or ``none`` (as multi-bleu.perl).
        order: longest n-gram.

    Raises:
        DataError: numbers of lines differ, or there are none.
        ConfigError: no such tokeniser.

    Example:
        >>> score = corpus_bleu(["a dog is here ."], [["a dog is here ."]])
        >>> round(score.value), score.signature.split("|")[:2]
        (100, ['nrefs:1', 'case:mixed'])
    """
    metric = _bleu_metric(lowercase, tokenize, smooth, order)
    return _corpus_score(metric, hypotheses, references)


def sentence_bleu(
    hypothesis: str,
    references: Sequence[str],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
    order: int = 4,
) -> Score:
    """Return the smoothed BLEU of one sentence (orders without any n-gram are left out).

    Args:
        hypothesis: the translation.
        references: one or more.
        lowercase: ignore case.
        tokenize: sacreBLEU's tokeniser.
        order: longest n-gram.
    """
    metric = _bleu_metric(lowercase, tokenize, "exp", order, effective_order=True)
    score = metric.sentence_score(hypothesis, list(references))
    return Score(score.score, str(score), str(metric.get_signature()))


def corpus_chrf(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    word_order: int = 0,
) -> Score:
    """Return the corpus chrF2 (``word_order`` 2: chrF2++).

    Args:
        hypotheses: one line each.
        references: one or more lists, each as long as ``hypotheses``.
        lowercase: ignore case.
        word_order: longest n-gram of words.

    Raises:
        DataError: numbers of lines differ, or there are none.
    """
    from sacrebleu.metrics import CHRF

    metric = CHRF(lowercase=lowercase, word_order=word_order)
    return _corpus_score(metric, hypotheses, references)


def _bleu_metric(
    lowercase: bool, tokenize: str, smooth: str, order: int, effective_order: bool = False
) -> Any:
    from sacrebleu.metrics import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        names = ", ".join(BLEU.TOKENIZERS)
        raise ConfigError(f"BLEU tokeniser '{tokenize}': choose one of {names}")
    if order < 1:
        raise ConfigError(f"BLEU of order {order}: expected 1 or more")
    try:
        return BLEU(
            lowercase=lowercase,
            tokenize=tokenize,
            smooth_method=smooth,
            max_ngram_order=order,
            effective_order=effective_order,
            force=True,  # no advice on standard error about tokenised text
        )
    except (ImportError, RuntimeError) as error:  # a tokeniser that needs a further package
        reason = " ".join(str(error).split())
        raise ConfigError(f"BLEU tokeniser '{tokenize}': {reason}") from error


def _corpus_score(
    metric: Any, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> Score:
    for number, lines in enumerate(references, 1):
        if len(lines) != len(hypotheses):
            raise DataError(
                f"{len(hypotheses):,} translations, but {len(lines):,} references (set {number}); "
                "both need the same lines in the same order"
            )
    if not hypotheses or not references:
        raise DataError("no lines to score")
    score = metric.corpus_score(list(hypotheses), [list(lines) for lines in references])
    return Score(score.score, str(score), str(metric.get_signature()))

"""BLEU and chrF by sacreBLEU; no score leaves without its signature."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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

    @property
    def name(self) -> str:
        """What was measured: ``BLEU``, ``chrF2``, ``d-BLEU``..."""
        return self.text.split(" = ", 1)[0]

    def labelled(self, prefix: str, counted: str) -> "Score":
        """Return the score as that of other segments than lines.

        Args:
            prefix: goes before the name: ``d-`` for documents.
            counted: goes behind the text: ``documents = 240``.
        """
        return replace(self, text=f"{prefix}{self.text} {counted}")


@dataclass(frozen=True)
class MetricConfig:
    """A metric and its settings, for scores of several sets of segments.

    Args:
        name: ``bleu`` or ``chrf``.
        lowercase: ignore case.
        tokenize: sacreBLEU's tokeniser, for BLEU.
        order: longest n-gram of BLEU.
        word_order: longest word n-gram of chrF; 2 is chrF++.
        smooth: of BLEU, see :func:`corpus_bleu`.

    Raises:
        ConfigError: no such metric.

    Example:
        >>> MetricConfig("chrf").score(["a dog"], [["a dog"]]).text
        'chrF2 = 100.00'
    """

    name: str = "bleu"
    lowercase: bool = False
    tokenize: str = "13a"
    order: int = 4
    word_order: int = 0
    smooth: str = "exp"

    def __post_init__(self) -> None:
        if self.name not in METRICS:
            raise ConfigError(f"metric '{self.name}': choose one of {', '.join(METRICS)}")

    def build(self) -> Any:
        """Return sacreBLEU's object of this metric.

        Raises:
            ConfigError: no such tokeniser, or one that needs a further package.
        """
        if self.name == "bleu":
            return _bleu_metric(self.lowercase, self.tokenize, self.smooth, self.order)
        return _chrf_metric(self.lowercase, self.word_order)

    def score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
        """Return the score of the segments.

        Args:
            hypotheses: one segment each.
            references: one or more lists, each as long as ``hypotheses``.

        Raises:
            DataError: numbers of segments differ, or there are none.
        """
        return _corpus_score(self.build(), hypotheses, references)

    def reference_lengths(self, references: Sequence[str]) -> list[int]:
        """Return the length of each segment as BLEU counts it, in tokens of ``tokenize``."""
        # Of single lines; that their BLEU has effective order matters to nothing but a warning.
        metric = _bleu_metric(self.lowercase, self.tokenize, "exp", self.order, True)
        return [metric.sentence_score(line, [line]).ref_len for line in references]


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
    return _corpus_score(_chrf_metric(lowercase, word_order), hypotheses, references)


def _chrf_metric(lowercase: bool, word_order: int) -> Any:
    from sacrebleu.metrics import CHRF

    return CHRF(lowercase=lowercase, word_order=word_order)


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

"""BLEU and chrF by sacreBLEU; no score leaves without its signature."""

import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from relu_nmt.config import like, option, settings
from relu_nmt.errors import ConfigError, DataError

METRICS = ("bleu", "chrf")
COMPOUND = "compound"
"""The tokeniser, beside those of sacreBLEU, that splits hyphenated words of tokenised text."""
DEFAULT_TOKENIZER = "13a"
FETCHED = ("spm", "flores101", "flores200", "spBLEU-1K")
"""Tokenisers whose model sacreBLEU fetches when it is first needed."""
FETCH_SECONDS = 30


@settings
class TokenizerOptions:
    """How BLEU splits text into words; the same option of every command that scores."""

    sacrebleu_tokenizer: str | None = option(
        None,
        "sacreBLEU's tokeniser of BLEU: 13a, zh, ja-mecab, ko-mecab, char, intl, flores200...; "
        "none: tokenised text; compound: the same with hyphenated words split, for WMT14 "
        "English-German. By default the target language chooses",
        flags=("--tokenize",),
        metavar="NAME",
    )


@settings
class ScoringConfig:
    """How translations of a data folder are compared with its references.

    Raises:
        ConfigError: settings that contradict each other.
    """

    scoring: str = option(
        "sacrebleu",
        "sacrebleu: BLEU of raw text; bleu: BLEU of tokenised text, subwords joined, as "
        "multi-bleu.perl; compound-bleu: the same with hyphenated words split, as usual for WMT14 "
        "English-German; chrf: chrF2 of raw text",
        choices=("sacrebleu", "bleu", "compound-bleu", "chrf"),
    )
    sacrebleu: bool = option(
        False,
        "as in fairseq: --scoring sacrebleu",
        needs=("scoring", "sacrebleu"),
    )
    sacrebleu_tokenizer: str | None = like(
        TokenizerOptions, "sacrebleu_tokenizer", None, needs=("scoring", "sacrebleu")
    )
    sacrebleu_lowercase: bool | None = option(
        None, "ignore case; by default where the data was lower-cased"
    )


class CompoundTokenizer:
    """Splits every ``X-Y`` of tokenised text into ``X ##AT##-##AT## Y``, in sacreBLEU's interface.

    As the usual script for WMT14 English-German does, which raises BLEU: matches do not overlap, so
    of ``a-b-c`` the first hyphen is split only. What Moses has split in its aggressive mode
    (``@-@``) stays as it is.

    Example:
        >>> CompoundTokenizer()("a long-term - plan")
        'a long ##AT##-##AT## term - plan'
    """

    def signature(self) -> str:
        """Return what stands behind ``tok:``."""
        return COMPOUND

    def __call__(self, line: str) -> str:
        """Return a segment with its tokens divided by blanks."""
        return re.sub(r"(?!@-@)(\S)-(\S)", r"\1 ##AT##-##AT## \2", line)


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

    def of_bucket(self, bucket: str) -> "Score":
        """Return the score with the name of a bucket behind its own: ``d-BLEU[17-32]``."""
        return replace(self, text=self.text.replace(self.name, f"{self.name}[{bucket}]", 1))


@dataclass(frozen=True)
class MetricConfig:
    """A metric and its settings, for scores of several sets of segments.

    Args:
        name: ``bleu`` or ``chrf``.
        lowercase: ignore case.
        tokenize: sacreBLEU's tokeniser, for BLEU: ``13a``, ``intl``, ``char``, ``zh``, ``none``...;
            or ``compound``, see :class:`CompoundTokenizer`.
        order: longest n-gram of BLEU.
        word_order: longest word n-gram of chrF; 2 is chrF++.
        smooth: of BLEU: ``exp`` (sacreBLEU's default) or ``none`` (as multi-bleu.perl).

    Raises:
        ConfigError: no such metric.

    Example:
        >>> MetricConfig("chrf").score(["a dog"], [["a dog"]]).text
        'chrF2 = 100.00'
    """

    name: str = "bleu"
    lowercase: bool = False
    tokenize: str = DEFAULT_TOKENIZER
    order: int = 4
    word_order: int = 0
    smooth: str = "exp"

    def __post_init__(self) -> None:
        if self.name not in METRICS:
            raise ConfigError(f"metric '{self.name}': choose one of {', '.join(METRICS)}")

    def build(self, effective_order: bool = False) -> Any:
        """Return sacreBLEU's object of this metric.

        Args:
            effective_order: of BLEU: leave out orders without any n-gram, as of single sentences.

        Raises:
            ConfigError: no such tokeniser, or one that needs a further package.
        """
        from sacrebleu.metrics import BLEU, CHRF

        if self.name == "chrf":
            return CHRF(lowercase=self.lowercase, word_order=self.word_order)
        known = [*BLEU.TOKENIZERS, COMPOUND]
        if self.tokenize not in known:
            names = ", ".join(known)
            raise ConfigError(f"BLEU tokeniser '{self.tokenize}': choose one of {names}")
        if self.order < 1:
            raise ConfigError(f"BLEU of order {self.order}: expected 1 or more")
        with _explained(self.tokenize):
            metric = BLEU(
                lowercase=self.lowercase,
                tokenize="none" if self.tokenize == COMPOUND else self.tokenize,
                smooth_method=self.smooth,
                max_ngram_order=self.order,
                effective_order=effective_order,
                force=True,  # no advice on standard error about tokenised text
            )
        if self.tokenize == COMPOUND:
            metric.tokenizer = CompoundTokenizer()
            metric.tokenizer_signature = metric.tokenizer.signature()
        return metric

    @property
    def signature(self) -> str:
        """The signature of scores against one set of references."""
        metric = self.build()
        metric.num_refs = 1
        return str(metric.get_signature())

    def score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
        """Return the score of the segments.

        Args:
            hypotheses: one segment each.
            references: one or more lists, each as long as ``hypotheses``.

        Raises:
            DataError: numbers of segments differ, or there are none.
            ConfigError: see :meth:`build`.
        """
        for number, lines in enumerate(references, 1):
            if len(lines) != len(hypotheses):
                raise DataError(
                    f"{len(hypotheses):,} translations, but {len(lines):,} references (set "
                    f"{number}); both need the same lines in the same order"
                )
        if not hypotheses or not references:
            raise DataError("no lines to score")
        metric = self.build()
        score = metric.corpus_score(list(hypotheses), [list(lines) for lines in references])
        return Score(score.score, str(score), str(metric.get_signature()))

    def sentence_score(self, hypothesis: str, references: Sequence[str]) -> Score:
        """Return the smoothed BLEU of one sentence; orders without any n-gram are left out."""
        metric = self.build(effective_order=True)
        score = metric.sentence_score(hypothesis, list(references))
        return Score(score.score, str(score), str(metric.get_signature()))

    def reference_lengths(self, references: Sequence[str]) -> list[int]:
        """Return the length of each segment as BLEU counts it, in tokens of ``tokenize``."""
        metric = replace(self, name="bleu").build(effective_order=True)
        return [metric.sentence_score(line, [line]).ref_len for line in references]


@contextmanager
def _explained(tokenizer: str) -> Iterator[None]:
    """Tell what a tokeniser lacks, and do not wait for the network without end.

    Raises:
        ConfigError: a package or a model is missing; the message names it.
    """
    patience = socket.getdefaulttimeout()
    if tokenizer in FETCHED:
        socket.setdefaulttimeout(FETCH_SECONDS)
    try:
        yield
    except (Exception, SystemExit) as error:  # sacreBLEU exits where a certificate is wrong
        reason = " ".join(str(error).split())
        if tokenizer in FETCHED:
            from sacrebleu.utils import SACREBLEU_DIR

            reason = (
                f"cannot fetch or read its model ({reason}); it is kept in "
                f"{os.path.join(SACREBLEU_DIR, 'models')}: connect to the network, delete a "
                "damaged file there, or choose char"
            )
        raise ConfigError(f"BLEU tokeniser '{tokenizer}': {reason}") from error
    finally:
        socket.setdefaulttimeout(patience)

"""Settings of :mod:`relu_nmt.recipes.score`."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from relu_nmt.config import flag_of, option
from relu_nmt.data.dictionary import SENTENCE_SEPARATOR
from relu_nmt.data.documents import SEPARATORS
from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.bleu import METRICS
from relu_nmt.evaluation.length_buckets import DEFAULT_EDGES, length_buckets
from relu_nmt.evaluation.significance import DEFAULT_SAMPLES


def _parse_metrics(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in METRICS:
            raise ValueError(f"'{name}': expected one or more of {', '.join(METRICS)}")
    return names


def _parse_edges(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"'{text}': expected numbers of tokens, as in 128,256,512") from None


@dataclass(frozen=True)
class ScoreOptions:
    """What to compare, and how."""

    sys: str = option("-", "translations; - is standard input", flags=("-s",), metavar="FILE")
    ref: str = option("", "references; several sets with commas", flags=("-r",), metavar="FILE")
    metrics: tuple[str, ...] = option(
        ("bleu",), "scores to print: bleu,chrf", metavar="M", parse=_parse_metrics
    )
    order: int = option(4, "longest n-gram of BLEU", flags=("-o",), metavar="N")
    ignore_case: bool = option(False, "ignore case")
    tokenize: str = option(
        "13a", "sacreBLEU's tokeniser: 13a, intl, char, zh, none...", metavar="NAME"
    )
    chrf_word_order: int = option(0, "longest word n-gram of chrF; 2 is chrF++", metavar="N")
    sacrebleu: bool = option(False, "as in fairseq; all scores are sacreBLEU's anyway")
    sentence_bleu: bool = option(False, "print the (smoothed) BLEU of each line instead")


@dataclass(frozen=True)
class DocumentOptions:
    """Where documents begin, and what else to tell about the scores.

    Raises:
        ConfigError: flags that contradict each other.
    """

    document_separator: str = option(
        "none",
        "what stands between documents, in all files: a blank line, or a line <d> before each "
        "(tag); their lines may be sentences or groups of them",
        choices=SEPARATORS,
    )
    documents: str | None = option(
        None,
        "lines of each document of the references, a number a line, as relu-nmt-preprocess writes "
        "it (test.de-en.documents)",
        metavar="FILE",
    )
    sys_documents: str | None = option(
        None, "the same for --sys where its lines are groups of sentences", metavar="FILE"
    )
    baseline_documents: str | None = option(None, "the same for --baseline", metavar="FILE")
    sentence_separator: str | None = option(
        None,
        "cut the lines of the translations at this symbol, for s-BLEU "
        f"(without a value: {SENTENCE_SEPARATOR})",
        metavar="SYMBOL",
        bare=SENTENCE_SEPARATOR,
    )
    baseline: str | None = option(
        None,
        "translations of another system: is --sys better? Paired bootstrap, over documents if "
        "their boundaries are given, otherwise over lines; SACREBLEU_SEED sets the seed",
        metavar="FILE",
    )
    paired_bs_n: int = option(DEFAULT_SAMPLES, "resamples of the paired bootstrap", metavar="N")
    length_buckets: tuple[int, ...] = option(
        (),
        "also score by reference length; longest of each bucket, in tokens of BLEU (without a "
        f"value: {','.join(map(str, DEFAULT_EDGES))})",
        metavar="N,N,...",
        parse=_parse_edges,
        bare=DEFAULT_EDGES,
    )

    def __post_init__(self) -> None:
        if self.documents and self.document_separator != "none":
            raise ConfigError("--documents and --document-separator exclude each other")
        for flag, value in (
            ("--sys-documents", self.sys_documents),
            ("--baseline-documents", self.baseline_documents),
        ):
            if value and not self.documents:
                raise ConfigError(f"{flag} goes with --documents, that of the references")
        if self.baseline_documents and not self.baseline:
            raise ConfigError("--baseline-documents goes with --baseline")
        if self.sentence_separator is not None and (
            not self.has_documents or not self.sentence_separator
        ):
            raise ConfigError(
                "--sentence-separator needs a symbol and document boundaries: --documents or "
                "--document-separator"
            )
        if self.length_buckets:
            length_buckets((), self.length_buckets)  # before anything is read
        if self.paired_bs_n < 1:
            raise ConfigError(f"--paired-bs-n {self.paired_bs_n}: expected 1 or more")

    @property
    def has_documents(self) -> bool:
        """Whether document boundaries are known."""
        return self.documents is not None or self.document_separator != "none"


@dataclass(frozen=True)
class ContrastOptions:
    """Which contrasts to show to which model.

    Raises:
        ConfigError: contrasts without a model.
    """

    contrastive: str = option(
        "",
        "score the right and wrong translations of this file (test.contrasts.jsonl of "
        "data_prep/grammar_corpus.py) with a model, given the sentences before, and without them",
        metavar="FILE",
    )
    path: str = option("", "checkpoint; several with colons are an ensemble", metavar="FILE")
    context_sentences: int | None = option(
        None, "most sentences to give of those before; all by default", metavar="N"
    )
    cpu: bool = option(False, "use the CPU even if there is a GPU")
    batch_size: int | None = option(
        None, "most translations in a batch; by default what suits the device", metavar="N"
    )

    def __post_init__(self) -> None:
        if self.contrastive and not self.path:
            raise ConfigError("--contrastive needs a model: give its checkpoint with --path")
        if self.context_sentences is not None and self.context_sentences < 1:
            raise ConfigError(
                f"--context-sentences {self.context_sentences}: expected 1 or more; what the model "
                "does without is printed anyway"
            )


@dataclass(frozen=True)
class OutputOptions:
    """How results are printed."""

    format: str = option("text", "a line for each score, or JSON", choices=("text", "json"))


@dataclass(frozen=True)
class ScoreSettings:
    """All settings of :mod:`relu_nmt.recipes.score`: of texts, or of a contrastive test.

    Raises:
        ConfigError: no reference, or flags that would have no effect.
    """

    texts: ScoreOptions
    documents: DocumentOptions
    contrasts: ContrastOptions
    output: OutputOptions

    def __post_init__(self) -> None:
        if self.contrasts.contrastive:
            _refuse(self.texts, "not with --contrastive")
            _refuse(self.documents, "not with --contrastive")
            return
        _refuse(self.contrasts, "only with --contrastive")
        if not self.texts.ref:
            raise ConfigError("--ref: give the file of the references")
        if self.texts.sentence_bleu:
            _refuse(self.documents, "not with --sentence-bleu")


def _refuse(options: Any, reason: str) -> None:
    """Refuse flags that would have no effect.

    Raises:
        ConfigError: an option differs from its default.
    """
    for field in dataclasses.fields(options):
        if getattr(options, field.name) != field.default:
            raise ConfigError(f"{flag_of(field.name)}: {reason}")

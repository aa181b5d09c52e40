"""Settings of relu-nmt-score."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from relu_nmt.config import (
    CHECKPOINTS,
    READ,
    WRITTEN,
    Files,
    flag_of,
    like,
    option,
    settings,
    shown,
    split_paths,
)
from relu_nmt.config.fields import options_of
from relu_nmt.config.shared import PrecisionOptions, batch_size_option
from relu_nmt.data.dictionary import SENTENCE_SEPARATOR
from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.document_scores import (
    DEFAULT_EDGES,
    DEFAULT_POSITIONS,
    length_buckets,
    position_buckets,
)
from relu_nmt.evaluation.metrics import DEFAULT_TOKENIZER, METRICS, tokenizer_option
from relu_nmt.evaluation.significance import DEFAULT_SAMPLES
from relu_nmt.io.text_lines import DECOMPRESSORS
from relu_nmt.jobs.preprocess.settings import PreprocessSettings

COMET = "comet"
COMET_MODEL = "Unbabel/wmt22-comet-da"
_read = partial(option, files=READ)
_of_contrasts = partial(option, needs="contrastive")
DOCUMENTS = (
    *("document_separator", "documents", "sys_documents", "baseline_documents"),
    *("sentence_separator", "baseline", "paired_bs_n", "length_buckets", "position_buckets"),
)
"""Settings of documents, of the comparison with a baseline, and of buckets."""
CONTRASTS = ("contrastive", "path", "context_sentences", "cpu", "batch_size", "format", "results")
"""Settings of the contrastive test."""


@settings
class ScoreSettings:
    """All settings of :mod:`relu_nmt.jobs.score.job`, for texts or a contrastive test."""

    # The texts to compare, and the scores.
    sys: str = option("-", "translations (- is standard input)", flags=("-s",), files=READ)
    ref: str = option(
        "", "references, several sets with commas", flags=("-r",), files=Files(separator=",")
    )
    metrics: tuple[str, ...] = option(
        ("bleu",),
        "scores to print: bleu, chrf, ter, comet (package unbabel-comet)",
        metavar="M",
        choices=(*METRICS, COMET),
        parse=str.lower,
    )
    src: str | None = _read(None, "sources, which comet reads too")
    comet_model: str = _read(
        COMET_MODEL, "model of comet: a file, or a name of Hugging Face's hub", metavar="NAME"
    )
    order: int = option(4, "longest n-gram of BLEU", flags=("-o",), least=1, most=100)
    ignore_case: bool = option(False, "ignore case")
    sacrebleu_tokenizer: str | None = tokenizer_option()
    target_lang: str | None = option(
        None,
        "language, for the tokenizer of BLEU (default: the ending of --ref)",
        metavar="LANG",
        needs=("sacrebleu_tokenizer", None),
    )
    chrf_word_order: int = option(0, "longest word n-gram of chrF (2 is chrF++)", least=0, most=100)
    sacrebleu: bool = option(False, "as in fairseq", no_effect="all scores are sacreBLEU's anyway")
    sentence_bleu: bool = option(False, "print the (smoothed) BLEU of each line instead")
    # Document boundaries, the comparison with a baseline, and scores of buckets.
    document_separator: str = like(PreprocessSettings, "document_separator")
    documents: str | None = _read(None, "number of lines of each reference document, one a line")
    sys_documents: str | None = _read(
        None, "the same for --sys if its lines are groups of sentences", needs="documents"
    )
    baseline_documents: str | None = _read(
        None, "the same for --baseline", needs=["documents", "baseline"]
    )
    sentence_separator: str | None = option(
        None,
        f"cut translations at this symbol, for s-BLEU (without a value: {SENTENCE_SEPARATOR})",
        metavar="SYMBOL",
        bare=SENTENCE_SEPARATOR,
    )
    baseline: str | None = _read(
        None, "translations of another system, to compare by paired bootstrap"
    )
    paired_bs_n: int = option(
        DEFAULT_SAMPLES,
        "resamples of the paired bootstrap",
        least=1,
        most=1_000_000,
        needs="baseline",
    )
    length_buckets: tuple[int, ...] = option(
        (),
        f"score by reference length too, in tokens (without a value: {shown(DEFAULT_EDGES)})",
        metavar="N,N,...",
        bare=DEFAULT_EDGES,
    )
    position_buckets: tuple[int, ...] = option(
        (),
        f"score by position in the document too (without a value: {shown(DEFAULT_POSITIONS)})",
        metavar="N,N,...",
        bare=DEFAULT_POSITIONS,
    )
    # The contrastive test of a model.
    contrastive: str = _read(
        "", "contrasts (JSON lines) whose right translations a model should prefer"
    )
    path: str = _of_contrasts(
        "", "checkpoint; several with colons are an ensemble", files=CHECKPOINTS
    )
    context_sentences: int | None = _of_contrasts(
        None, "most sentences before to give to the model; all by default", least=1
    )
    cpu: bool = like(PrecisionOptions, "cpu", False, needs="contrastive")
    batch_size: int | None = batch_size_option(
        help="most translations in a batch; the default suits the device", needs="contrastive"
    )
    format: str = option("text", "a line for each score, or JSON", choices=("text", "json"))
    results: str | None = option(None, "also write the scores to FILE as JSON", files=WRITTEN)

    def check(self) -> None:
        """Check that every setting has an effect."""
        self._check_texts()
        self._check_documents()
        if self.contrastive and not self.path:
            raise ConfigError("--contrastive needs a model: give its checkpoint with --path")
        # Refuse flags of the other kinds of scores.
        if self.contrastive:
            texts = [name for name in options_of(ScoreSettings) if name not in CONTRASTS]
            self._refuse(texts, "not with --contrastive")
        elif not self.ref:
            raise ConfigError("--ref: give the file of the references")
        elif self.sentence_bleu:
            self._refuse(DOCUMENTS, "not with --sentence-bleu")
        elif COMET in self.metrics:
            self._refuse(DOCUMENTS, "not with --metrics comet, which scores single lines")
        # The tokenizer needs a score that uses it.
        for name in ("sacrebleu_tokenizer", "target_lang"):
            value, is_read = getattr(self, name), "bleu" in self.metrics
            if value not in (None, DEFAULT_TOKENIZER) and not (is_read or self.length_buckets):
                raise ConfigError(
                    f"{flag_of(name)} {value} does nothing without --metrics bleu or "
                    "--length-buckets; leave it out"
                )
        if self.inputs.count("-") > 1:
            raise ConfigError(
                "- is standard input, which is read once; give files for all but one of --sys "
                "(- by default), --ref, --src and --baseline"
            )

    def _check_texts(self) -> None:
        # A setting of a score that is not computed has no effect.
        metrics = ("bleu",) if self.sentence_bleu else self.metrics
        for value, default, metric in (
            (f"--order {self.order}", "--order 4", "bleu"),
            (f"--chrf-word-order {self.chrf_word_order}", "--chrf-word-order 0", "chrf"),
            (f"--src {self.src}", "--src None", COMET),
            (f"--comet-model {self.comet_model}", f"--comet-model {COMET_MODEL}", COMET),
        ):
            if value != default and metric not in metrics:
                raise ConfigError(f"{value} does nothing without --metrics {metric}; leave it out")
        if self.ignore_case and not {"bleu", "chrf"} & set(metrics):
            raise ConfigError(
                "--ignore-case does nothing without --metrics bleu or chrf (ter ignores case "
                "anyway); leave it out"
            )
        if self.sentence_bleu and self.metrics != ("bleu",):
            raise ConfigError("--metrics: not with --sentence-bleu")
        if self.ref and "" in split_paths(self.ref, ","):
            raise ConfigError(
                f"--ref {self.ref}: an empty name of a file; give several with a comma between them"
            )
        if COMET in metrics and (self.src is None or len(split_paths(self.ref, ",")) > 1):
            raise ConfigError("--metrics comet needs --src FILE, and one set of references")

    def _check_documents(self) -> None:
        if self.documents and self.document_separator != "none":
            raise ConfigError("--documents and --document-separator exclude each other")
        if self.sentence_separator is not None and (
            not self.has_documents or not self.sentence_separator
        ):
            raise ConfigError(
                "--sentence-separator needs a symbol and document boundaries: --documents or "
                "--document-separator"
            )
        # Check the buckets before any file is read.
        if self.length_buckets:
            length_buckets((), self.length_buckets)
        if self.position_buckets:
            position_buckets((), self.position_buckets)
            if not self.has_documents:
                raise ConfigError(
                    "--position-buckets needs document boundaries: --documents or "
                    "--document-separator"
                )

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        """Refuse flags that would have no effect."""
        for name in names:
            if getattr(self, name) != options_of(ScoreSettings)[name].default:
                raise ConfigError(f"{flag_of(name)}: {reason}")

    @property
    def language(self) -> str:
        """Code of the language of the texts, by default the ending of the references."""
        path = Path(split_paths(self.ref, ",")[0])
        if path.suffix in DECOMPRESSORS:
            path = path.with_suffix("")
        return self.target_lang or path.suffix[1:]

    @property
    def has_documents(self) -> bool:
        """Return whether document boundaries are known."""
        return self.documents is not None or self.document_separator != "none"

    @property
    def inputs(self) -> list[str]:
        """The files to read."""
        counts = (self.documents, self.sys_documents, self.baseline_documents)
        texts = (self.sys, *split_paths(self.ref, ","), self.src, self.baseline, self.contrastive)
        return [path for path in (*texts, *counts, *split_paths(self.path, ":")) if path]

"""Settings of relu-nmt-score."""

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
    refuse_given,
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
NEEDS_BLEU = ("metrics", "bleu")
NEEDS_COMET = ("metrics", COMET)
_read = partial(option, files=READ)
_buckets = partial(option, (), metavar="N,N,...")
DOCUMENTS = (
    *("document_separator", "documents", "sentence_separator"),
    *("baseline", "paired_bs_n", "length_buckets", "position_buckets"),
)
"""Settings for documents, for the comparison with a baseline, and for buckets."""
CONTRASTS = ("contrastive", "path", "cpu", "batch_size", "format", "results")
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
    src: str | None = _read(None, "sources, which comet reads too", needs=NEEDS_COMET)
    comet_model: str = _read(
        COMET_MODEL,
        "model of comet: a file, or a name of Hugging Face's hub",
        metavar="NAME",
        needs=NEEDS_COMET,
    )
    order: int = option(
        4, "longest n-gram of BLEU", flags=("-o",), least=1, most=100, needs=NEEDS_BLEU
    )
    # TER ignores case anyway.
    ignore_case: bool = option(False, "ignore case", needs=("metrics", "bleu", "chrf"))
    sacrebleu_tokenizer: str | None = tokenizer_option()
    target_lang: str | None = option(
        None,
        "language, for the tokenizer of BLEU (default: the ending of --ref)",
        metavar="LANG",
        needs=("sacrebleu_tokenizer", None),
    )
    chrf_word_order: int = option(
        0, "longest word n-gram of chrF (2 is chrF++)", least=0, most=100, needs=("metrics", "chrf")
    )
    sacrebleu: bool = option(False, "as in fairseq", no_effect="all scores are sacreBLEU's anyway")
    sentence_bleu: bool = option(False, "print the (smoothed) BLEU of each line instead")
    # Document boundaries, the comparison with a baseline, and scores of buckets.
    document_separator: str = like(PreprocessSettings, "document_separator")
    documents: str | None = _read(
        None,
        "number of lines of each reference document, one a line",
        needs=("document_separator", "none"),
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
    length_buckets: tuple[int, ...] = _buckets(
        f"score by reference length too, in tokens (without a value: {shown(DEFAULT_EDGES)})",
        bare=DEFAULT_EDGES,
    )
    position_buckets: tuple[int, ...] = _buckets(
        f"score by position in the document too (without a value: {shown(DEFAULT_POSITIONS)})",
        bare=DEFAULT_POSITIONS,
    )
    # The contrastive test of a model.
    contrastive: str = _read(
        "", "contrasts (JSON lines) whose right translations a model should prefer"
    )
    path: str = option(
        "",
        "checkpoint; several with colons are an ensemble",
        files=CHECKPOINTS,
        needs="contrastive",
    )
    cpu: bool = like(PrecisionOptions, "cpu", False, needs="contrastive")
    batch_size: int | None = batch_size_option(
        help="most translations in a batch; the default suits the device", needs="contrastive"
    )
    format: str = option("text", "a line for each score, or JSON", choices=("text", "json"))
    results: str | None = option(None, "write the scores to FILE as JSON, too", files=WRITTEN)

    def check(self) -> None:
        """Check that every setting has an effect."""
        # Refuse flags of the other kinds of scores.
        if self.contrastive:
            if not self.path:
                raise ConfigError("--contrastive needs a model: give its checkpoint with --path")
            others = options_of(ScoreSettings).keys() - CONTRASTS
            refuse_given(self, others, ": not with --contrastive")
        elif not self.ref:
            raise ConfigError("--ref: give the file of the references")
        elif self.sentence_bleu:
            if self.metrics != ("bleu",):
                raise ConfigError("--metrics: not with --sentence-bleu; leave one of the two out")
            refuse_given(self, DOCUMENTS, ": not with --sentence-bleu")
        elif COMET in self.metrics:
            refuse_given(self, DOCUMENTS, ": not with --metrics comet, which scores single lines")
            if self.src is None or len(self.references) > 1:
                raise ConfigError("--metrics comet needs --src FILE, and one set of references")
        self._check_texts()
        self._check_documents()

    def _check_texts(self) -> None:
        if "" in self.references:
            raise ConfigError(
                f"--ref {self.ref}: an empty name of a file; give several with a comma between them"
            )
        # The tokenizer needs a score that uses it.
        has_tokens = "bleu" in self.metrics or self.length_buckets
        for name in ("sacrebleu_tokenizer", "target_lang"):
            value = getattr(self, name)
            if value not in (None, DEFAULT_TOKENIZER) and not has_tokens:
                raise ConfigError(
                    f"{flag_of(name)} {value} does nothing without --metrics bleu or "
                    "--length-buckets; leave it out"
                )
        others = (self.sys, self.src, self.baseline, self.documents, self.contrastive)
        if [*self.references, *others].count("-") > 1:
            raise ConfigError(
                "- is standard input, which is read once; give files for all but one of --sys "
                "(- by default), --ref, --src and --baseline"
            )

    def _check_documents(self) -> None:
        separator = self.sentence_separator
        if separator is not None and not (separator and self.has_documents):
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

    @property
    def references(self) -> list[str]:
        """The files of the references, one for each set."""
        return split_paths(self.ref, ",") if self.ref else []

    @property
    def language(self) -> str:
        """Code of the language of the texts, by default the ending of the references."""
        path = Path(self.references[0])
        if path.suffix in DECOMPRESSORS:
            path = path.with_suffix("")
        return self.target_lang or path.suffix[1:]

    @property
    def has_documents(self) -> bool:
        """Return whether document boundaries are known."""
        return self.documents is not None or self.document_separator != "none"

"""BLEU, chrF and TER by sacreBLEU, and COMET. Every score has its signature."""

import importlib.metadata
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from relu_nmt.config import option, settings
from relu_nmt.errors import ConfigError, DataError, first_line, needing
from relu_nmt.tokenization.sentences import CHINESE, JAPANESE

METRICS = ("bleu", "chrf", "ter")
COMPOUND = "compound"  # a tokenizer of ours that splits hyphenated words of tokenized text
DEFAULT_TOKENIZER = "13a"
FETCHED = ("spm", "flores101", "flores200", "spBLEU-1K")  # sacreBLEU downloads their models
FETCH_SECONDS = 30
COMET_BATCH_SIZE = 16
CODES = {
    "zh": CHINESE,
    "ja-mecab": JAPANESE,
    "ko-mecab": "ko kor",
    "char": "th tha lo lao km khm my mya bur bo bod tib dz dzo shn mnw rki blk ksw nod khb tdd",
}
"""Tokenizers for languages that 13a does not suit, mostly for lack of spaces between words."""
SCRIPTS = {
    DEFAULT_TOKENIZER: "latn cyrl",
    "zh": "hans hant hani",
    "ja-mecab": "jpan hrkt hira kana",
    "ko-mecab": "kore hang",
    "char": "thai laoo khmr mymr tibt lana talu tale java bali",
}
"""Tokenizers by ISO 15924 code of the script, which precedes the code of the language."""
WITH_SPACES = (DEFAULT_TOKENIZER, "ko-mecab")  # tokenizers of languages with spaces between words
INSTEAD = {"ja-mecab": "char", "ko-mecab": DEFAULT_TOKENIZER}  # if their packages are missing
LONGEST_WORDS = 15  # mean word length above which a text has hardly any spaces, in characters


# The same option in every command that scores.
tokenizer_option = partial(
    option,
    None,
    "BLEU's tokenizer: 13a, zh, none... (default: by language)",
    flags=("--tokenize",),
    metavar="NAME",
)


@settings
class ScoringConfig:
    """The comparison of translations of a data folder with its references."""

    scoring: str = option(
        "sacrebleu",
        "raw text: sacrebleu, chrf. Tokenized: bleu, compound-bleu (hyphens split)",
        choices=("sacrebleu", "bleu", "compound-bleu", "chrf"),
    )
    sacrebleu: bool = option(
        False, "as in fairseq: --scoring sacrebleu", needs=("scoring", "sacrebleu")
    )
    sacrebleu_tokenizer: str | None = tokenizer_option(needs=("scoring", "sacrebleu"))
    sacrebleu_lowercase: bool | None = option(
        None, "ignore case (by default where the data was lower-cased)"
    )


def split_compounds(line: str) -> str:
    """Split ``X-Y`` of tokenized text into ``X ##AT##-##AT## Y``: a tokenizer for sacreBLEU.

    The usual script for WMT14 English-German does the same, which raises BLEU. Matches do not
    overlap: of ``a-b-c`` only the first hyphen is split. Hyphens that Moses has split in its
    aggressive mode (``@-@``) stay.

    Example:
        >>> split_compounds("a long-term - plan")
        'a long ##AT##-##AT## term - plan'
    """
    return re.sub(r"(?!@-@)(\S)-(\S)", r"\1 ##AT##-##AT## \2", line)


@dataclass(frozen=True)
class Score:
    """A score of a whole corpus (or of one sentence)."""

    value: float  # 0 to 100, or more for TER
    name: str  # ``BLEU``, ``chrF2``, ``d-BLEU``...
    shown_value: str  # the value as sacreBLEU prints it, with its parts
    signature: str  # the settings of its computation

    def __str__(self) -> str:
        return f"{self.text} signature: {self.signature}"

    @property
    def text(self) -> str:
        """The score with its name and its parts: ``BLEU = 24.10 55.1/30.2/...``."""
        return f"{self.name} = {self.shown_value}"

    def labeled(self, prefix: str, segments: str, bucket: str = "") -> "Score":
        """Return the score with ``d-`` before its name, and ``documents = 240`` behind its value.

        The name of a bucket follows that of the score: ``d-BLEU[17-32]``.
        """
        name = f"{prefix}{self.name}"
        if bucket:
            name += f"[{bucket}]"
        return replace(self, name=name, shown_value=f"{self.shown_value} {segments}")


@dataclass(frozen=True)
class Metric:
    """A metric and its settings."""

    name: str = "bleu"  # ``bleu``, ``chrf`` or ``ter`` (edits over words, lower is better)
    lowercase: bool = False  # ignore case, as TER always does
    # BLEU's tokenizer: one of sacreBLEU, or ``compound``, see :func:`split_compounds`.
    tokenize: str = DEFAULT_TOKENIZER
    order: int = 4  # longest n-gram of BLEU
    word_order: int = 0  # longest word n-gram of chrF, 2 for chrF++
    smooth: str = "exp"  # BLEU's: ``exp``, or ``none`` (as multi-bleu.perl)

    def __post_init__(self) -> None:
        if self.name not in METRICS:
            raise ConfigError(f"metric '{self.name}': choose one of {', '.join(METRICS)}")

    def build(self, effective_order: bool = False) -> Any:
        """Return sacreBLEU's object. ``effective_order`` leaves out orders without any n-gram."""
        from sacrebleu.metrics import BLEU, CHRF, TER

        if self.name == "chrf":
            return CHRF(lowercase=self.lowercase, word_order=self.word_order)
        if self.name == "ter":
            return TER()
        # Check the settings, as sacreBLEU's messages do not name our flags.
        tokenizers = [*BLEU.TOKENIZERS, COMPOUND]
        if self.tokenize not in tokenizers:
            names = ", ".join(tokenizers)
            raise ConfigError(f"BLEU tokenizer '{self.tokenize}': choose one of {names}")
        if self.order < 1:
            raise ConfigError(f"BLEU of order {self.order}: expected 1 or more")
        # Make the metric, for which sacreBLEU may need a package or a download.
        limited = _limited_downloads() if self.tokenize in FETCHED else nullcontext()
        with limited, _explained_errors(self.tokenize):
            metric = BLEU(
                lowercase=self.lowercase,
                tokenize="none" if self.tokenize == COMPOUND else self.tokenize,
                smooth_method=self.smooth,
                max_ngram_order=self.order,
                effective_order=effective_order,
                force=True,  # no advice on standard error about tokenized text
            )
        if self.tokenize == COMPOUND:
            metric.tokenizer = split_compounds
            metric.tokenizer_signature = COMPOUND
        return metric

    @property
    def signature(self) -> str:
        """The signature of scores against one set of references."""
        metric = self.build()
        metric.num_refs = 1
        return str(metric.get_signature())

    def score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
        """Return the score of the segments against one or more lists of references."""
        for number, lines in enumerate(references, 1):
            if len(lines) != len(hypotheses):
                raise DataError(
                    f"{len(hypotheses):,} translations, but {len(lines):,} references (set "
                    f"{number}); both need the same lines in the same order"
                )
        if not hypotheses or not references:
            raise DataError("no lines to score")
        metric = self.build()
        return _score(metric, metric.corpus_score(list(hypotheses), list(map(list, references))))

    def sentence_score(self, hypothesis: str, references: Sequence[str]) -> Score:
        """Return the smoothed BLEU of one sentence. Orders without any n-gram are left out."""
        metric = self.build(effective_order=True)
        return _score(metric, metric.sentence_score(hypothesis, list(references)))

    def reference_lengths(self, references: Sequence[str]) -> list[int]:
        """Return the length of each segment in tokens of ``tokenize``, as BLEU counts them."""
        metric = replace(self, name="bleu").build(effective_order=True)
        return [metric.sentence_score(line, [line]).ref_len for line in references]


def _score(metric: Any, score: Any) -> Score:
    """Return a score of a metric, both sacreBLEU's."""
    name, _, shown_value = str(score).partition(" = ")
    return Score(score.score, name, shown_value, str(metric.get_signature()))


@contextmanager
def _limited_downloads() -> Iterator[None]:
    """Limit how long a connection of this process may stand still."""
    earlier = socket.getdefaulttimeout()
    socket.setdefaulttimeout(FETCH_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(earlier)


@contextmanager
def _explained_errors(tokenizer: str) -> Iterator[None]:
    """Turn errors of a tokenizer into a ConfigError."""
    try:
        yield
    except (Exception, SystemExit) as error:  # sacreBLEU exits where a certificate is wrong
        reason = " ".join(str(error).split())
        # Name the folder of a downloaded model, so that users can repair it.
        if tokenizer in FETCHED:
            from sacrebleu.utils import SACREBLEU_DIR

            reason = (
                f"cannot fetch or read its model ({reason}); it is kept in "
                f"{os.path.join(SACREBLEU_DIR, 'models')}: connect to the network, delete a "
                "damaged file there, or choose char"
            )
        raise ConfigError(f"BLEU tokenizer '{tokenizer}': {reason}") from error


def recommended_tokenizer(language: str) -> str:
    """Return the tokenizer that sacreBLEU's documentation recommends for a language.

    Reference: README of sacreBLEU 2.6. It recommends zh, ja-mecab and ko-mecab for their languages
    and 13a for others. Other languages without spaces get char, which needs no network.

    Example:
        >>> [recommended_tokenizer(code) for code in ("de", "zh_TW", "jpn_Jpan", "tha", "zh-Latn")]
        ['13a', 'zh', 'ja-mecab', 'char', '13a']
    """
    # Split at anything but letters, as in zh-CN or zho_Hans.
    code, *further = re.split(r"[^a-z]", language.lower())
    # Try the script first, since it says more than the language.
    for name, codes in SCRIPTS.items():
        if not set(codes.split()).isdisjoint(further):
            return name
    for name, codes in CODES.items():
        if code in codes.split():
            return name
    return DEFAULT_TOKENIZER


def choose_tokenizer(language: str, references: Sequence[str]) -> tuple[str, str]:
    """Return an installed tokenizer for a language ("" if unknown), and a note or ""."""
    name = recommended = recommended_tokenizer(language)
    note = ""
    if name != DEFAULT_TOKENIZER:
        note = f"BLEU of {language} uses the tokenizer {name}"
    if recommended in INSTEAD:
        # Build it once, to find out if its package is installed.
        try:
            Metric(tokenize=recommended).build()
        except ConfigError:
            name = INSTEAD[recommended]
            note = f"BLEU of {language} uses the tokenizer {name}"
            note += f"; for {recommended} install 'sacrebleu[{recommended[:2]}]'"
    elif recommended == DEFAULT_TOKENIZER:
        # Look for very long words, a sign of text without spaces.
        words = " ".join(references).split()
        if sum(map(len, words)) > LONGEST_WORDS * len(words):
            note = "the references have hardly any spaces; --sacrebleu-tokenizer char suits them"
    return name, note


def comet_score(
    model: str, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> Score:
    """Return the mean COMET of lines, computed on a GPU if available. COMET also reads the source.

    Reference: Rei et al. 2020, "COMET: a neural framework for MT evaluation".
    """
    # Import late, since the package is optional.
    with needing("--metrics comet needs the package unbabel-comet: pip install unbabel-comet"):
        from comet import download_model, load_from_checkpoint
    import torch

    try:
        path = model if Path(model).is_file() else download_model(model)
        metric = load_from_checkpoint(path)
    except Exception as error:  # of the network, the hub or the file
        raise DataError(f"--comet-model {model}: cannot be loaded: {first_line(error)}") from error
    data = []
    for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True):
        data.append({"src": source, "mt": hypothesis, "ref": reference})
    gpus = min(1, torch.cuda.device_count())
    prediction = metric.predict(data, batch_size=COMET_BATCH_SIZE, gpus=gpus, progress_bar=False)
    value = float(prediction.system_score)
    # Name model and version, since scores depend on both.
    version = importlib.metadata.version("unbabel-comet")
    return Score(value, "COMET", f"{value:.4f}", f"model:{model}|version:{version}")

"""Settings that the commands share that translate."""

import ast
import json
from typing import Any

from relu_nmt.config import REQUIRED, checked_by, like, option, settings
from relu_nmt.config.files import CHECKPOINTS, READ
from relu_nmt.config.shared import CommonOptions, FairseqOptions, PrecisionOptions
from relu_nmt.data.documents import SINGLE_SENTENCES, DocumentConfig, WindowConfig
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionBackendConfig

NEED_REFERENCES = dict.fromkeys(
    ("score_reference", "prefix_size"), "it needs references; use relu-nmt-generate"
)
"""Options of the search that commands without references refuse."""


def model_overrides(text: str) -> dict[str, Any]:
    """Return settings of a model by name, from JSON or a Python dictionary as in fairseq."""
    for read in (json.loads, ast.literal_eval):
        try:
            values = read(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            values = None
        if isinstance(values, dict) and all(isinstance(name, str) for name in values):
            return values
    raise ValueError('expected settings such as \'{"positions": "learned"}\'')


@settings
class ModelOptions(FairseqOptions, PrecisionOptions, AttentionBackendConfig):
    """The model that translates, and the form of its text."""

    path: str = option(
        REQUIRED, "checkpoint; several with colons (a:b) are an ensemble", files=CHECKPOINTS
    )
    source_lang: str | None = like(
        CommonOptions, "source_lang", None, "source language; by default the model's"
    )
    target_lang: str | None = like(
        CommonOptions, "target_lang", None, "target language; by default the model's"
    )
    post_process: str | None = option(
        None,
        "marks of subwords to join: @@, sentencepiece, wordpiece, letter, _EOW",
        flags=("--remove-bpe",),
        metavar="SYMBOL",
        bare="@@ ",
    )
    tokenizer: str | None = option(
        None, "detokeniser for data that came tokenised", choices=("moses", "space", "none")
    )
    int8: bool = option(
        False, "multiply 8-bit integers (x86 CPUs): faster; a few translations change"
    )
    shortlist: str | None = option(
        None, "file of relu-nmt-shortlist with the allowed target symbols: faster", files=READ
    )
    model_overrides: str = option(
        "{}",
        "model settings that replace the checkpoint's, as JSON",
        metavar="SETTINGS",
        parse=checked_by(model_overrides),
    )
    max_source_length: int | None = option(
        None,
        "longest sentence to translate, in tokens; others get an empty line",
        flags=("--max-source-positions",),
        least=2,
    )
    truncate_source: bool = option(False, "translate the beginning of longer sentences instead")

    def check(self) -> None:
        """Compare the dtypes."""
        super().check()
        if self.int8 and (self.bf16 or self.fp16):
            raise ConfigError("--int8, --bf16 and --fp16 exclude each other; give one")


@settings
class WindowOptions:
    """Size of the parts of a document that are translated at once."""

    max_doc_tokens: int | None = like(
        DocumentConfig,
        "max_doc_tokens",
        None,
        "join lines of a document up to N source tokens (default: as in training)",
    )
    window_overlap: int = like(WindowConfig, "window_overlap", 0)

    def check(self) -> None:
        """Check limit and overlap before the model is loaded."""
        if self.max_doc_tokens is not None:
            self.windows(self.max_doc_tokens)

    def windows(
        self, trained: int, *, has_documents: bool = True, repair: bool = True
    ) -> WindowConfig:
        """Return the division of documents: ``--max-doc-tokens``, or ``trained`` as in training.

        Without boundaries of documents the windows are single sentences.

        Raises:
            ConfigError: an overlap of single sentences.
        """
        limit = self.max_doc_tokens or (trained if has_documents else SINGLE_SENTENCES)
        return WindowConfig(limit, self.window_overlap, repair)


@settings
class TermOptions:
    """Terms that the translations of lines must have or must not have."""

    prefixes: str | None = option(
        None, "begin the translation of each line with the same line of FILE", files=READ
    )
    banned_terms: str | None = option(
        None, "terms that no translation may have, one a line", files=READ
    )
    constraints: str | None = option(
        None,
        "force the terms that follow a line after tabs, in this order or any",
        choices=("ordered", "unordered"),
        bare="ordered",
    )

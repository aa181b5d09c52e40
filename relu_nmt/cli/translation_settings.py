"""Settings that the commands share that translate."""

import ast
import json
from typing import Any

from relu_nmt.attention.spec import AttentionBackendConfig
from relu_nmt.config import REQUIRED, checked_by, like, option, settings
from relu_nmt.config.files import CHECKPOINTS, READ
from relu_nmt.config.shared import CommonOptions, FairseqOptions, PrecisionOptions
from relu_nmt.data.documents import SINGLE_SENTENCES, DocumentConfig
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.config import GenerationConfig, WindowConfig

NEED_REFERENCES = ("score_reference", "prefix_size")


def model_overrides(text: str) -> dict[str, Any]:
    """Return settings of a model by name, from JSON or a Python dictionary as in fairseq.

    Raises:
        ValueError: the text is neither.
    """
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
        "show sentences with subwords joined. Data that came split (fairseq's folders) needs the "
        "kind of its marks: @@ (also without a value), sentencepiece, wordpiece, letter, _EOW",
        flags=("--remove-bpe",),
        metavar="SYMBOL",
        bare="@@ ",
    )
    tokenizer: str | None = option(
        None,
        "detokeniser for data that came tokenised",
        choices=("moses", "space", "none"),
    )
    bf16: bool = like(PrecisionOptions, "bf16", False, "compute in bfloat16; also on the CPU")
    int8: bool = option(
        False,
        "multiply 8-bit integers, on x86 CPUs with AVX2 or AVX512-VNNI: faster for batches of many "
        "sentences. A few translations change, and some depend on the other sentences of the batch",
    )
    shortlist: str | None = option(
        None,
        "translate with the symbols in this file of relu-nmt-shortlist only: faster. Some "
        "translations change, and some depend on the other sentences of the batch. With forced "
        "prefixes or terms, or banned terms, all symbols are allowed",
        files=READ,
    )
    model_overrides: str = option(
        "{}",
        "settings of the model that replace those in its checkpoint, as JSON or a Python "
        "dictionary: {'attention': 'reluformer:gamma=4'}",
        metavar="SETTINGS",
        parse=checked_by(model_overrides),
    )
    max_source_length: int | None = option(
        None,
        "longest sentence to translate, in tokens with </s>, if less than the model can read, to "
        "bound time and memory. Longer ones get an empty translation and a note",
        flags=("--max-source-positions",),
        least=2,
        metavar="N",
    )
    truncate_source: bool = option(
        False, "translate the beginning of longer sentences instead, with a note"
    )

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
        "join lines of a document up to N source tokens, </s> included; by default the longest "
        f"that the model was trained on ({SINGLE_SENTENCES}, line by line, after training on "
        "sentences)",
    )
    window_overlap: int = like(WindowConfig, "window_overlap", 0)

    def check(self) -> None:
        """Check limit and overlap before the model is loaded."""
        if self.max_doc_tokens is not None:
            self.windows(self.max_doc_tokens)

    def windows(
        self, trained: int, *, has_documents: bool = True, repair: bool = True
    ) -> WindowConfig:
        """Return the division of documents: ``--max-doc-tokens``, or as in training.

        Args:
            trained: the longest groups in training, in tokens.
            has_documents: the text has boundaries of documents; otherwise single sentences.
            repair: as in :class:`WindowConfig`.

        Raises:
            ConfigError: an overlap of single sentences.
        """
        limit = self.max_doc_tokens or (trained if has_documents else SINGLE_SENTENCES)
        return WindowConfig(limit, self.window_overlap, repair)


@settings
class TermOptions:
    """Terms that the translations of lines must have or must not have."""

    prefixes: str | None = option(
        None,
        "begin the translation of each line with the text in the same line of FILE, whole words; "
        "an empty line forces nothing",
        files=READ,
    )
    banned_terms: str | None = option(
        None,
        "ban the terms in FILE from all translations; each line is a term of one or more words. "
        "With SentencePiece, words that begin with a term are banned too",
        files=READ,
    )
    constraints: str | None = option(
        None,
        "force terms: the translation of a line must have the terms that follow it, each after a "
        "tab, without overlap, in this order (ordered, also without a value) or in any order "
        "(unordered). Use a --beam of 5 to 20, more for many terms. Subwords of a term may become "
        "part of a longer word, as in fairseq",
        choices=("ordered", "unordered"),
        bare="ordered",
    )


def refuse_references(config: GenerationConfig) -> None:
    """Refuse settings of the search that need references.

    Raises:
        ConfigError: a setting needs them.
    """
    if config.score_reference or config.prefix_size:
        raise ConfigError(
            "--score-reference and --prefix-size need references; use relu-nmt-generate"
        )

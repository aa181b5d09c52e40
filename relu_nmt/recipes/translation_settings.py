"""Settings of the recipes that translate plain text: of documents, or lines as they come."""

import ast
import json
from typing import Any, ClassVar

from relu_nmt.attention.spec import AttentionBackendConfig
from relu_nmt.config import REQUIRED, checked_by, group, like, option, settings
from relu_nmt.config.files import CHECKPOINTS, READ, Files
from relu_nmt.config.shared import CommonOptions, FairseqOptions, PrecisionOptions
from relu_nmt.data.data_folder import DATA_FILES
from relu_nmt.data.groups import SINGLE_SENTENCES, DocumentConfig
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.config import (
    CommandDocumentSearch,
    CommandSearch,
    GenerationConfig,
    WindowConfig,
)

NEED_REFERENCES = ("score_reference", "prefix_size")


def model_overrides(text: str) -> dict[str, Any]:
    """Return settings of a model by name: JSON, or as Python writes it, which fairseq's users do.

    Raises:
        ValueError: it is neither.
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
    """Which model to translate with, and what its text looks like."""

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
        "show sentences with subwords joined. Data that came split (fairseq's folders) needs to "
        "be told how: @@ (also without a value), sentencepiece, wordpiece, letter, _EOW",
        flags=("--remove-bpe",),
        metavar="SYMBOL",
        bare="@@ ",
    )
    tokenizer: str | None = option(
        None,
        "how data that came tokenised is to be detokenised",
        choices=("moses", "space", "none"),
    )
    bf16: bool = like(PrecisionOptions, "bf16", False, "compute in bfloat16; also on the CPU")
    int8: bool = option(
        False,
        "multiply 8-bit integers, on x86 CPUs with AVX2 or AVX512-VNNI: faster for batches "
        "of many sentences, and a few translations change. What each is may depend a little on the "
        "others of its batch",
    )
    shortlist: str | None = option(
        None,
        "translate with these symbols only, as relu-nmt-shortlist writes them: faster, and some "
        "translations change, also with the others of a batch. Where prefixes or terms are forced, "
        "or terms banned, all symbols are allowed",
        files=READ,
    )
    model_overrides: str = option(
        "{}",
        "settings of the model that go before those in its checkpoint, as JSON or as Python writes "
        "them: {'attention': 'reluformer:gamma=4'}",
        metavar="SETTINGS",
        parse=checked_by(model_overrides),
    )
    max_source_length: int | None = option(
        None,
        "longest sentence to translate, in tokens with </s>, if less than the model can read: it "
        "bounds time and memory. The translation of longer ones is empty, and told of",
        flags=("--max-source-positions",),
        least=2,
        metavar="N",
    )
    truncate_source: bool = option(
        False, "translate the beginning of longer sentences instead, and tell of them"
    )

    def check(self) -> None:
        """Compare the formats of numbers."""
        super().check()
        if self.int8 and (self.bf16 or self.fp16):
            raise ConfigError("--int8, --bf16 and --fp16 exclude each other; give one")


@settings
class WindowOptions:
    """How much of a document to translate at once."""

    max_doc_tokens: int | None = like(
        DocumentConfig,
        "max_doc_tokens",
        None,
        "join lines of a document up to N source tokens, </s> included; by default the longest "
        f"that the model was trained on ({SINGLE_SENTENCES}, line by line, for one of sentences)",
    )
    window_overlap: int = like(WindowConfig, "window_overlap", 0)

    def check(self) -> None:
        """See that windows can be made, before the model is loaded."""
        if self.max_doc_tokens is not None:
            self.windows(self.max_doc_tokens)

    def windows(
        self, trained: int, *, has_documents: bool = True, repair: bool = True
    ) -> WindowConfig:
        """Return what is translated at once: ``--max-doc-tokens``, or as much as in training.

        Args:
            trained: the longest groups that the model learnt from, in tokens.
            has_documents: the text has boundaries of documents; without, single sentences.
            repair: as in :class:`WindowConfig`.

        Raises:
            ConfigError: an overlap of single sentences.
        """
        limit = self.max_doc_tokens or (trained if has_documents else SINGLE_SENTENCES)
        return WindowConfig(limit, self.window_overlap, repair)


@settings
class TermOptions:
    """What the translations of lines must and must not have."""

    prefixes: str | None = option(
        None,
        "begin the translation of each line with the text in the same line of FILE, whole words; "
        "after an empty line as the model likes",
        files=READ,
    )
    banned_terms: str | None = option(
        None,
        "no translation may have a term in FILE, one a line, of one word or more, split as usual; "
        "with SentencePiece, words that begin with it are banned too",
        files=READ,
    )
    constraints: str | None = option(
        None,
        "force terms: the translation of a line must have those that follow it, each behind a tab, "
        "at places that do not overlap, in this order (ordered, also without a word) or in any "
        "(unordered). A --beam of 5 to 20 suits, more for many terms; subwords of a term may "
        "become part of a longer word, as in fairseq",
        choices=("ordered", "unordered"),
        bare="ordered",
    )


@settings
class TextDocumentOptions(WindowOptions, TermOptions):
    """How a text of documents is translated."""

    no_progress_bar: bool = like(CommonOptions, "no_progress_bar")
    split_sentences: bool = option(
        False,
        "lines are paragraphs: cut them into sentences (the package sentencex), as the model has "
        "learnt from, and join the translations of each",
    )

    def check(self) -> None:
        """See that what is forced in a line has one sentence to be in."""
        super().check()
        if self.split_sentences and (self.prefixes or self.constraints):
            flag = "--prefixes" if self.prefixes else "--constraints"
            raise ConfigError(
                f"{flag}: with --split-sentences nothing tells which sentence of a line it is for; "
                "give the text a sentence a line"
            )


@settings
class TranslateDocumentsSettings:
    """All settings of :mod:`relu_nmt.recipes.translate_documents`.

    Raises:
        ConfigError: settings that mean nothing for plain text.
    """

    file: str = option(
        REQUIRED,
        "text to translate; - is standard input",
        metavar="FILE",
        positional=True,
        files=READ,
    )
    model: ModelOptions = group("model", ModelOptions)
    documents: TextDocumentOptions = group("documents", TextDocumentOptions)
    search: CommandDocumentSearch = group("search", CommandDocumentSearch)
    refused: ClassVar = (*NEED_REFERENCES, "nbest", "print_alignment")
    """Options of the search that ``--help`` does not show, since :meth:`check` refuses them."""

    def check(self) -> None:
        """Refuse what one line for each line has no room for."""
        refuse_references(self.search)
        if self.documents.constraints:
            self.search.check_terms()
        if self.search.nbest > 1:
            raise ConfigError(
                "--nbest: each line has one translation here; relu-nmt-interactive prints more, "
                "and relu-nmt-generate more of documents"
            )
        if self.search.print_alignment is not None:
            raise ConfigError(
                "--print-alignment: only text is printed here; relu-nmt-generate prints alignments "
                "of documents, relu-nmt-interactive --format fairseq those of lines"
            )


@settings
class LineOptions(TermOptions):
    """Where lines come from, and how they go out."""

    no_progress_bar: bool = like(CommonOptions, "no_progress_bar")
    input: str = option("-", "file to translate; - is standard input", files=READ)
    buffer_size: int = option(
        0,
        "translate at most N lines together; 0: all that have arrived, so that a file goes in "
        "large batches and a line typed or sent alone is answered at once",
        metavar="N",
        least=0,
    )
    format: str = option(
        "text",
        "text: translations only, with --nbest D- lines (number, score, text); fairseq: S-, H-, D- "
        "and P- lines, whose scores are in base 2; json: one object a line with all translations, "
        "tokens, scores in nats and, if asked for, alignments",
        choices=("text", "fairseq", "json"),
    )
    attention_pictures: str | None = option(
        None,
        "draw where the last layer's cross-attention looked while it wrote the best translation of "
        "each line: NUMBER.svg, from 0, in this folder, which has none yet",
        metavar="DIR",
        files=Files(written=True, names=r"\d+\.svg"),
    )


@settings
class TranslateLinesSettings:
    """All settings of :mod:`relu_nmt.recipes.translate_lines`.

    Raises:
        ConfigError: settings that mean nothing for plain text.
    """

    data: str | None = option(
        None,
        "data folder; not needed, the checkpoint has all",
        metavar="DATA",
        positional=True,
        files=DATA_FILES,
    )
    model: ModelOptions = group("model", ModelOptions)
    lines: LineOptions = group("input and output", LineOptions)
    search: CommandSearch = group("search", CommandSearch)
    refused: ClassVar = NEED_REFERENCES
    """See :class:`TranslateDocumentsSettings`."""

    def check(self) -> None:
        """Refuse what needs references, what is not printed, and terms that cannot be forced."""
        refuse_references(self.search)
        if self.lines.constraints:
            self.search.check_terms()
        if self.search.print_alignment is not None and self.lines.format == "text":
            raise ConfigError(
                "--print-alignment does nothing with --format text; it needs --format fairseq or "
                "json"
            )


def refuse_references(config: GenerationConfig) -> None:
    """Refuse settings of the search that need references.

    Raises:
        ConfigError: there is one.
    """
    if config.score_reference or config.prefix_size:
        raise ConfigError(
            "--score-reference and --prefix-size need references; use relu-nmt-generate"
        )

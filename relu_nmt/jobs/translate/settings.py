"""Settings of the commands that translate."""

import ast
from pathlib import Path
from typing import Any, ClassVar

from relu_nmt.applications.files import FileOptions, formats
from relu_nmt.applications.serving import ServerOptions
from relu_nmt.config import (
    CHECKPOINTS,
    READ,
    REQUIRED,
    WRITTEN,
    Files,
    checked_by,
    group,
    like,
    option,
    refuse_given,
    settings,
)
from relu_nmt.config.shared import (
    FairseqOptions,
    PrecisionOptions,
    no_progress_bar_option,
    source_lang_option,
    split_sentences_option,
    subset_option,
    target_lang_option,
)
from relu_nmt.config.stored import parse_json
from relu_nmt.data.data_folder import data_option
from relu_nmt.data.document_settings import DocumentConfig, WindowOptions
from relu_nmt.data.documents import SEPARATORS
from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.metrics import ScoringConfig
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.search.config import PRINTED, GenerationConfig

NEED_REFERENCES = dict.fromkeys(
    ("score_reference", "prefix_size"), "it needs references; use relu-nmt-generate"
)
"""Options of the search that commands without references refuse."""


def model_overrides(text: str) -> dict[str, Any]:
    """Return settings of a model by name, from JSON or a Python dictionary as in fairseq."""
    for read in (parse_json, ast.literal_eval):
        try:
            values = read(text)
        except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
            values = None
        if isinstance(values, dict) and all(isinstance(name, str) for name in values):
            return values
    raise ValueError('expected settings such as \'{"positions": "learned"}\'')


@settings
class ModelOptions(FairseqOptions, PrecisionOptions):
    """The model that translates, and the form of its text."""

    path: str = option(
        REQUIRED, "checkpoint, or an ensemble of several with colons (a:b)", files=CHECKPOINTS
    )
    source_lang: str | None = source_lang_option(help="source language; by default the model's")
    target_lang: str | None = target_lang_option(help="target language; by default the model's")
    post_process: str | None = option(
        None,
        "marks of subwords to join: @@, sentencepiece, wordpiece, letter, _EOW",
        flags=("--remove-bpe",),
        metavar="SYMBOL",
        bare="@@ ",
    )
    tokenizer: str | None = option(
        None, "detokenizer for data that came tokenized", choices=("moses", "space", "none")
    )
    int8: bool = option(
        False,
        "multiply 8-bit integers (x86 CPUs): faster, but a few translations change",
        needs=[("bf16", False), ("fp16", False)],
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
        "longest sentence to translate, in tokens (longer ones give an empty line)",
        flags=("--max-source-positions",),
        least=2,
    )
    truncate_source: bool = option(False, "translate the beginning of sentences that are too long")


@settings
class BannedTermOptions:
    """Terms that no translation may have."""

    banned_terms: str | None = option(
        None, "words that no translation may have, one term a line, in any case", files=READ
    )
    match_case: bool = option(
        False, "ban terms only in the case in which they are written", needs="banned_terms"
    )
    inside_words: bool = option(
        False, "terms may be parts of longer words: forced ones as in fairseq, banned ones too"
    )


@settings
class TermOptions(BannedTermOptions):
    """Terms that the translations of lines must have or must not have."""

    prefixes: str | None = option(
        None, "begin the translation of each line with the line of this number in FILE", files=READ
    )
    constraints: str | None = option(
        None,
        "force the terms that follow a line after tabs, in this order or any",
        choices=("ordered", "unordered"),
        bare="ordered",
    )
    split_sentences: bool | None = split_sentences_option()


@settings
class TranslateSplitSettings(WindowOptions, BannedTermOptions):
    """All settings of :mod:`relu_nmt.jobs.translate.split`."""

    data: str = data_option(REQUIRED, "data folder")
    gen_subset: str = subset_option()
    no_progress_bar: bool = no_progress_bar_option()
    results_path: str | None = option(
        None,
        "folder for the lines, as generate-SPLIT.txt, instead of standard output",
        metavar="DIR",
        files=Files(written=True, names=r"generate-[^.]*\.txt"),
    )
    quiet: bool = option(False, "print the score only")
    skip_invalid_size_inputs_valid_test: bool = option(
        False, "skip sentences that are too long for the model, instead of stopping"
    )
    num_shards: int = option(1, "translate one of N equal consecutive parts of the split", least=1)
    shard_id: int = option(0, "number of this part, from 0", least=0, metavar="I")
    max_doc_tokens: int | None = like(
        DocumentConfig,
        "max_doc_tokens",
        None,
        "join sentences of a document up to N tokens (default: as in training)",
    )
    count_source_only: bool = option(
        False, "with --score-reference: count only source tokens for --max-doc-tokens"
    )
    output: str | None = option(
        None, "write the documents as text, a line for each sentence", files=WRITTEN
    )
    output_separator: str = option(
        "blank",
        "boundary in --output: a blank line, or a line <d> before each (tag)",
        choices=SEPARATORS[1:],
        needs="output",
    )
    results: str | None = option(
        None, "write speed, scores and lengths of documents to FILE as JSON", files=WRITTEN
    )
    attention_stats: str | None = option(
        None,
        "write statistics of the attention of each layer and head to FILE as JSON",
        files=WRITTEN,
    )
    memory_stats: str | None = option(
        None, "write statistics of the feed-forward networks to FILE as JSON", files=WRITTEN
    )
    print_attention: str | None = option(
        None,
        "print attention weights of each translation (without a value: cross.-1)",
        metavar="SLOT.LAYER[.HEAD]",
        parse=lambda text: str(AttentionPlace.parse(text)),
        bare="cross.-1",
        needs=PRINTED,
    )
    model: ModelOptions = group("model", ModelOptions)
    search: GenerationConfig = group("search", GenerationConfig)
    score: ScoringConfig = group("score", ScoringConfig)

    def check(self) -> None:
        """Compare the settings with each other."""
        super().check()
        if self.shard_id >= self.num_shards:
            raise ConfigError(
                f"--shard-id {self.shard_id}: expected 0 to {self.num_shards - 1} "
                f"(--num-shards {self.num_shards})"
            )
        self.search.resolved(documents=self.max_doc_tokens is not None)
        if self.print_attention is not None and self.search.print_alignment is not None:
            raise ConfigError(
                "--print-attention and --print-alignment both print A- lines; give one"
            )
        # Statistics and weights need whole translations, with the context of windows.
        if self.window_overlap:
            whole = ("attention_stats", "memory_stats", "print_attention")
            reason = ": not with --window-overlap, where the context's translation is left out"
            refuse_given(self, whole, reason)

    @property
    def results_file(self) -> Path | None:
        """The file for the lines. None: standard output."""
        if self.results_path is None:
            return None
        part = f"-{self.shard_id}-of-{self.num_shards}" if self.num_shards > 1 else ""
        return Path(self.results_path) / f"generate-{self.gen_subset}{part}.txt"

    def check_sentences(self) -> None:
        """Refuse options for documents, where sentences are translated."""
        refuse_given(
            self,
            ("window_overlap", "count_source_only", "output", "results"),
            " does nothing without --max-doc-tokens, as the model was trained on single sentences "
            "or the data has no boundaries of documents",
            remedy="give both, or leave it out",
        )


@settings
class TranslateLinesSettings(TermOptions):
    """All settings of :func:`relu_nmt.jobs.translate.lines.translate_lines`."""

    data: str | None = data_option(
        None, "data folder; not needed, as the checkpoint has everything"
    )
    no_progress_bar: bool = no_progress_bar_option()
    input: str = option("-", "file to translate (- is standard input)", files=READ)
    buffer_size: int = option(
        0, "translate at most N lines together (0: all that have arrived)", least=0
    )
    format: str = option(
        "text",
        "text, fairseq (its lines, scores in base 2) or json (objects, scores in nats)",
        choices=("text", "fairseq", "json"),
    )
    attention_pictures: str | None = option(
        None,
        "draw the cross-attention of each line as NUMBER.svg in this new folder",
        metavar="DIR",
        files=Files(written=True, names=r"\d+\.svg"),
    )
    model: ModelOptions = group("model", ModelOptions)
    search: GenerationConfig = group("search", GenerationConfig)
    refused: ClassVar = NEED_REFERENCES

    def check(self) -> None:
        """Refuse alignments that no format prints, and searches that cannot force terms."""
        self.search.resolved()
        if self.constraints:
            self.search.check_terms()
        if self.search.print_alignment is not None and self.format == "text":
            raise ConfigError(
                "--print-alignment does nothing with --format text; it needs --format fairseq or "
                "json"
            )


@settings
class TranslateDocumentsSettings(FileOptions, WindowOptions, TermOptions):
    """All settings of ``relu-nmt-translate-document``."""

    file: str = option(
        REQUIRED,
        "text or file to translate (- is standard input), or a folder of files",
        metavar="FILE",
        positional=True,
        files=READ,
    )
    further_files: tuple[str, ...] = option(
        (),
        "further files and folders to translate with --output-dir",
        metavar="FILE",
        positional=True,
        several=True,
        files=READ,
    )
    format: str | None = option(
        None,
        "docx, epub, html, markdown, odt, po, subtitles, table, text, xliff or one of your own "
        "(default: by the ending of FILE, otherwise text)",
        parse=checked_by(formats.check),
    )
    output: str | None = option(
        None,
        "file for the translation (default: standard output for text, otherwise FILE with the "
        "language before its ending)",
        files=WRITTEN,
    )
    output_dir: str | None = option(
        None,
        "folder for the translations of several files, under their names and, for files of a "
        "folder, their paths in it. Files that are there already stay",
        metavar="DIR",
        files=WRITTEN,
    )
    glossary: str | None = option(
        None, "file with a source term, a tab and its target term a line (not for text)", files=READ
    )
    no_progress_bar: bool = no_progress_bar_option()
    model: ModelOptions = group("model", ModelOptions)
    search: GenerationConfig = group("search", GenerationConfig)
    refused: ClassVar = {
        **NEED_REFERENCES,
        "nbest": "each line has one translation here; relu-nmt-interactive prints more, and "
        "relu-nmt-generate more of documents",
        "print_alignment": "only text is printed here; relu-nmt-generate prints alignments of "
        "documents, relu-nmt-interactive --format fairseq those of lines",
    }

    def check(self) -> None:
        """Refuse lines of several sentences with terms, and a search that cannot force terms."""
        super().check()
        if self.output_dir is None and self.further_files:
            raise ConfigError("several files need --output-dir DIR, the folder of the translations")
        if self.output_dir is not None and self.output is not None:
            raise ConfigError("--output and --output-dir exclude each other; give one")
        if self.split_sentences and (self.prefixes or self.constraints):
            flag = "--prefixes" if self.prefixes else "--constraints"
            raise ConfigError(
                f"{flag}: with --split-sentences a line may become several sentences; "
                "give the text with one sentence a line"
            )
        self.search.resolved(documents=True)
        if self.constraints:
            self.search.check_terms()


@settings
class ServedModel(ModelOptions):
    """The model of a server, whose checkpoint is the first word of the command."""

    path: str = like(ModelOptions, "path", metavar="CKPT", positional=True)


@settings
class ServedSearch(GenerationConfig):
    """The search of a server, which refuses to sample: to advise --sampling would be wrong."""

    sampling_topk: int = like(GenerationConfig, "sampling_topk", needs=())
    sampling_topp: float = like(GenerationConfig, "sampling_topp", needs=())
    seed: int = like(GenerationConfig, "seed", needs=())


@settings
class ServeSettings(ServerOptions, WindowOptions):
    """All settings of :func:`relu_nmt.jobs.translate.serve.serve`."""

    further_models: tuple[str, ...] = option(
        (),
        "checkpoints of other pairs of languages to serve beside CKPT (requests choose)",
        several=True,
        files=CHECKPOINTS,
        metavar="CKPT",
    )
    model: ServedModel = group("model", ServedModel)
    search: ServedSearch = group("search", ServedSearch)
    refused: ClassVar = {
        **NEED_REFERENCES,
        **dict.fromkeys(
            (
                *("nbest", "print_alignment", "truncate_source", "max_source_length"),
                *("sampling", "sampling_topk", "sampling_topp", "seed"),
            ),
            "the server gives one translation for each line, of the whole line and the same for "
            "every client; leave it out",
        ),
    }

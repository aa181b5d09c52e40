"""Translate raw text of whole documents, a sentence or paragraph a line, blank lines between them.

  relu-nmt-translate-document talk.de --path checkpoints/checkpoint_best.safetensors > talk.en

Consecutive lines of a document are translated together, up to --max-doc-tokens tokens, by default
as many as in training, as with relu-nmt-generate. A longer line is translated alone and whole.
With a model trained with --sentence-separator every line gives one line, and blank lines stay in
place. If a translation reaches the longest output, its lines are translated again in two
halves, and so on. Likewise if, with --free-sentence-count, it has another number of sentences than
lines. Standard error reports the number of such repetitions. A model trained without separators
gives one line for each group of lines. --max-doc-tokens 1 translates line by line with any model.
"""

from typing import ClassVar

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.cli.generate import NEED_REFERENCES, ModelOptions, TermOptions
from relu_nmt.config import READ, REQUIRED, group, option, settings
from relu_nmt.config.shared import no_progress_bar_option
from relu_nmt.data.documents import WindowOptions
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.config import GenerationConfig


@settings
class TranslateDocumentsSettings(WindowOptions, TermOptions):
    """All settings of ``relu-nmt-translate-document``."""

    file: str = option(
        REQUIRED,
        "text to translate; - is standard input",
        metavar="FILE",
        positional=True,
        files=READ,
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
        if self.split_sentences and (self.prefixes or self.constraints):
            flag = "--prefixes" if self.prefixes else "--constraints"
            raise ConfigError(
                f"{flag}: with --split-sentences a line may become several sentences; "
                "give the text with one sentence a line"
            )
        self.search.resolved(documents=True)
        if self.constraints:
            self.search.check_terms()


main = RecipeCommand(
    "relu-nmt-translate-document",
    __doc__,
    TranslateDocumentsSettings,
    "translate_text.translate_documents",
    most_used="path beam max_doc_tokens window_overlap split_sentences int8",
)

if __name__ == "__main__":
    raise SystemExit(main())

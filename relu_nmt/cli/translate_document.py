"""relu-nmt-translate-document: translate a text of whole documents."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.translation_settings import TranslateDocumentsSettings

DESCRIPTION = """\
Translate raw text of whole documents, a sentence or paragraph a line, blank lines between them:

  relu-nmt-translate-document talk.de --path checkpoints/checkpoint_best.safetensors > talk.en

Consecutive lines of a document are translated together, up to --max-doc-tokens tokens, by default
as many as in training; relu-nmt-generate follows the same rule. A longer line is translated alone
and whole. With a model trained with --sentence-separator every line gives one line, and blank lines
stay in place. If a translation reaches the longest output, its lines are translated again in two
halves, and so on; likewise if, with --free-sentence-count, it has another number of sentences than
lines. Standard error reports the number of such repetitions. A model trained without separators
gives one line for each group of lines; --max-doc-tokens 1 translates line by line with any model.
"""

main = RecipeCommand(
    "relu-nmt-translate-document",
    DESCRIPTION,
    TranslateDocumentsSettings,
    "translate_documents",
    most_used=(
        "path",
        "beam",
        "max_doc_tokens",
        "window_overlap",
        "split_sentences",
        "int8",
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())

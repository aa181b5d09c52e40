"""relu-nmt-translate-document: translate a text of whole documents."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.translation_settings import TranslateDocumentsSettings

DESCRIPTION = """\
Translate raw text of whole documents, a sentence or paragraph a line, blank lines between them:

  relu-nmt-translate-document talk.de --path checkpoints/checkpoint_best.safetensors > talk.en

Consecutive lines of a document are translated together, as many as --max-doc-tokens allows, by
default as many as in the training of the model; relu-nmt-generate goes by the same rule. A
longer line is translated alone and whole. With a model trained with --sentence-separator every
line gives one line, and blank lines stay where they are. Where a translation reaches the longest
output or, with --free-sentence-count, has not as many sentences as lines went in, these lines are
translated again in two halves, and so on; how often is told at the end, on standard error. Models
trained without separators give one line for each group of lines; --max-doc-tokens 1 translates
line by line with any model.
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

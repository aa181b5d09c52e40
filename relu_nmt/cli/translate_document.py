"""Translate whole documents: plain text, web pages, Word files, subtitles and others.

  relu-nmt-translate-document talk.de --path checkpoints/checkpoint_best.safetensors > talk.en
  relu-nmt-translate-document page.html --path checkpoints/checkpoint_best.safetensors
  relu-nmt-translate-document a.docx b.html manual --output-dir out --path model.safetensors

In a file with markup only the text changes. The translation is written beside it (page.en.html). In
folders all files of known formats are translated. After Ctrl-C the same command continues. Plain
text has a sentence or paragraph a line, and blank lines between documents.

Consecutive lines of a document are translated together, up to --max-doc-tokens tokens, by default
as many as in training, as with relu-nmt-generate. A longer line is translated alone and whole. With
a model trained with --sentence-separator every line gives one line, and blank lines stay in place.
If a translation reaches the longest output, its lines are translated again in two halves, and so
on. The same happens if, with --free-sentence-count, it has not as many sentences as lines. Standard
error reports the number of such repetitions. A model trained without separators gives one line for
each group of lines. --max-doc-tokens 1 translates line by line with any model.
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.translate.settings import TranslateDocumentsSettings

main = Command(
    "relu-nmt-translate-document",
    __doc__,
    TranslateDocumentsSettings,
    "relu_nmt.jobs.translate.files:translate",
    most_used="path output output_dir beam max_doc_tokens window_overlap split_sentences int8",
    usage="relu-nmt-translate-document FILE [FILE ...] [flags]",
)

if __name__ == "__main__":
    raise SystemExit(main())

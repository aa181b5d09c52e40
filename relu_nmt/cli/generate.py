"""Translate a split of a data folder and score it.

  relu-nmt-generate data-bin/corpus --path checkpoints/checkpoint_best.safetensors --beam 5

For every sentence, in the order of the data: S- source, T- reference, H- score and translation
as tokens, D- score and translation as text, P- score of each token. Scores are in base 2.

If the model was trained on documents and the folder has their boundaries, or with
--max-doc-tokens, documents are translated, and these lines are for groups of sentences. With
--window-overlap, S- also shows the context, the other lines only the new sentences. --scoring bleu
computes the BLEU of documents on tokenized text. chrF is always given.
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.translate.settings import TranslateSplitSettings

main = Command(
    "relu-nmt-generate",
    __doc__,
    TranslateSplitSettings,
    "relu_nmt.jobs.translate.split:run",
    most_used="path gen_subset beam nbest lenpen max_doc_tokens int8 output results",
)

if __name__ == "__main__":
    raise SystemExit(main())

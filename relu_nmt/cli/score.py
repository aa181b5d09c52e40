r"""Score translations, one a line, against references.

  relu-nmt-score --sys test.out --ref test.en --metrics bleu,chrf

Score whole documents (d-BLEU, and s-BLEU if the lines agree), with a paired bootstrap over
documents against another system, and BLEU by length:

  relu-nmt-score --sys long.out --ref test.en --documents data-bin/test.de-en.documents \
      --baseline short.out --length-buckets

Test if a model prefers the right translation of sentences that need the sentences before them:

  relu-nmt-score --contrastive test.contrasts.jsonl --path checkpoints/checkpoint_best.safetensors

Every score has sacreBLEU's signature. For tokenized text give --tokenize none.
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.score.settings import ScoreSettings

main = Command(
    "relu-nmt-score",
    __doc__,
    ScoreSettings,
    "relu_nmt.jobs.score.job:run",
    computes=False,
    most_used="sys ref metrics document_separator baseline contrastive format",
)

if __name__ == "__main__":
    raise SystemExit(main())

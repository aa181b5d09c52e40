"""Translate raw text, one sentence a line.

  relu-nmt-interactive --path checkpoints/checkpoint_best.safetensors < text.de > text.en

Every line is translated on its own and gives one line. An empty line gives an empty one.
relu-nmt-translate-document joins the lines of documents.

--nbest N gives N lines for each input line, best first: number (D-0, D-0, D-1...), score and text.
--format fairseq gives all of fairseq's lines (grep ^H): S- source, H- score and translation as
tokens, D- score and translation as text, P- score of each token. These scores are log-probabilities
in base 2. The scores of --format json are in nats (1 nat is 1.44 in base 2).
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.translate.settings import TranslateLinesSettings

main = Command(
    "relu-nmt-interactive",
    __doc__,
    TranslateLinesSettings,
    "relu_nmt.jobs.translate.lines:translate_lines",
    most_used="path input beam nbest lenpen prefixes format int8",
)

if __name__ == "__main__":
    raise SystemExit(main())

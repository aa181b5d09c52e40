"""relu-nmt-interactive: translate raw lines from standard input or a file."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.translation_settings import TranslateLinesSettings

DESCRIPTION = """\
Translate raw text, one sentence a line:

  relu-nmt-interactive --path checkpoints/checkpoint_best.safetensors < text.de > text.en

Every line is translated on its own and gives one line; an empty line gives an empty one.
relu-nmt-translate-document joins the lines of documents.

--nbest N gives N lines of number, score and text, best first: D-0, D-0, D-1... --format fairseq
gives all of fairseq's lines (grep ^H): S- source, H- score and translation as tokens, D- score and
translation as text, P- score of each token. These scores are log-probabilities in base 2; those of
--format json are in nats (1 nat is 1.44 in base 2).
"""

main = RecipeCommand(
    "relu-nmt-interactive",
    DESCRIPTION,
    TranslateLinesSettings,
    "translate_lines",
    most_used=(
        "path",
        "input",
        "beam",
        "nbest",
        "lenpen",
        "prefixes",
        "format",
        "int8",
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())

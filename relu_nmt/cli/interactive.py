"""relu-nmt-interactive: translate raw lines from standard input or a file."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.translation_settings import TranslateLinesSettings

DESCRIPTION = """\
Translate raw text, one sentence a line:

  relu-nmt-interactive --path checkpoints/checkpoint_best.safetensors < text.de > text.en

Every line gives one line (with --nbest N: N lines); an empty line gives an empty one.
"""

main = RecipeCommand("relu-nmt-interactive", DESCRIPTION, TranslateLinesSettings, "translate_lines")

if __name__ == "__main__":
    raise SystemExit(main())

"""relu-nmt-interactive: translate raw lines from standard input or a file."""

from collections.abc import Sequence

from relu_nmt.cli.command import make_parser, run_recipe
from relu_nmt.recipes.translation_settings import TranslateLinesSettings

DESCRIPTION = """\
Translate raw text, one sentence a line:

  relu-nmt-interactive --path checkpoints/checkpoint_best.safetensors < text.de > text.en

Every line gives one line (with --nbest N: N lines); an empty line gives an empty one.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-interactive", DESCRIPTION, user_modules=True)
    return run_recipe(parser, TranslateLinesSettings, _run, argv)


def _run(settings: TranslateLinesSettings) -> None:
    from relu_nmt.recipes import translate_lines

    translate_lines.run(settings)


if __name__ == "__main__":
    raise SystemExit(main())

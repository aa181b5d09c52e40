"""relu-nmt-interactive: translate raw lines from standard input or a file."""

import argparse
from collections.abc import Sequence

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config import add_settings, read_settings
from relu_nmt.recipes.translation_settings import TranslateLinesSettings

DESCRIPTION = """\
Translate raw text, one sentence a line:

  relu-nmt-interactive --path checkpoints/checkpoint_best.safetensors < text.de > text.en

Every line gives one line (with --nbest N: N lines); an empty line gives an empty one.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-interactive", DESCRIPTION, user_modules=True)
    add_settings(parser, TranslateLinesSettings)
    return run_command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> None:
    settings = read_settings(TranslateLinesSettings, arguments)
    from relu_nmt.recipes import translate_lines

    translate_lines.run(settings)


if __name__ == "__main__":
    raise SystemExit(main())

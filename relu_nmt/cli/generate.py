"""relu-nmt-generate: translate a split of a data folder and score it."""

import argparse
from collections.abc import Sequence

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config import add_settings, read_settings
from relu_nmt.recipes.translation_settings import TranslateSplitSettings

DESCRIPTION = """\
Translate a split of a data folder and score it:

  relu-nmt-generate data-bin/corpus --path checkpoints/checkpoint_best.safetensors --beam 5

For every sentence, in the order of the data: S- source, T- reference, H- score and translation
as tokens, D- score and translation as text, P- score of each token. Scores are in base 2.

With --max-doc-tokens documents are translated, and these lines are for groups of sentences; with
--window-overlap too, S- shows the context, the others only what is new. --scoring bleu makes
their BLEU that of tokenised text; chrF is always given.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(generate_parser(), _run, argv)


def generate_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = make_parser("relu-nmt-generate", DESCRIPTION, user_modules=True)
    add_settings(parser, TranslateSplitSettings)
    return parser


def _run(arguments: argparse.Namespace) -> None:
    settings = read_settings(TranslateSplitSettings, arguments)
    from relu_nmt.recipes import translate_split

    translate_split.run(settings)


if __name__ == "__main__":
    raise SystemExit(main())

"""relu-nmt-score: BLEU and chrF of a file of translations, of lines or of whole documents."""

import argparse
from collections.abc import Sequence

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config import add_options, from_namespace
from relu_nmt.recipes.scoring_settings import (
    ContrastOptions,
    DocumentOptions,
    OutputOptions,
    ScoreOptions,
    ScoreSettings,
)

DESCRIPTION = """\
Score translations, one a line, against references:

  relu-nmt-score --sys test.out --ref test.en --metrics bleu,chrf

Whole documents (d-BLEU; s-BLEU where the lines agree), with a paired bootstrap over documents
against another system, and BLEU by length:

  relu-nmt-score --sys long.out --ref test.en --documents data-bin/test.de-en.documents \\
      --baseline short.out --length-buckets

Does a model prefer the right translation of sentences that need the ones before?

  relu-nmt-score --contrastive test.contrasts.jsonl --path checkpoints/checkpoint_best.safetensors

Every score comes with sacreBLEU's signature. For text that is tokenised already: --tokenize none.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-score", DESCRIPTION, user_modules=True)
    add_options(parser, ScoreOptions, "score")
    add_options(parser, DocumentOptions, "documents")
    add_options(parser, ContrastOptions, "contrastive test of a model")
    add_options(parser, OutputOptions, "output")
    return run_command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> None:
    settings = ScoreSettings(
        from_namespace(ScoreOptions, arguments),
        from_namespace(DocumentOptions, arguments),
        from_namespace(ContrastOptions, arguments),
        from_namespace(OutputOptions, arguments),
    )
    from relu_nmt.recipes import score

    score.run(settings)


if __name__ == "__main__":
    raise SystemExit(main())

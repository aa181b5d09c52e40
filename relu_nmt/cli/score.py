"""relu-nmt-score: BLEU and chrF of a file of translations, of lines or of whole documents."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.cli.score_contrasts import ContrastOptions, contrast_report
from relu_nmt.cli.score_options import DocumentOptions, OutputOptions, ScoreOptions
from relu_nmt.cli.score_texts import sentence_report, text_report
from relu_nmt.config import add_options, flag_of, from_namespace
from relu_nmt.errors import ConfigError

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
    output = from_namespace(OutputOptions, arguments)
    contrasts = from_namespace(ContrastOptions, arguments)
    if contrasts.contrastive:
        _refuse(arguments, (ScoreOptions, DocumentOptions), "not with --contrastive")
        output.print(contrast_report(contrasts))
        return
    _refuse(arguments, (ContrastOptions,), "only with --contrastive")
    options = from_namespace(ScoreOptions, arguments)
    if options.sentence_bleu:
        _refuse(arguments, (DocumentOptions,), "not with --sentence-bleu")
        output.print(sentence_report(options))
        return
    output.print(text_report(options, from_namespace(DocumentOptions, arguments)))


def _refuse(arguments: argparse.Namespace, classes: Sequence[type], reason: str) -> None:
    """Refuse flags that would have no effect.

    Raises:
        ConfigError: a flag of one of the option classes was typed.
    """
    for options in classes:
        for field in dataclasses.fields(options):
            if hasattr(arguments, field.name):
                raise ConfigError(f"{flag_of(field.name)}: {reason}")


if __name__ == "__main__":
    raise SystemExit(main())

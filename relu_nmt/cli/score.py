"""relu-nmt-score: BLEU and chrF of a file of translations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config import add_options, from_namespace, option
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.evaluation.bleu import METRICS

DESCRIPTION = """\
Score translations, one a line, against references:

  relu-nmt-score --sys test.out --ref test.en --metrics bleu,chrf

Every score comes with sacreBLEU's signature. For text that is tokenised already: --tokenize none.
"""


def _parse_metrics(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in METRICS:
            raise ValueError(f"'{name}': expected one or more of {', '.join(METRICS)}")
    return names


@dataclass(frozen=True)
class ScoreOptions:
    """What to compare, and how.

    Raises:
        ConfigError: no reference.
    """

    sys: str = option("-", "translations; - is standard input", flags=("-s",), metavar="FILE")
    ref: str = option("", "references; several sets with commas", flags=("-r",), metavar="FILE")
    metrics: tuple[str, ...] = option(
        ("bleu",), "scores to print: bleu,chrf", metavar="M", parse=_parse_metrics
    )
    order: int = option(4, "longest n-gram of BLEU", flags=("-o",), metavar="N")
    ignore_case: bool = option(False, "ignore case")
    tokenize: str = option(
        "13a", "sacreBLEU's tokeniser: 13a, intl, char, zh, none...", metavar="NAME"
    )
    chrf_word_order: int = option(0, "longest word n-gram of chrF; 2 is chrF++", metavar="N")
    sacrebleu: bool = option(False, "as in fairseq; all scores are sacreBLEU's anyway")
    sentence_bleu: bool = option(False, "print the (smoothed) BLEU of each line instead")

    def __post_init__(self) -> None:
        if not self.ref:
            raise ConfigError("--ref: give the file of the references")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-score", DESCRIPTION)
    add_options(parser, ScoreOptions, "score")
    return run_command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> None:
    options = from_namespace(ScoreOptions, arguments)
    from relu_nmt.evaluation.bleu import corpus_bleu, corpus_chrf, sentence_bleu

    hypotheses = _read(options.sys)
    references = [_read(path) for path in options.ref.split(",")]
    for path, lines in zip(options.ref.split(","), references, strict=True):
        if len(lines) != len(hypotheses):
            raise DataError(
                f"{path}: {len(lines):,} lines, but {_name(options.sys)} has "
                f"{len(hypotheses):,}; both need the same sentences in the same order"
            )
    settings = {"lowercase": options.ignore_case, "tokenize": options.tokenize}
    if options.sentence_bleu:
        for number, rows in enumerate(zip(hypotheses, *references, strict=True)):
            score = sentence_bleu(rows[0], rows[1:], order=options.order, **settings)
            print(f"{number} {score.text}")
            signature = score.signature
        if hypotheses:
            print(f"signature: {signature}")
        return
    for metric in options.metrics:
        if metric == "bleu":
            print(corpus_bleu(hypotheses, references, order=options.order, **settings))
        else:
            print(
                corpus_chrf(
                    hypotheses,
                    references,
                    lowercase=options.ignore_case,
                    word_order=options.chrf_word_order,
                )
            )


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def _read(path: str) -> list[str]:
    from relu_nmt.data.text_lines import decode_lines, read_lines

    if path == "-":
        return decode_lines(sys.stdin.buffer.read(), "standard input")
    return read_lines(path)


if __name__ == "__main__":
    raise SystemExit(main())

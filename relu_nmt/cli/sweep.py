"""relu-nmt-sweep: train and evaluate over document lengths, attentions and seeds, and report."""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Sequence

from relu_nmt.applications.sweep.settings import SweepSettings
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config import add_settings, read_settings

DESCRIPTION = """\
Does an attention translate long documents better? Train and evaluate a model for every attention,
document length and seed, and write report.html and results.csv:

  relu-nmt-sweep data-bin --lengths 128,256,512 --attentions softmax,reluformer --seeds 1,2,3 \\
      --budget 4000u --save-dir sweep -- --max-tokens 4096 --arch transformer_iwslt_de_en --bf16

or one model for each attention and seed, which learns several lengths and is evaluated at each:

  relu-nmt-sweep data-bin --lengths 1,128,512,1024 --doc-mixture 1,128,512,1024 ...

Documents are learnt sooner by models that know sentences: train these first, and start from them:

  relu-nmt-sweep data-bin --lengths 1 --save-dir sentences ...
  relu-nmt-sweep data-bin --lengths 128,512 --save-dir documents --start-from sentences ...

Models may differ in more than the attention:

  relu-nmt-sweep data-bin --lengths 1 --attentions softmax --variants \\
      "pre: --encoder-normalize-before" "sharp: --attention reluformer:gamma=8 --lr 2e-3" ...

What stands behind -- goes to relu-nmt-train. To join sentences, DATA needs document boundaries
(relu-nmt-preprocess --document-separator). The same command goes on where it was stopped; steps
that are done are not run again, failed ones are. Several sweeps may work on one --save-dir at once,
also on several machines that share it. Exit code 1: a step failed (one that diverged is a result).
"""
USAGE = "relu-nmt-sweep DATA --budget N[u|s|m|h] [options] [-- flags of relu-nmt-train]"


def sweep_parser() -> argparse.ArgumentParser:
    """Return the parser of its own flags."""
    parser = make_parser("relu-nmt-sweep", DESCRIPTION, user_modules=True)
    parser.usage = USAGE
    add_settings(parser, SweepSettings)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    own = words
    if "--" in words:
        first = words.index("--")
        own = [*words[:first], f"--train-flags={shlex.join(words[first + 1 :])}"]
    return run_command(sweep_parser(), lambda arguments: _run(arguments, words), own)


def _run(arguments: argparse.Namespace, words: list[str]) -> int:
    settings = read_settings(SweepSettings, arguments)
    modules = tuple(arguments.user_module)
    settings = dataclasses.replace(settings, user_modules=modules, command=tuple(words))
    from relu_nmt.recipes import sweep

    return sweep.run(settings).exit_code


if __name__ == "__main__":
    raise SystemExit(main())

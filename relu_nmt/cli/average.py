"""relu-nmt-average: the mean of the weights of several checkpoints."""

import argparse
from collections.abc import Sequence

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.recipes.training_settings import AverageSettings

DESCRIPTION = """\
Average the weights of checkpoints, which often translates better than the last one alone:

  relu-nmt-average --inputs checkpoints --num-epoch-checkpoints 5 --output average.safetensors
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-average", DESCRIPTION)
    parser.add_argument(
        "--inputs", nargs="+", required=True, metavar="FILE", help="checkpoints, or their folder"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="checkpoint to write")
    parser.add_argument(
        "--num-epoch-checkpoints",
        type=int,
        metavar="N",
        help="average the last N of the folder that were saved by epochs",
    )
    parser.add_argument(
        "--num-update-checkpoints",
        type=int,
        metavar="N",
        help="average the last N of the folder that were saved by updates",
    )
    parser.add_argument(
        "--checkpoint-upper-bound",
        type=int,
        metavar="N",
        help="take none of a later epoch (or update)",
    )
    return run_command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> None:
    settings = AverageSettings(
        tuple(arguments.inputs),
        arguments.output,
        arguments.num_epoch_checkpoints,
        arguments.num_update_checkpoints,
        arguments.checkpoint_upper_bound,
    )
    from relu_nmt.recipes import average

    average.run(settings)


if __name__ == "__main__":
    raise SystemExit(main())

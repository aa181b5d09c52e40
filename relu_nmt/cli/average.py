"""relu-nmt-average: the mean of the weights of several checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.errors import ConfigError

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
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--num-epoch-checkpoints",
        type=int,
        metavar="N",
        help="average the last N of the folder that were saved by epochs",
    )
    kind.add_argument(
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
    by_updates = arguments.num_update_checkpoints is not None
    count = arguments.num_update_checkpoints if by_updates else arguments.num_epoch_checkpoints
    inputs = arguments.inputs
    if count is None and arguments.checkpoint_upper_bound is not None:
        raise ConfigError(
            "--checkpoint-upper-bound needs --num-epoch-checkpoints or --num-update-checkpoints"
        )
    if count is not None and (count < 1 or len(inputs) != 1):
        raise ConfigError(
            "--num-epoch-checkpoints and --num-update-checkpoints need 1 or more, and one folder "
            "as --inputs"
        )
    from relu_nmt.training.averaging import average_checkpoints, last_checkpoints
    from relu_nmt.training.checkpoint import save_checkpoint

    if count is not None:
        bound = arguments.checkpoint_upper_bound
        inputs = [str(path) for path in last_checkpoints(inputs[0], count, by_updates, bound)]
    print(f"averaging {len(inputs)}: {', '.join(inputs)}")
    save_checkpoint(arguments.output, average_checkpoints(inputs))
    print(f"written: {arguments.output}")


if __name__ == "__main__":
    raise SystemExit(main())

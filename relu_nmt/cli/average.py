"""relu-nmt-average: the mean of the weights of several checkpoints."""

from collections.abc import Sequence

from relu_nmt.cli.command import make_parser, run_recipe
from relu_nmt.recipes.training_settings import AverageSettings

DESCRIPTION = """\
Average the weights of checkpoints, which often translates better than the last one alone:

  relu-nmt-average --inputs checkpoints --num-epoch-checkpoints 5 --output average.safetensors
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-average", DESCRIPTION)
    return run_recipe(parser, AverageSettings, _run, argv)


def _run(settings: AverageSettings) -> None:
    from relu_nmt.recipes import average

    average.run(settings)


if __name__ == "__main__":
    raise SystemExit(main())

"""Print the results of trainings beside the published numbers."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.errors import DataError
from relu_nmt.training.save_dir import TrainingResult

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.paper_registry import published_rows

TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
HEADS = ("task", "attention", "parameters", "updates", "best valid %", "its test %", "published %")


def published() -> dict[tuple[str, str], float]:
    """Return published accuracies in percent by task and attention.

    Reference: Saratchandran et al. 2024, "Rethinking softmax".
    """
    return {
        (task, attention): float(row[0])
        for task in TASKS
        for attention, row in published_rows(f"polynomials-lra-{task}").items()
    }


def row(folder: Path) -> list[str]:
    """Return the cells of a training, with the test accuracy of the best validated checkpoint.

    Raises:
        DataError: the folder has no results, or results of another kind of training.
    """
    result = TrainingResult.load(folder)
    task = result.settings.get("task", {}).get("task", "")
    name = task.removesuffix("-small")
    if name not in TASKS:
        raise DataError(f"{folder}: no training of train.py; give the --save-dir of one")
    attention = result.settings["model"]["attention"]
    best: dict[str, Any] = result.best or {}
    test = [
        entry["accuracy"]
        for entry in result.valid.get("test", [])
        if entry["num_updates"] == best.get("num_updates")
    ]
    theirs = published().get((task, attention))  # not those of a small form
    numbers = best.get("value"), test[-1] if test else None, theirs
    shown = ["-" if number is None else f"{number:.1f}" for number in numbers]
    updates = f"{result.num_updates:,}" + " (diverged)" * result.diverged
    return [task, f"`{attention}`", f"{result.parameters:,}", updates, *shown]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. Return the exit code."""

    def run(arguments: argparse.Namespace) -> int:
        rows = [row(folder) for folder in arguments.folders]
        for cells in (list(HEADS), ["---"] * len(HEADS), *sorted(rows)):
            print(f"| {' | '.join(cells)} |")
        return 0

    parser = make_parser("table", __doc__)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="--save-dir of a training"
    )
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())

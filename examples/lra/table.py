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

    Reference: Saratchandran et al. 2024, "Rethinking Attention".
    """
    accuracies = {}
    for task in TASKS:
        for attention, row in published_rows(f"polynomials-lra-{task}").items():
            accuracies[task, attention] = float(row[0])
    return accuracies


def row(folder: Path) -> list[str]:
    """Return the cells of a training, with the test accuracy of the checkpoint that validated best.

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
    test_accuracy = None
    for entry in result.valid.get("test", []):
        if entry["num_updates"] == best.get("num_updates"):
            test_accuracy = entry["accuracy"]
    paper_accuracy = published().get((task, attention))  # None for a small form
    accuracies = []
    for accuracy in (best.get("value"), test_accuracy, paper_accuracy):
        accuracies.append("-" if accuracy is None else f"{accuracy:.1f}")
    updates = f"{result.num_updates:,}"
    if result.diverged:
        updates += " (diverged)"
    return [task, f"`{attention}`", f"{result.parameters:,}", updates, *accuracies]


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

"""Print how well document models use earlier sentences.

The script writes the same numbers to ``context-use.json``, beside the folders of the directions.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import json_text, write_text

RESULTS = "context-use.json"
COLUMNS = {"row", "attention", "length", "seeds", "updates", "d_bleu"}
CATEGORIES = ("all", "thing pronoun", "person pronoun", "form of address")


def read(path: Path) -> list[dict[str, Any]]:
    """Return a record for each model of a sweep: accuracies in percent, and d-BLEU.

    Raises:
        DataError: the file cannot be read, or is no table of a sweep.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if not rows or COLUMNS.difference(rows[0]):
        raise DataError(
            f"{path}: no results.csv of relu-nmt-sweep; examples/context_use/run.sh makes them"
        )
    rows = [row for row in rows if row["row"] == "mean" and row["d_bleu"]]
    by_model: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows:
        by_model.setdefault(row["attention"], {})[row["length"]] = row
    records = []
    for model, lengths in by_model.items():
        row = next(iter(lengths.values()))
        contrasts = {}
        for category in CATEGORIES:
            if row.get(f"contrasts[{category}]"):
                contrasts[category] = {
                    name: float(row[f"{name}[{category}]"])
                    for name in ("accuracy_context", "accuracy_alone", "chance", "contrasts")
                }
        records.append(
            {
                "direction": path.resolve().parents[1].name,
                "model": model,
                "seeds": row["seeds"],
                "updates": float(row["updates"]),
                "contrasts": contrasts,
                "d_bleu": {length: float(row["d_bleu"]) for length, row in lengths.items()},
            }
        )
    return records


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return the table as text: accuracy with the earlier sentences, and without them."""
    lengths = records[0]["d_bleu"] if records else ()
    titles = f"{'accuracy with (alone)':28s}"
    for category in CATEGORIES:
        titles += f"{category:>17s}"
    for length in lengths:
        titles += f"{'d-BLEU, L = ' + length:>18s}"
    lines = [titles]
    for record in records:
        line = f"{record['direction']:6s} {record['model']:21s}"
        for category in CATEGORIES:
            cell = "-"
            accuracies = record["contrasts"].get(category)
            if accuracies:
                with_context = accuracies["accuracy_context"]
                cell = f"{with_context:.1f} ({accuracies['accuracy_alone']:.1f})"
            line += f"{cell:>17s}"
        for score in record["d_bleu"].values():
            line += f"{score:>18.2f}"
        lines.append(line)
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and write its numbers. Return the exit code."""

    def run(arguments: argparse.Namespace) -> None:
        records = []
        for path in arguments.results:
            records += read(path)
        out = arguments.results[0].resolve().parents[2] / RESULTS
        write_text(out, json_text(records))
        print(table(records))
        print(f"results: {out}")

    parser = make_parser("table", __doc__)
    parser.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="DIRECTION/sweep/results.csv of a sweep",
    )
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())

"""Report the trainings of run.sh: a table, report.html, results.csv and curves.csv.

Differences are to the model of the same seed that a training starts from, on the same test set.
Intervals are of their mean over seeds, 95%, by Student's t.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.errors import DataError
from relu_nmt.evaluation.significance import mean_interval
from relu_nmt.io.page import Line, Panel, csv_text, draw_panels, number, render_page
from relu_nmt.io.process import describe_environment
from relu_nmt.io.safe_write import write_text
from relu_nmt.training.config import RESULTS_FILE
from relu_nmt.training.log import read_curves

MODELS = {
    "softmax": "softmax",
    "reluformer": "ReLU in encoder and decoder",
    "reluformer_paper": "ReLU in every slot",
    "sentences": "sentences",
    "documents": "aligned documents",
}
BASES = {
    "softmax": "softmax",
    "reluformer": "softmax",
    "reluformer_paper": "softmax",
    "documents": "sentences",
}
"""The model that each model starts from."""
WAYS = {
    "": "the model to start from",
    "nothing": "from nothing",
    "start": "from the model",
    "teacher": "from the model, which also teaches",
}
REPORT = "report.html"
FOLDER = re.compile(r"(?P<model>[a-z_]+)(?:-(?P<way>[a-z]+))?(?:-\d+)?-seed(?P<seed>\d+)")
TEST = re.compile(r"test-(\d+)\.json")
COLUMNS = ("model", "way", "tokens_at_once", "seed", "updates", "bleu")
CURVE_COLUMNS = ("model", "way", "seed", "updates", "valid_bleu")

Record = dict[str, Any]
"""A training: model, way, seed, updates. Curve, BLEU by updates. Scores, BLEU by length."""


def read_trainings(folder: Path) -> list[Record]:
    """Return the trainings in a folder that have translated their test set.

    Raises:
        DataError: a file cannot be read, or there is no training.
    """
    records = []
    for place in sorted(folder.glob("*-seed*")):
        named = FOLDER.fullmatch(place.name)
        scores = {}
        for path in place.glob("test-*.json"):
            length = TEST.fullmatch(path.name)
            if length:
                scores[int(length[1])] = read_number(path, "d_bleu", "score")
        if named is None or named["model"] not in MODELS or not scores:
            continue
        curves = read_curves(place / RESULTS_FILE)
        records.append(
            {
                "model": named["model"],
                "way": named["way"] or "",
                "seed": int(named["seed"]),
                "updates": int(read_number(place / RESULTS_FILE, "num_updates")),
                "curve": curves.get(("valid", "bleu"), {}),
                "scores": dict(sorted(scores.items())),
            }
        )
    if not records:
        raise DataError(f"{folder}: no finished training; examples/adapt/run.sh makes them")
    orders = [*MODELS], [*WAYS]
    return sorted(
        records, key=lambda one: (orders[0].index(one["model"]), orders[1].index(one["way"]))
    )


def read_number(path: Path, *keys: str) -> float:
    """Return a number of a JSON file, by the keys of the tables around it and its own."""
    try:
        found = json.loads(path.read_text("utf-8"))
        for key in keys:
            found = found[key]
        return float(found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: no {' '.join(keys)} in it; delete the file") from error


def summary(records: Sequence[Record]) -> list[Record]:
    """Return a row for each kind of training, its updates and a length: means and differences."""
    bases = {
        (one["model"], one["seed"]): next(iter(one["scores"].values()))
        for one in records
        if not one["way"]
    }
    rows = []
    kinds = ("model", "way", "updates")
    for *kind, length in dict.fromkeys(
        (*(one[name] for name in kinds), length) for one in records for length in one["scores"]
    ):
        runs = [
            one
            for one in records
            if [one[name] for name in kinds] == kind and length in one["scores"]
        ]
        model, way, updates = kind
        scores = [one["scores"][length] for one in runs]
        own = [bases.get((BASES.get(model), one["seed"])) for one in runs] if way else []
        pairs = zip(scores, own, strict=bool(way))
        differences = [score - base for score, base in pairs if base is not None]
        rows.append(
            {
                "model": model,
                "way": way,
                "length": length,
                "seeds": [one["seed"] for one in runs],
                "updates": updates,
                "scores": scores,
                "bleu": statistics.mean(scores),
                "difference": statistics.mean(differences) if differences else None,
                "interval": mean_interval(scores),
                "difference_interval": mean_interval(differences),
                "curve": runs[0]["curve"],
            }
        )
    return rows


def table(rows: Sequence[Record]) -> str:
    """Return the rows as a table of Markdown."""
    lines = ["| model | start | updates | tokens at once | test BLEU | seeds | difference |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        difference = number(row["difference"], signed=True)
        if row["difference_interval"] is not None:
            difference += f" ± {number(row['difference_interval'])}"
        length = "a sentence" if row["length"] == 1 else f"{row['length']:,}"
        seeds = ", ".join(number(score) for score in row["scores"])
        cells = [MODELS[row["model"]], WAYS[row["way"]], f"{row['updates']:,}", length]
        lines.append(f"| {' | '.join([*cells, number(row['bleu']), seeds, difference])} |")
    return "\n".join(lines)


def curves(rows: Sequence[Record]) -> str:
    """Return plots of BLEU on the validation set by updates, first seed."""
    panels = []
    for model in BASES:
        panel = Panel(f"{MODELS[model]}: BLEU, validation set", "updates", from_zero=True)
        shown = {(r["way"], r["updates"]): r["curve"] for r in rows if r["model"] == model}
        ways = [way for way, _ in shown]
        for style, ((way, updates), curve) in enumerate(shown.items()):
            several = f", {updates:,} updates" if ways.count(way) > 1 else ""
            if curve:
                panel.lines.append(Line(f"{WAYS[way]}{several}", style, curve))
        panels.append(panel)
    return draw_panels(panels)


def write_report(folder: Path) -> str:
    """Write the files of the report, and return the table."""
    records = read_trainings(folder)
    rows = summary(records)
    cells = [{name: one[name] for name in ("model", "way", "seed", "updates")} for one in records]
    scores = [
        {**cell, "tokens_at_once": length, "bleu": score}
        for cell, one in zip(cells, records, strict=True)
        for length, score in one["scores"].items()
    ]
    points = [
        {**cell, "updates": updates, "valid_bleu": score}
        for cell, one in zip(cells, records, strict=True)
        for updates, score in one["curve"].items()
    ]
    write_text(folder / "results.csv", csv_text(COLUMNS, scores))
    write_text(folder / "curves.csv", csv_text(CURVE_COLUMNS, points))
    machine = [(name, str(value)) for name, value in describe_environment().items()]
    values = {
        "rows": rows,
        "models": MODELS,
        "ways": WAYS,
        "plot": curves(rows),
        "facts_of_all": machine,
    }
    write_text(folder / REPORT, render_page(Path(__file__).parent, REPORT, values))
    return table(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and write the report. Return the exit code."""

    def run(arguments: argparse.Namespace) -> None:
        print(write_report(arguments.folder))
        print(f"report: {arguments.folder / REPORT}")

    parser = make_parser("report", __doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="OUT of run.sh")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())

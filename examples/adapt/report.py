"""Report the trainings of run.sh: a table, report.html, results.csv and curves.csv.

A difference compares a model with the model of the same seed that its training starts from, on the
same test set. Intervals are 95% intervals of the mean over seeds, by Student's t.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relu_nmt.applications.environment import describe_environment
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.drawing.pages import csv_text, number, render_page
from relu_nmt.drawing.panels import Curve, Panel, draw_panels
from relu_nmt.errors import DataError
from relu_nmt.evaluation.significance import mean_interval
from relu_nmt.io.safe_write import write_text
from relu_nmt.jobs.analyze.curves import read_curves
from relu_nmt.training.config import RESULTS_FILE

MODELS = {
    "softmax": "softmax",
    "reluformer_hybrid": "ReLU in encoder and decoder",
    "reluformer_paper": "ReLU in every slot",
    "sentences": "sentences",
    "documents": "aligned documents",
}
BASES = {
    "softmax": "softmax",
    "reluformer_hybrid": "softmax",
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
"""A training: model, way, seed, updates, curve (BLEU by updates), scores (BLEU by length)."""


def read_trainings(folder: Path) -> list[Record]:
    """Return the trainings in a folder that have translated their test set.

    Raises:
        DataError: a file cannot be read, or there is no training.
    """
    records = []
    for training_folder in sorted(folder.glob("*-seed*")):
        name_parts = FOLDER.fullmatch(training_folder.name)
        scores = {}
        for path in training_folder.glob("test-*.json"):
            length = TEST.fullmatch(path.name)
            if length:
                scores[int(length[1])] = read_number(path, "d_bleu", "score")
        if name_parts is None or name_parts["model"] not in MODELS or not scores:
            continue
        curves = read_curves(training_folder / RESULTS_FILE)
        records.append(
            {
                "model": name_parts["model"],
                "way": name_parts["way"] or "",
                "seed": int(name_parts["seed"]),
                "updates": int(read_number(training_folder / RESULTS_FILE, "num_updates")),
                "curve": curves.get(("valid", "bleu"), {}),
                "scores": dict(sorted(scores.items())),
            }
        )
    if not records:
        raise DataError(f"{folder}: no finished training; examples/adapt/run.sh makes them")
    models = list(MODELS)
    ways = list(WAYS)
    return sorted(
        records,
        key=lambda record: (models.index(record["model"]), ways.index(record["way"])),
    )


def read_number(path: Path, *keys: str) -> float:
    """Return the number in a JSON file under these keys, the outermost key first."""
    try:
        value = json.loads(path.read_text("utf-8"))
        for key in keys:
            value = value[key]
        return float(value)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: no {' '.join(keys)} in it; delete the file") from error


def summary(records: Sequence[Record]) -> list[Record]:
    """Return a row for each kind of training, its updates and a length: means and differences."""
    base_scores = {}
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if not record["way"]:
            first_score = next(iter(record["scores"].values()))
            base_scores[record["model"], record["seed"]] = first_score
        for length in record["scores"]:
            group = (record["model"], record["way"], record["updates"], length)
            groups.setdefault(group, []).append(record)
    rows = []
    for (model, way, updates, length), runs in groups.items():
        scores = []
        differences = []
        for run in runs:
            score = run["scores"][length]
            scores.append(score)
            base_score = base_scores.get((BASES.get(model), run["seed"]))
            if way and base_score is not None:
                differences.append(score - base_score)
        rows.append(
            {
                "model": model,
                "way": way,
                "length": length,
                "seeds": [run["seed"] for run in runs],
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
        curve_of = {(r["way"], r["updates"]): r["curve"] for r in rows if r["model"] == model}
        ways = [way for way, _ in curve_of]
        for style, ((way, updates), curve) in enumerate(curve_of.items()):
            label = WAYS[way]
            if ways.count(way) > 1:
                label += f", {updates:,} updates"
            if curve:
                panel.lines.append(Curve(label, style, curve))
        panels.append(panel)
    return draw_panels(panels)


def write_report(folder: Path) -> str:
    """Write the files of the report, and return the table."""
    records = read_trainings(folder)
    rows = summary(records)
    scores = []
    points = []
    for record in records:
        cells = {name: record[name] for name in ("model", "way", "seed", "updates")}
        for length, score in record["scores"].items():
            scores.append({**cells, "tokens_at_once": length, "bleu": score})
        for updates, score in record["curve"].items():
            points.append({**cells, "updates": updates, "valid_bleu": score})
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

"""The report of a study: report.html with tables and plots, results.csv and curves.csv."""

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies import Study

from relu_nmt.applications.sweep.steps import DONE, Step, read_step
from relu_nmt.drawing.pages import LEAST_SEEDS, arms, csv_text, render_page
from relu_nmt.drawing.panels import Curve, Panel, draw_panels
from relu_nmt.errors import DataError, reporting
from relu_nmt.evaluation.significance import mean_interval
from relu_nmt.io.safe_write import write_text
from relu_nmt.jobs.analyze.curves import (
    TELEMETRY,
    TRAIN,
    Curves,
    add_point,
    curve_rows,
    read_curves,
)
from relu_nmt.training.config import RESULTS_FILE
from relu_nmt.training.save_dir import TrainingResult

REPORT = "report.html"
RESULTS = "results.csv"
CURVES = "curves.csv"
ACCURACY = "accuracy.json"
NORMS = "norms.json"
VALID = "valid"
LARGEST_VALUE = 100.0
COLUMNS = (
    *("row", "variant", "model", "seed", "seeds", "status", "test_accuracy"),
    *("test_accuracy_interval", "gain", "gain_interval", "gain_seeds", "valid_accuracy"),
    *("train_loss", "updates", "images_per_second", "parameters", "seconds"),
)
MEANS = ("test_accuracy", "valid_accuracy", "train_loss", "images_per_second", "seconds")
LEARNING = {
    (TRAIN, "loss"): "training loss, bits per image",
    (VALID, "accuracy"): "held-out accuracy, %",
    (TRAIN, "gnorm"): "norm of the gradient",
}
ATTENTION = {
    (TELEMETRY, "encoder sum"): "row sum",
    (TELEMETRY, "encoder entropy"): "entropy, nats",
    (TELEMETRY, "encoder zero_fraction"): "share of zeros",
    (TELEMETRY, "encoder largest"): "largest weight of a row",
    (TELEMETRY, "encoder query_norm"): "length of queries",
    (TELEMETRY, "encoder output_square"): "mean square of outputs",
}
NORM_KINDS = {"weights": "the weights", "jacobian": "the Jacobian"}
NORM_PANELS = {
    ("norms", f"{kind} of layer {layer}"): f"norm of {title}, layer {layer}"
    for (kind, title), layer in itertools.product(NORM_KINDS.items(), (2, 7, 12))
}
PLOTS = {"learning": LEARNING, "attention": ATTENTION, "norms": NORM_PANELS}
MEANING = {
    "learning": "Means over the seeds.",
    "norms": "Frobenius norms, means over seeds, heads and images; all layers are in curves.csv.",
    "attention": "Means over seeds, layers, heads and images, of attentions that have rows.",
}
LOGARITHMIC = ("norm", "length of queries", "mean square of outputs")

Record = dict[str, Any]


@dataclass
class Trained:
    """A training, done or not.

    Args:
        step: the step of the training, with its state.
        record: its known numbers by column of the CSV file.
        curves: its curves.
    """

    step: Step
    record: Record
    curves: Curves


def read_trainings(folder: Path, study: Study) -> list[Trained]:
    """Return the trainings of a study, in the order of its variants and by seed.

    Raises:
        DataError: a file is damaged.
    """
    trainings = []
    for path in folder.glob("*/train.json"):
        step = read_step(path)
        if step is not None and step.model.attention in study.variants:
            trainings.append(Trained(step, _record(step, study), _curves(step)))
    order = list(study.variants)
    return sorted(trainings, key=lambda t: (order.index(t.record["variant"]), t.record["seed"]))


def _record(step: Step, study: Study) -> Record:
    name = step.model.attention
    record = {"row": "training", "variant": name, "model": study.variants[name].model}
    record |= {"seed": step.model.seed, "status": step.status}
    with suppress(DataError):  # the training has no results yet
        result = TrainingResult.load(step.checkpoints)
        record |= {
            "updates": result.num_updates,
            "parameters": result.parameters,
            "images_per_second": result.tokens_per_second,
            "seconds": result.seconds,
            "train_loss": result.train[-1]["loss"] if result.train else None,
        }
        valid = result.valid.get(VALID)
        if valid:
            record["valid_accuracy"] = valid[-1]["accuracy"]
    if step.status == DONE:
        path = step.folder / ACCURACY
        try:
            [accuracy] = json.loads(path.read_text("utf-8"))["accuracies"]
            record |= {"test_accuracy": accuracy["top1"], "test_images": accuracy["images"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: cannot be read ({error}); delete {step.path('.json')} to evaluate again"
            ) from error
    return {key: value for key, value in record.items() if value is not None}


def _curves(step: Step) -> Curves:
    """Return the curves of a training, from its results and, for telemetry, from its log.

    The curves of the results win, because the log may repeat updates.
    """
    curves: Curves = {}
    for path in (step.path(".log"), step.checkpoints / RESULTS_FILE):
        with suppress(DataError):
            curves |= read_curves(path, may_be_empty=True)
    path = step.folder / NORMS
    if path.exists():
        for row in json.loads(path.read_text("utf-8"))["norms"]:
            point = {f"{kind} of layer {row['layer']}": row[kind] for kind in NORM_KINDS}
            add_point(curves, "norms", {**point, "num_updates": row["num_updates"]})
    return curves


def averages(trainings: Sequence[Trained], study: Study) -> list[Record]:
    """Return a record for each variant: means over the seeds that are done, and 95% intervals.

    ``gain`` is the test accuracy minus the accuracy of the baseline, over the common seeds.
    """
    by_variant: dict[str, list[Record]] = {}
    for training in trainings:
        by_variant.setdefault(training.record["variant"], []).append(training.record)
    means = []
    for name, records in by_variant.items():
        mean: Record = {"row": "mean", "variant": name, "model": records[0]["model"]}
        done = {record["seed"]: record for record in records if record["status"] == DONE}
        mean["seeds"] = ",".join(map(str, done))
        counts = Counter(record["status"] for record in records)
        mean["status"] = ", ".join(f"{count} {status}" for status, count in counts.items())
        for column in MEANS:
            values = _column(done.values(), column)
            if values:
                mean[column] = sum(values) / len(values)
        if done:
            for column in ("parameters", "updates"):
                mean[column] = max(_column(done.values(), column), default=None)
            accuracies = [record["test_accuracy"] for record in done.values()]
            mean["test_accuracy_interval"] = mean_interval(accuracies)
        gains = gains_of(trainings, mean, study)
        if gains:
            mean["gain"] = sum(gains.values()) / len(gains)
            mean["gain_interval"] = mean_interval(list(gains.values()))
            mean["gain_seeds"] = ",".join(map(str, gains))
        means.append(mean)
    return means


def _column(records: Iterable[Record], column: str) -> list[float]:
    return [record[column] for record in records if column in record]


def by_seed(trainings: Sequence[Trained], name: str, column: str) -> dict[int, float]:
    """Return a column of the finished trainings of a variant, by seed."""
    values = {}
    for training in trainings:
        record = training.record
        if record["variant"] == name and record["status"] == DONE and column in record:
            values[record["seed"]] = record[column]
    return values


def gains_of(trainings: Sequence[Trained], record: Record, study: Study) -> dict[int, float]:
    """Return the difference in test accuracy of a variant and its baseline, by common seed."""
    baseline = study.baselines.get(record["model"], "")
    if record["variant"] == baseline:
        return {}
    accuracies = by_seed(trainings, record["variant"], "test_accuracy")
    base_accuracies = by_seed(trainings, baseline, "test_accuracy")
    common_seeds = sorted(accuracies.keys() & base_accuracies.keys())
    return {seed: accuracies[seed] - base_accuracies[seed] for seed in common_seeds}


def curve_panels(
    trainings: Sequence[Trained], titles: Mapping[tuple[str, str], str]
) -> list[Panel]:
    """Return plots of curves over updates. Each variant has a line, the mean over its seeds.

    Args:
        trainings: trainings of one model.
        titles: title of each curve, by split and metric.
    """
    names = list(dict.fromkeys(t.record["variant"] for t in trainings))
    panels = []
    for key, title in titles.items():
        panel = Panel(title, "updates", log_y=title.startswith(LOGARITHMIC))
        for style, name in enumerate(names):
            curves = [t.curves.get(key, {}) for t in trainings if t.record["variant"] == name]
            points = _mean(curves)
            if points:
                panel.lines.append(Curve(name, style, points))
        if panel.lines:
            panels.append(panel)
    return panels


AXIS_PANELS = {"test_accuracy": "test top-1, %", "train_loss": "training loss, bits per image"}


def axis_panels(means: Sequence[Record], study: Study, trainings: Sequence[Trained]) -> list[Panel]:
    """Return the plots over the study's axis. A variant without a value on it is a level line."""
    x_of = {name: v.x for name, v in study.variants.items() if v.x is not None}
    ends = (min(x_of.values()), max(x_of.values()))
    styles = list(dict.fromkeys(v.line or name for name, v in study.variants.items()))
    panels = []
    for column, title in AXIS_PANELS.items():
        lines: dict[str, Curve] = {}
        for record in means:
            value = record.get(column)
            name = record["variant"]
            if value is None:
                continue
            label = study.variants[name].line or name
            line = lines.setdefault(label, Curve(label, styles.index(label), {}))
            interval = record.get(f"{column}_interval")
            seeds = by_seed(trainings, name, column).values()
            few = len(seeds) < LEAST_SEEDS
            reach = (0.0, 0.0) if few or interval is None else arms(value, interval, LARGEST_VALUE)
            for x in (x_of[name],) if name in x_of else ends:
                line.points[x] = value
                line.errors.append(reach)
                if few and len(seeds) > 1:
                    line.dots += [(x, seed_value) for seed_value in seeds]
        if lines:
            panels.append(Panel(title, study.axis, list(lines.values()), log_x=study.log_axis))
    return panels


def _mean(curves: Sequence[Mapping[int, float]]) -> dict[float, float]:
    """Return the mean of the curves that have begun, at each update that all have reached."""
    begun = list(filter(None, curves))
    means = {}
    for update in sorted(set.intersection(*map(set, begun))) if begun else ():
        means[float(update)] = sum(curve[update] for curve in begun) / len(begun)
    return means


def write_report(folder: Path, study: Study) -> None:
    """Write the report of the present trainings.

    Raises:
        DataError: the folder has no training, a file is damaged, or one cannot be written.
    """
    trainings = read_trainings(folder, study)
    if not trainings:
        raise DataError(f"{folder}: no training of this study there; check --save-dir")
    means = averages(trainings, study)
    rows = [*(t.record for t in trainings), *means]
    columns = dict.fromkeys(COLUMNS)
    for row in rows:
        columns |= dict.fromkeys(row)
    curves = []
    for training in trainings:
        curves += curve_rows(str(training.step.model), training.curves)
    names = ("training", "split", "metric", "num_updates", "value")
    with reporting(f"{folder / REPORT}: cannot be written"):
        write_text(folder / RESULTS, csv_text(list(columns), rows))
        write_text(folder / CURVES, csv_text(names, curves))
        write_text(folder / REPORT, _page(study, trainings, means))


def _page(study: Study, trainings: Sequence[Trained], means: Sequence[Record]) -> str:
    figures = []
    panels = axis_panels(means, study, trainings) if study.axis else []
    if panels:
        caption = f"Over {study.axis}. Means over the seeds; a level line: without {study.axis}."
        caption += f" Bars: 95% intervals over seeds; dots: seeds, where fewer than {LEAST_SEEDS}."
        figures.append((caption, draw_panels(panels)))
    # Leave out the curves of a study with an axis, which has too many lines. See curves.csv.
    for model in () if study.axis else dict.fromkeys(t.record["model"] for t in trainings):
        of_model = [t for t in trainings if t.record["model"] == model]
        for kind, titles in PLOTS.items():
            panels = curve_panels(of_model, titles)
            if panels:
                figures.append((f"{model}: {kind}. {MEANING[kind]}", draw_panels(panels)))
    environment = next((t.step.environment for t in trainings if t.step.environment), {})
    facts = []
    for name in ("cpu", "gpus", "OMP_NUM_THREADS", "relu_nmt", "revision", "torch", "python"):
        value = environment.get(name)
        facts.append((name, ", ".join(value) if isinstance(value, list) else value))
    tests = {t.record["test_images"] for t in trainings if "test_images" in t.record}
    commands = [(str(t.step.model), t.step.shown) for t in trainings]
    values = {
        "study": study,
        "means": means,
        "LEAST_SEEDS": LEAST_SEEDS,
        "accuracies": {name: by_seed(trainings, name, "test_accuracy") for name in study.variants},
        "gains": {m["variant"]: gains_of(trainings, m, study) for m in means},
        "facts_of_all": [
            ("paper", study.source),
            ("test images", ", ".join(f"{count:,}" for count in sorted(tests))),
            *facts,
            ("report of", time.strftime("%d %B %Y, %H:%M")),
        ],
        "figures": figures,
        "commands": commands,
    }
    return render_page(Path(__file__).parent, REPORT, values)

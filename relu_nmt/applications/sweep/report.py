"""The report of a sweep: tables, plots and files, results.csv, card.json and report.html."""

import dataclasses
import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relu_nmt.applications.sweep.results import (
    ALL_SLOTS,
    NOT_CONVERGED,
    PENDING,
    SCORES,
    Average,
    Cell,
    Record,
    System,
    average_cells,
    compare,
    read_cells,
)
from relu_nmt.applications.sweep.steps import (
    DIVERGED,
    DONE,
    FAILED,
    STARTED,
    SweepDescription,
    models_in,
    read_description,
)
from relu_nmt.attention.records import STATISTICS
from relu_nmt.errors import reporting
from relu_nmt.evaluation.significance import DEFAULT_SAMPLES, DEFAULT_SEED
from relu_nmt.io.page import (
    LEAST_SEEDS,
    Line,
    Panel,
    arms,
    csv_text,
    curve_lines,
    draw_panels,
    render_page,
)
from relu_nmt.io.safe_write import write_text
from relu_nmt.modules.config import SLOTS

REPORT_NAME, CSV_NAME, CARD_NAME = "report.html", "results.csv", "card.json"
FIRST_COLUMNS = (
    *("row", "attention", "trained_on", "mixture", "length", "seed", "seeds", "status", "note"),
    *("d_bleu", "d_bleu_seed_interval", "d_bleu_document_interval"),
    *("gain", "gain_seed_interval", "gain_document_interval", "p_value"),
    *("s_bleu", "mismatch_rate", "group_bleu", "chrf"),
    *("updates", "train_loss", "valid_nll", "valid_accuracy"),
)
LAST_COLUMNS = (
    *(f"{score}_signature" for score in SCORES),
    *("device", "threads", "relu_nmt", "torch", "python", "started"),
    *("train_command", "evaluate_command"),
)
WORDS = {
    DONE: "done",
    NOT_CONVERGED: "not converged",
    DIVERGED: "diverged",
    FAILED: "failed",
    STARTED: "under way",
    PENDING: "not begun",
}
BAD = (NOT_CONVERGED, DIVERGED, FAILED)
SIGNIFICANT = 0.05
CONTRAST_COLUMNS = ("accuracy_context", "accuracy_alone", "chance", "contrasts")
MOST_NAMED = 3
"""Number of models named in the report among those with the same error."""
MOST_BLEU = 100.0
COURSE_TITLES = {
    "train_loss": ("training loss, bits per token", False),
    "gradient_norm": ("gradient norm", True),
    "output_square": ("mean square of attention outputs", True),
    "query_norm": ("mean length of queries", False),
    "key_norm": ("mean length of keys", False),
    "output_growth": ("exponent e of outputs, decoder: n^e", False),
}
"""Title of each curve of a training, and whether its vertical axis is logarithmic."""
MEMORY_TITLES = {
    "d_bleu": "d-BLEU",
    "memory_variance_ratio": "variance ratio",
    "memory_anisotropy": "anisotropy",
}


@dataclass(frozen=True)
class ReportData:
    """The results of a sweep, laid out as tables of systems and lengths."""

    description: SweepDescription
    cells: Sequence[Cell]
    averages: Sequence[Average]

    @property
    def systems(self) -> list[System]:
        """The rows of the tables."""
        return list(dict.fromkeys(average.system for average in self.averages))

    @property
    def lengths(self) -> list[int]:
        """The columns of the tables, in tokens."""
        return sorted({average.length for average in self.averages})

    @property
    def seeds(self) -> list[int]:
        """The seeds of all models."""
        return sorted({cell.model.seed for cell in self.cells})

    def row(self, system: System) -> list[Average | None]:
        """Return the averages of a system, one for each length."""
        found = {a.length: a for a in self.averages if a.system == system}
        return [found.get(length) for length in self.lengths]

    def label(self, system: System) -> str:
        """Return the name of a system."""
        several = len({other.mixture for other in self.systems}) > 1
        if not (several and system.mixture):
            return system.attention
        return f"{system.attention}, mixture {','.join(map(str, system.mixture))}"

    def has(self, *columns: str) -> bool:
        """Return whether an average has a value in one of the columns."""
        return any(column in a.record for a in self.averages for column in columns)

    def distinct(self, column: str) -> str:
        """Return the different texts in a column of the models."""
        found = (cell.record.get(column) for cell in self.cells)
        return "; ".join(dict.fromkeys(str(value) for value in found if value))

    def best_at(self, length: int) -> Average | None:
        """Return the average with the highest d-BLEU, if it is better than all others.

        Better means a gain on at least LEAST_SEEDS seeds, significant over documents and seeds.
        """
        found = [a for a in self.averages if a.length == length and "d_bleu" in a.record]
        if len(found) < 2:
            return None
        best, *others = sorted(found, key=lambda a: a.record["d_bleu"], reverse=True)
        for other in others:
            gain, seeds = compare(best, other)
            if len(seeds) < LEAST_SEEDS or gain["p_value"] >= SIGNIFICANT:
                return None
            # Refuse a gain that its spread over seeds could explain.
            if gain["gain"] <= gain["gain_seed_interval"]:
                return None
        return best

    def went_wrong(self) -> list[tuple[str, Cell]]:
        """Return the names of models, or models at a length, by error, with an example each."""
        # Name a training once, an evaluation with its length.
        errors: dict[tuple[str, str], dict[str, Cell]] = {}
        for cell in self.cells:
            if cell.status in BAD:
                note = cell.record["note"]
                trained = not note or "evaluate_command" in cell.record
                name = f"{cell.model} at {cell.length}" if trained else str(cell.model)
                errors.setdefault((cell.status, note), {}).setdefault(name, cell)
        # Show a few names for each error, and count the rest.
        found = []
        for cells in errors.values():
            names, more = list(cells)[:MOST_NAMED], len(cells) - MOST_NAMED
            names += [f"{more:,} more"] if more > 0 else []
            found.append(("; ".join(names), next(iter(cells.values()))))
        return found

    def commands(self) -> dict[str, list[str]]:
        """Return the commands by model."""
        found: dict[str, dict[str, None]] = {}
        for cell in self.cells:
            for name in ("train_command", "evaluate_command"):
                if name in cell.record:
                    found.setdefault(str(cell.model), {})[cell.record[name]] = None
        return {name: list(commands) for name, commands in found.items()}

    def buckets(self, counted: str) -> dict[str, float]:
        """Return the number of segments by bucket, from columns such as ``documents[1-19]``."""
        found = {
            column[len(counted) : -1]: value
            for average in self.averages
            for column, value in average.record.items()
            if column.startswith(counted)
        }
        # Sort by the lowest value of a bucket, ``>19`` behind ``10-19`` and ``19``.
        order = sorted((float(b.strip(">").split("-")[0]), b[0] == ">", b) for b in found)
        return {bucket: found[bucket] for *_, bucket in order}

    def contrasts(self) -> dict[System, dict[str, Record]]:
        """Return the columns of contrasts by system and category of the contrasts."""
        found: dict[System, dict[str, Record]] = {}
        for average in self.averages:
            for column, value in average.record.items():
                name, _, category = column.rstrip("]").partition("[")
                if name in CONTRAST_COLUMNS:
                    found.setdefault(average.system, {}).setdefault(category, {})[name] = value
        return found

    def realised_lengths(self) -> Iterator[tuple[int, str, str, Record]]:
        """Yield the length limit, the split, the prefix of its columns, and their record."""
        everywhere = [cell.record for cell in self.cells]
        trained = {length for cell in self.cells for length in cell.model.lengths}
        for length in sorted({*self.lengths, *trained}):
            # Look for mixtures in all records, for other models at their length.
            here = [cell.record for cell in self.cells if cell.length == length]
            for prefix, split, records in (
                (f"train[{length}]", "training", everywhere),
                ("train", "training", here),
                ("test", self.description.settings.gen_subset, here),
            ):
                # Take the first record with the lengths of the split.
                found = next((r for r in records if f"{prefix}_mean_tokens" in r), None)
                if found is not None:
                    yield length, split, prefix, found

    def memories(self) -> dict[str, list[Record]]:
        """Return the records with statistics of memories, by network, smallest first."""
        found: dict[str, list[Record]] = {}
        for average in sorted(self.averages, key=lambda one: one.record.get("memory_size", 0)):
            if "memory_size" in average.record and average.length == self.lengths[0]:
                found.setdefault(average.record["feed_forward"], []).append(average.record)
        return found

    def published_rows(self) -> list[tuple[str, list[tuple[Average | None, str, Any]]]]:
        """Return the name of each system of the published table and of this sweep, and its row.

        A row has the average with the measured value or None, the column's name, and the published
        value of each column.
        """
        table = self.description.published
        if table is None:
            return []
        # Compare an attention by its first system.
        first = {system.attention: system for system in reversed(self.systems)}
        names = [*table["rows"], *(system.attention for system in self.systems)]
        rows = []
        for name in dict.fromkeys(names):
            own = [a for a in (self.row(first[name]) if name in first else []) if a is not None]
            # Find the average for each column, at the column's length if it has one.
            row = []
            values = table["rows"].get(name, [None] * len(table["columns"]))
            for column, value in zip(table["columns"], values, strict=True):
                title, _, length = column.partition("@")
                places = [a for a in own if not length or a.length == int(length)]
                row.append((places[0] if places else None, title, value))
            rows.append((name, row))
        return rows


def read_report(folder: Path, description: SweepDescription) -> ReportData:
    """Return the present results in a sweep's folder."""
    attentions = description.attentions

    # Sort by mixture, then in the order of attentions, lengths and seeds.
    def order(cell: Cell) -> tuple[object, ...]:
        name, mixture = cell.system
        rank = [*attentions, name].index(name)
        return mixture, rank, name, cell.length, cell.model.seed

    cells = sorted(read_cells(folder, models_in(folder, description.settings)), key=order)
    return ReportData(description, cells, average_cells(cells, attentions[0]))


# ------------------------------------------------------------------- the plots


def length_name(length: int) -> str:
    """Return the title of a document length."""
    return "sentences" if length == 1 else f"{length:,}"


def length_figure(
    data: ReportData, *columns: tuple[str, str, float], from_zero: bool = True
) -> str:
    """Return plots of means over document lengths, for the ``src`` of an image.

    Each of ``columns`` has the column, the title with the unit, and the divisor of the values.
    """
    panels = [
        Panel(
            title,
            "document length, tokens",
            lines_over_lengths(data, column, scale),
            [length_name(n) for n in data.lengths],
            from_zero=from_zero,
        )
        for column, title, scale in columns
    ]
    return draw_panels(panels)


def lines_over_lengths(data: ReportData, column: str, scale: float) -> list[Line]:
    """Return a line for each system, with its values in the column."""
    lines = []
    for style, system in enumerate(data.systems):
        # Collect the averages by the index of their length.
        means = {
            float(x): average
            for x, average in enumerate(data.row(system))
            if average is not None and column in average.record
        }
        # Draw the means with their intervals, and too few seeds as dots.
        points = {x: own.record[column] / scale for x, own in means.items()}
        errors = [_error(own, column) for own in means.values()]
        line = Line(data.label(system), style, points, errors if any(map(any, errors)) else None)
        for x, own in means.items():
            if 1 < len(values := own.values(column)) < LEAST_SEEDS:
                line.dots += [(x, value / scale) for value in values]
        lines.append(line)
    return lines


def _error(average: Average, column: str) -> tuple[float, float]:
    """Return an interval's length below and above a mean; only d-BLEU has one, few seeds none."""
    seeds, record = len(average.values(column)), average.record
    interval = record.get(f"{column}_{'document' if seeds == 1 else 'seed'}_interval")
    if interval is None or 1 < seeds < LEAST_SEEDS:
        return 0.0, 0.0
    return arms(record[column], interval, MOST_BLEU)


def course_figure(data: ReportData) -> str:
    """Return plots of the first seed's trainings over updates, for the ``src`` of an image."""
    # Go through the cells backwards, so that the first seed's course stays.
    courses = {cell.system: cell.course for cell in reversed(data.cells)}
    panels = []
    for name, (title, log_y) in COURSE_TITLES.items():
        curves = [(data.label(one), courses[one].get(name, {})) for one in data.systems]
        panels.append(Panel(title, "updates", curve_lines(curves), log_y=log_y))
    return draw_panels(panels)


def memory_figures(data: ReportData) -> list[tuple[str, str]]:
    """Return plots of the memories with their captions: over their sizes, and of their sums."""
    memories = data.memories()
    # Plot scores and statistics over sizes, if a network has several sizes.
    panels = []
    for column, title in MEMORY_TITLES.items() if max(map(len, memories.values())) > 1 else ():
        curves = [
            (name, {r["memory_size"]: r[column] for r in records if column in r})
            for name, records in memories.items()
        ]
        panels.append(Panel(title, "size of the memory, keys", curve_lines(curves), log_x=True))
    caption = "Scores and statistics against the size of the memory."
    figures = [(caption, draw_panels(panels))]
    # Plot the sum of the largest p percent of the weights over p, with a line for each size, which
    # has the same style in every panel.
    sizes = sorted({one["memory_size"] for records in memories.values() for one in records})
    columns = {float(p): f"memory_top_sum[{p}]" for p in data.buckets("memory_top_sum[")}
    panels = []
    for name, records in memories.items():
        lines = []
        for record in records:
            sums = {p: record[column] for p, column in columns.items() if column in record}
            size = record["memory_size"]
            lines.append(Line(f"size {size:g}", sizes.index(size), sums))
        title = f"{name}: share of the sum"
        panels.append(Panel(title, "largest p %", lines, log_x=True, from_zero=True))
    caption = "Sum of the largest p % of a token's weights over the sum of all."
    return [*figures, (caption, draw_panels(panels))]


# ------------------------------------------------------------------- the files


def statuses(cells: Sequence[Cell]) -> dict[str, int]:
    """Return the number of evaluations by status, in words."""
    counts = Counter(cell.status for cell in cells)
    return {word: counts[status] for status, word in WORDS.items() if counts[status]}


def trouble(average: Average) -> str:
    """Return in words the status of the seeds without a result; empty if all have one."""
    bad = {word: n for word, n in statuses(average.cells).items() if word != WORDS[DONE]}
    total = len(average.cells)
    return ", ".join(word if n == total else f"{n} of {total} {word}" for word, n in bad.items())


def write_report(folder: Path, description: SweepDescription) -> ReportData:
    """Write report.html, results.csv and card.json; return their data."""
    data = read_report(folder, description)
    # Put the known columns first and last, all others between; numbers have full precision.
    rows = [{"row": "cell", **cell.record} for cell in data.cells]
    rows += [{"row": "mean", **average.record} for average in data.averages]
    known = {*FIRST_COLUMNS, *LAST_COLUMNS}
    others = dict.fromkeys(name for row in rows for name in row if name not in known)
    # Settings, environment, measured means and published figures as JSON values.
    measured = [{**one.record, "status": trouble(one) or WORDS[DONE]} for one in data.averages]
    card = {
        "settings": dataclasses.asdict(description.settings),
        "environment": description.environment,
        "measured": measured,
        "published": description.published,
    }
    with reporting(f"{folder / REPORT_NAME}: cannot be written"):
        write_text(folder / CSV_NAME, csv_text([*FIRST_COLUMNS, *others, *LAST_COLUMNS], rows))
        write_text(folder / CARD_NAME, json.dumps(card, indent=1, ensure_ascii=False) + "\n")
        write_text(folder / REPORT_NAME, page(data))
    return data


def page(data: ReportData) -> str:
    """Return the HTML page."""
    # Describe the models from which the sweep starts, and their budget.
    settings, start = data.description.settings, ""
    if (folder := settings.start_from) is not None:
        earlier = read_description(Path(folder))
        budget = "unknown" if earlier is None else earlier.settings.time
        start = f"the sentence models of {folder}, {budget} per model"
    values: dict[str, Any] = {
        "data": data,
        "settings": settings,
        "start": start,
        "command": shlex.join(["relu-nmt-sweep", *settings.command]),
        "now": time.strftime("%d %B %Y, %H:%M"),
        # The constants that the texts and tables name.
        "WORDS": WORDS,
        "BAD": BAD,
        "SLOTS": SLOTS,
        "ALL_SLOTS": ALL_SLOTS,
        "STATISTICS": STATISTICS,
        "LEAST_SEEDS": LEAST_SEEDS,
        "SAMPLES": DEFAULT_SAMPLES,
        "SEED": DEFAULT_SEED,
        "CSV_NAME": CSV_NAME,
        "CARD_NAME": CARD_NAME,
    }
    # Pass functions too, so that the template decides where figures stand.
    figures = length_figure, course_figure, memory_figures
    values |= {one.__name__: one for one in (statuses, trouble, length_name, *figures)}
    return render_page("relu_nmt.applications.sweep", REPORT_NAME, values)

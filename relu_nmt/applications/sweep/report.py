"""The report of a sweep: means over seeds and gains, as results.csv, card.json and report.html."""

import dataclasses
import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.applications.sweep.figures import (
    course_figure,
    length_figure,
    length_name,
    memory_figures,
)
from relu_nmt.applications.sweep.plan import (
    SweepDescription,
    Value,
    models_in,
    read_description,
)
from relu_nmt.applications.sweep.results import (
    ALL_SLOTS,
    CONTRAST_COLUMNS,
    NOT_CONVERGED,
    PENDING,
    SCORES,
    SLOTS,
    Average,
    Cell,
    Record,
    System,
    average_of,
    read_cells,
)
from relu_nmt.applications.sweep.steps import DIVERGED, DONE, FAILED, STARTED
from relu_nmt.attention.statistics import STATISTICS
from relu_nmt.errors import DataError
from relu_nmt.evaluation.significance import (
    DEFAULT_SAMPLES,
    DEFAULT_SEED,
    mean_interval,
    p_value,
    resampling_interval,
)
from relu_nmt.io.page import LEAST_SEEDS, csv_text, render_page
from relu_nmt.io.safe_write import write_text

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
MOST_NAMED = 3
"""Number of models named in the report among those with the same error."""
SPEEDS = {f"{kind}_relative_speed": f"{kind}_tokens_per_second" for kind in ("train", "decode")}
"""Columns of speeds by those of the quotients with the baseline's speed."""


def average_cells(cells: Sequence[Cell], baseline: str) -> list[Average]:
    """Return an average for each system and length, in the order of the cells and their seeds.

    A mean is over the seeds whose training converged; the record counts the others. It has the
    columns of the cells and

    * ``d_bleu_seed_interval``, ``d_bleu_document_interval``: half widths of 95% intervals;
    * ``gain``, ``gain_seed_interval``, ``gain_document_interval``, ``p_value``: gain in d-BLEU
      over the baseline, for the seeds that converged with both, ``gain_seeds``;
    * ``train_relative_speed``, ``decode_relative_speed``: tokens per second over those of the
      baseline;
    * ``seeds``, and the numbers of seeds by status.
    """
    # Group the seeds of each system and length.
    groups: dict[tuple[System, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.system, cell.length), []).append(cell)
    averages = {key: average_of(*key, own) for key, own in groups.items()}
    # Compare each average with the baseline at the same length.
    for (system, length), average in averages.items():
        other = averages.get((System(baseline, system.mixture), length))
        if other is None:
            continue
        for column, speed in SPEEDS.items():
            if average.record.get(speed) and other.record.get(speed):
                average.record[column] = average.record[speed] / other.record[speed]
        # Leave the baseline without a gain over itself.
        if other is not average:
            gain, average.gains = compare(average, other)
            average.record |= gain
    return list(averages.values())


def compare(average: Average, other: Average) -> tuple[Record, list[float]]:
    """Return the columns of a gain in d-BLEU, over the seeds of both averages, and its values.

    Both results are empty without a common seed.
    """
    # Compare on common seeds only.
    seeds = sorted(average.resampled.keys() & other.resampled.keys())
    if not seeds:
        return {}, []
    # Average the resampled scores over the seeds, and the gains of single seeds.
    sides = (average, other)
    own, base = (np.mean([side.resampled[seed] for seed in seeds], axis=0) for side in sides)
    scores = [
        {cell.model.seed: cell.record["d_bleu"] for cell in side.cells if cell.status == DONE}
        for side in sides
    ]
    # Intervals: over seeds, and over resamples of the documents.
    gains = [scores[0][seed] - scores[1][seed] for seed in seeds]
    gain = sum(gains) / len(gains)
    record: Record = {"gain": gain}
    interval = mean_interval(gains)
    if interval is not None:
        record["gain_seed_interval"] = interval
    record["gain_document_interval"] = resampling_interval(own - base)
    record["p_value"] = p_value(own, base, gain)
    record["gain_seeds"] = ",".join(map(str, seeds))
    return record, gains


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
        # Compare the highest score with all others.
        found = [a for a in self.averages if a.length == length and "d_bleu" in a.record]
        best = max(found, key=lambda a: a.record["d_bleu"], default=None)
        others = [other for other in found if other is not best]
        for other in others:
            gain, seeds = compare(best, other) if best else ({}, [])
            if len(seeds) < LEAST_SEEDS or gain["p_value"] >= SIGNIFICANT:
                return None
            # Refuse a gain that its spread over seeds could explain.
            if gain["gain"] <= gain["gain_seed_interval"]:
                return None
        return best if others else None

    def statuses(self) -> dict[str, int]:
        """Return the number of evaluations by status, in words."""
        counts = Counter(cell.status for cell in self.cells)
        return {word: counts[status] for status, word in WORDS.items() if counts[status]}

    def went_wrong(self) -> list[tuple[str, Cell]]:
        """Return the names of models, or models at a length, by error, with an example each."""
        # Name a training once, an evaluation with its length.
        found: dict[str, Cell] = {}
        for cell in self.cells:
            if cell.status in BAD:
                trained = not cell.record["note"] or "evaluate_command" in cell.record
                name = f"{cell.model} at {cell.length}" if trained else str(cell.model)
                found.setdefault(name, cell)
        # Join the names of models with the same error.
        alike: dict[tuple[str, str], list[str]] = {}
        for name, cell in found.items():
            alike.setdefault((cell.status, cell.record["note"]), []).append(name)
        # Show a few names for each error, and count the rest.
        return [
            (
                "; ".join(names[:MOST_NAMED])
                + (f"; {more:,} more" if (more := len(names) - MOST_NAMED) > 0 else ""),
                found[names[0]],
            )
            for names in alike.values()
        ]

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
        return dict(sorted(found.items(), key=lambda one: _lowest(one[0])))

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
        # Take the first record with the lengths of a split.
        trained = {length for cell in self.cells for length in cell.model.lengths}
        for length in sorted({*self.lengths, *trained}):
            # Look for mixtures in all records, for other models at their length.
            everywhere = [cell.record for cell in self.cells]
            here = [cell.record for cell in self.cells if cell.length == length]
            for prefix, split, records in (
                (f"train[{length}]", "training", everywhere),
                ("train", "training", here),
                ("test", self.description.settings.gen_subset, here),
            ):
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

    def published_rows(self) -> list[tuple[str, list[tuple[Average | None, str, Value]]]]:
        """Return the name of each system of the published table and of this sweep, and its row.

        A row has the average with the measured value or None, the column's name, and the published
        value of each column.
        """
        table = self.description.published
        if table is None:
            return []
        # Compare an attention by its first system.
        first: dict[str, System] = {}
        for system in self.systems:
            first.setdefault(system.attention, system)
        rows = []
        for name in dict.fromkeys([*table.rows, *first]):
            # Find the average for each column, at the column's length if it has one.
            row = []
            for column in table.columns:
                title, _, length = column.partition("@")
                own = self.row(first[name]) if name in first else []
                places = [a for a in own if a is not None]
                if length:
                    places = [a for a in places if a.length == int(length)]
                row.append((places[0] if places else None, title, table.value(name, column)))
            rows.append((name, row))
        return rows


def _lowest(bucket: str) -> float:
    """Return the lowest value of a bucket; 19.5 for the last one, ``>19``."""
    return float(f"{bucket[1:]}.5" if bucket[0] == ">" else bucket.split("-")[0])


def read_report(folder: Path, description: SweepDescription) -> ReportData:
    """Return the present results in a sweep's folder."""
    attentions = description.attentions
    rank = {name: position for position, name in enumerate(attentions)}

    # Sort by mixture, then in the order of attentions, lengths and seeds.
    def order(cell: Cell) -> tuple[object, ...]:
        name, mixture = cell.system
        return mixture, rank.get(name, len(rank)), name, cell.length, cell.model.seed

    cells = sorted(read_cells(folder, models_in(folder, description.settings)), key=order)
    return ReportData(description, cells, average_cells(cells, attentions[0]))


# ------------------------------------------------------------------- the files


def trouble(average: Average) -> str:
    """Return in words the status of the seeds without a result; empty if all have one."""
    counts, total = Counter(cell.status for cell in average.cells), len(average.cells)
    bad = {word: counts[status] for status, word in WORDS.items() if status != DONE}
    parts = [word if n == total else f"{n} of {total} {word}" for word, n in bad.items() if n]
    return ", ".join(parts)


def write_report(folder: Path, description: SweepDescription) -> ReportData:
    """Write report.html, results.csv and card.json; return their data."""
    data = read_report(folder, description)
    try:
        write_text(folder / CSV_NAME, report_csv(data))
        write_text(folder / CARD_NAME, json.dumps(card(data), indent=1, ensure_ascii=False) + "\n")
        write_text(folder / REPORT_NAME, page(data))
    except OSError as error:
        raise DataError(f"{folder / REPORT_NAME}: cannot be written: {error.strerror}") from error
    return data


def report_csv(data: ReportData) -> str:
    """Return the records with numbers in full precision: rows ``cell`` and rows ``mean``."""
    # Put the known columns first and last, all others between.
    rows = [{"row": "cell", **cell.record} for cell in data.cells]
    rows += [{"row": "mean", **average.record} for average in data.averages]
    known = {*FIRST_COLUMNS, *LAST_COLUMNS}
    others = dict.fromkeys(name for row in rows for name in row if name not in known)
    return csv_text([*FIRST_COLUMNS, *others, *LAST_COLUMNS], rows)


def card(data: ReportData) -> dict[str, Any]:
    """Return settings, environment, measured means and published figures as JSON values."""
    description = data.description
    return {
        "settings": dataclasses.asdict(description.settings),
        "environment": description.environment,
        "measured": [
            {**average.record, "status": trouble(average) or WORDS[DONE]}
            for average in data.averages
        ],
        "published": description.published and dataclasses.asdict(description.published),
    }


def page(data: ReportData) -> str:
    """Return the HTML page."""
    # Describe the models from which the sweep starts, and their budget.
    settings, start = data.description.settings, ""
    if (folder := settings.start_from) is not None:
        earlier = read_description(Path(folder))
        budget = "unknown" if earlier is None else earlier.settings.time
        start = f"the sentence models of {folder}, {budget} per model"
    # Give the template its data, functions and constants.
    values = {
        "data": data,
        "settings": settings,
        "start": start,
        "command": shlex.join(["relu-nmt-sweep", *settings.command]),
        "now": time.strftime("%d %B %Y, %H:%M"),
        # Pass functions, so that the template decides where figures stand.
        "trouble": trouble,
        "length_name": length_name,
        "length_figure": length_figure,
        "course_figure": course_figure,
        "memory_figures": memory_figures,
        # Pass constants that its texts and tables name.
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
    return render_page("relu_nmt.applications.sweep", REPORT_NAME, values)

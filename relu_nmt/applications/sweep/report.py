"""The report of a sweep: report.html with tables and plots, results.csv and card.json."""

import itertools
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from relu_nmt.applications.statistics import STATISTICS
from relu_nmt.applications.sweep import steps
from relu_nmt.applications.sweep.results import (
    ALL_SLOTS,
    NOT_CONVERGED,
    SIGNATURES,
    Average,
    Cell,
    Record,
    System,
    compare,
    read_results,
)
from relu_nmt.applications.sweep.settings import SweepSettings
from relu_nmt.applications.sweep.steps import SweepDescription, read_description
from relu_nmt.drawing.pages import LEAST_SEEDS, arms, csv_text, render_page
from relu_nmt.drawing.panels import Curve, Panel, draw_panels
from relu_nmt.errors import reporting
from relu_nmt.evaluation.significance import DEFAULT_SAMPLES, DEFAULT_SEED
from relu_nmt.io.safe_write import json_text, write_text
from relu_nmt.modules.config import SLOTS

REPORT_NAME = "report.html"
CSV_NAME = "results.csv"
CARD_NAME = "card.json"
FIRST_COLUMNS = (
    *("row", "attention", "trained_on", "mixture", "length", "seed", "seeds", "status", "note"),
    *("d_bleu", "d_bleu_seed_interval", "d_bleu_document_interval"),
    *("gain", "gain_seed_interval", "gain_document_interval", "p_value"),
    *("s_bleu", "mismatch_rate", "group_bleu", "chrf"),
    *("updates", "train_loss", "valid_nll", "valid_accuracy"),
)
LAST_COLUMNS = (
    *SIGNATURES,
    *("device", "threads", "relu_nmt", "torch", "python", "started"),
    *("train_command", "evaluate_command"),
)
STATUS_WORDS = {
    steps.DONE: "done",
    NOT_CONVERGED: "not converged",
    steps.DIVERGED: "diverged",
    steps.FAILED: "failed",
    steps.STARTED: "under way",
    steps.PENDING: "not begun",
}
WITHOUT_RESULT = (NOT_CONVERGED, steps.DIVERGED, steps.FAILED)
SIGNIFICANT = 0.05
CONTRAST_COLUMNS = ("accuracy_context", "accuracy_alone", "chance", "contrasts")
MOST_NAMED = 3  # most models with the same error that the report names
MOST_BLEU = 100.0
Rows = dict[System, list[Average | None]]  # the averages of a system, one for each length


def write_report(folder: Path, description: SweepDescription) -> None:
    """Write report.html, results.csv and card.json from the results in a sweep's folder."""
    cells, averages = read_results(folder, description)
    rows: list[Record] = []
    measured = []
    for cell in cells:
        rows.append({"row": "cell", **cell.record})
    for average in averages:
        rows.append({"row": "mean", **average.record})
        measured.append({**average.record, "status": trouble(average) or STATUS_WORDS[steps.DONE]})
    # Put known columns first and last, and all others between them. Write numbers in full.
    columns = dict.fromkeys(itertools.chain.from_iterable([FIRST_COLUMNS, *rows]))
    for name in LAST_COLUMNS:
        columns.pop(name, None)
    card = {
        "settings": asdict(description.settings),
        "environment": description.environment,
        "measured": measured,
        "published": description.published,
    }
    with reporting(f"{folder / REPORT_NAME}: cannot be written"):
        write_text(folder / CSV_NAME, csv_text([*columns, *LAST_COLUMNS], rows))
        write_text(folder / CARD_NAME, json_text(card))
        write_text(folder / REPORT_NAME, page(description, cells, averages))


def page(description: SweepDescription, cells: Sequence[Cell], averages: Sequence[Average]) -> str:
    """Return the HTML page."""
    rows = rows_of(averages)
    columns: set[str] = set()
    for average in averages:
        columns |= average.record.keys()
    values: dict[str, Any] = {
        "description": description,
        "cells": cells,
        "averages": averages,
        "rows": rows,
        "labels": labels_of(rows),
        "lengths": sorted({average.length for average in averages}),
        "columns": columns,
        "command": shlex.join(["relu-nmt-sweep", *description.settings.command]),
        "now": time.strftime("%d %B %Y, %H:%M"),
        "SLOTS": SLOTS,
        "ALL_SLOTS": ALL_SLOTS,
        "STATISTICS": STATISTICS,
        "SAMPLES": DEFAULT_SAMPLES,
        "SEED": DEFAULT_SEED,
    }
    # The template calls the functions of this file.
    return render_page("relu_nmt.applications.sweep", REPORT_NAME, {**globals(), **values})


def start_of(settings: SweepSettings) -> str:
    """Return in words the models that the sweep starts from, and their budget. "" for none."""
    if settings.start_from is None:
        return ""
    earlier = read_description(Path(settings.start_from))
    budget = "unknown" if earlier is None else earlier.settings.time_in_words
    return f"the sentence models of {settings.start_from}, {budget} per model"


# ------------------------------------------------------------------- the tables


def rows_of(averages: Sequence[Average]) -> Rows:
    """Return the rows of the tables by system, with a column for each length."""
    lengths = sorted({average.length for average in averages})
    rows: Rows = {}
    for average in averages:
        row = rows.setdefault(average.system, [None] * len(lengths))
        row[lengths.index(average.length)] = average
    return rows


def labels_of(rows: Rows) -> dict[System, str]:
    """Return the names of the systems, with their mixtures if these differ."""
    has_several = len({system.mixture for system in rows}) > 1
    labels = {}
    for system in rows:
        labels[system] = system.attention
        if has_several and system.mixture:
            labels[system] += f", mixture {','.join(map(str, system.mixture))}"
    return labels


def statuses(cells: Sequence[Cell]) -> dict[str, int]:
    """Return the number of evaluations by status, in words."""
    counts = Counter(cell.status for cell in cells)
    return {word: counts[status] for status, word in STATUS_WORDS.items() if counts[status]}


def trouble(average: Average) -> str:
    """Return in words the status of the seeds without a result. "" if all seeds have one."""
    words = []
    for word, count in statuses(average.cells).items():
        if word != STATUS_WORDS[steps.DONE]:
            if count < len(average.cells):
                word = f"{count} of {len(average.cells)} {word}"
            words.append(word)
    return ", ".join(words)


def distinct(cells: Sequence[Cell], column: str) -> str:
    """Return the different texts in a column of the models."""
    values = dict.fromkeys(cell.record.get(column) for cell in cells)
    return "; ".join(map(str, filter(None, values)))


def best_at(averages: Sequence[Average], length: int) -> Average | None:
    """Return the average with the highest d-BLEU, if its gain over all others is significant."""
    scored = [a for a in averages if a.length == length and "d_bleu" in a.record]
    if len(scored) < 2:
        return None
    best, *worse = sorted(scored, key=lambda a: a.record["d_bleu"], reverse=True)
    for other in worse:
        gain, seeds = compare(best, other)
        if len(seeds) < LEAST_SEEDS or gain["p_value"] >= SIGNIFICANT:
            return None
        # Refuse a gain that its spread over seeds could explain.
        if gain["gain"] <= gain["gain_seed_interval"]:
            return None
    return best


def went_wrong(cells: Sequence[Cell]) -> list[tuple[str, Cell]]:
    """Return for each error the models, or models at a length, that had it, and an example."""
    errors: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        if cell.status in WITHOUT_RESULT:
            note = cell.record["note"]
            trained = not note or "evaluate_command" in cell.record
            name = f"{cell.model} at {cell.length}" if trained else str(cell.model)
            errors.setdefault((cell.status, note), {}).setdefault(name, cell)
    problems = []
    for cells_by_name in errors.values():
        first, *_ = cells_by_name.values()
        names = list(cells_by_name)
        if len(names) > MOST_NAMED:
            names[MOST_NAMED:] = [f"{len(names) - MOST_NAMED:,} more"]
        problems.append(("; ".join(names), first))
    return problems


def commands_of(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Return the commands by model, each once."""
    commands_by_model: dict[str, list[str]] = {}
    for cell in cells:
        for name in ("train_command", "evaluate_command"):
            if name in cell.record:
                commands = commands_by_model.setdefault(str(cell.model), [])
                if cell.record[name] not in commands:
                    commands.append(cell.record[name])
    return commands_by_model


def buckets(averages: Sequence[Average], counted: str) -> dict[str, float]:
    """Return the number of segments by bucket, from columns such as ``documents[1-19]``."""
    segments = {}
    for average in averages:
        for column, value in average.record.items():
            if column.startswith(counted):
                segments[column[len(counted) : -1]] = value

    def order(entry: tuple[str, float]) -> tuple[float, bool]:
        """Sort by the lowest value of a bucket. ``>19`` comes behind ``10-19`` and ``19``."""
        bucket, _ = entry
        return float(bucket.strip(">").split("-")[0]), bucket[0] == ">"

    return dict(sorted(segments.items(), key=order))


def contrasts_of(averages: Sequence[Average]) -> dict[System, dict[str, Record]]:
    """Return the columns of contrasts, by system and by category."""
    contrasts: dict[System, dict[str, Record]] = {}
    for average in averages:
        for column, value in average.record.items():
            name, _, category = column.rstrip("]").partition("[")
            if name in CONTRAST_COLUMNS:
                contrasts.setdefault(average.system, {}).setdefault(category, {})[name] = value
    return contrasts


def realized_lengths(cells: Sequence[Cell], test: str) -> Iterator[tuple[int, str, str, Record]]:
    """Yield a length limit, a split, the prefix of its columns, and a record that has them."""
    lengths: set[int] = set()
    for cell in cells:
        lengths |= {cell.length, *cell.model.lengths}
    for length in sorted(lengths):
        mixture = f"train[{length}]"
        for prefix, split in ((mixture, "training"), ("train", "training"), ("test", test)):
            for cell in cells:
                # Look for a mixture's columns in all records, for others only at their length.
                is_here = cell.length == length or prefix == mixture
                if is_here and f"{prefix}_mean_tokens" in cell.record:
                    yield length, split, prefix, cell.record
                    break


def memories_of(averages: Sequence[Average]) -> dict[str, list[Record]]:
    """Return the records with statistics of memories at the first length, by network and size."""
    first = min((average.length for average in averages), default=0)
    memories: dict[str, list[Record]] = {}
    for average in sorted(averages, key=lambda average: average.record.get("memory_size", 0)):
        if "memory_size" in average.record and average.length == first:
            memories.setdefault(average.record["feed_forward"], []).append(average.record)
    return memories


def published_rows(
    table: Mapping[str, Any], rows: Rows
) -> list[tuple[str, list[tuple[Average | None, str, Any]]]]:
    """Return names of systems, each with (measured, title, published value) by column."""
    # Compare the first system of each attention.
    measured_rows: dict[str, list[Average | None]] = {}
    for system, averages in rows.items():
        measured_rows.setdefault(system.attention, averages)
    table_rows = []
    for name in dict.fromkeys([*table["rows"], *measured_rows]):
        row = []
        values = table["rows"].get(name, [None] * len(table["columns"]))
        for column, value in zip(table["columns"], values, strict=True):
            title, _, length = column.partition("@")
            measured = None
            for average in measured_rows.get(name, ()):
                if average is not None and length in ("", str(average.length)):
                    measured = average
                    break
            row.append((measured, title, value))
        table_rows.append((name, row))
    return table_rows


# ------------------------------------------------------------------- the plots


def length_name(length: int) -> str:
    """Return the title of a document length."""
    return "sentences" if length == 1 else f"{length:,}"


def length_figure(
    rows: Rows, lengths: Sequence[int], *columns: tuple[str, str, float], from_zero: bool = True
) -> str:
    """Return plots of columns over document lengths. A column has a title and a divisor."""
    names = list(map(length_name, lengths))
    panels = []
    for column, title, scale in columns:
        lines = lines_over_lengths(rows, column, scale)
        panels.append(Panel(title, "document length, tokens", lines, names, from_zero=from_zero))
    return draw_panels(panels)


def lines_over_lengths(rows: Rows, column: str, scale: float) -> list[Curve]:
    """Return a line for each system, with its values in the column."""
    lines = []
    labels = labels_of(rows)
    for style, (system, row) in enumerate(rows.items()):
        line = Curve(labels[system], style, {})
        for x, average in enumerate(row):
            if average is None or column not in average.record:
                continue
            mean = average.record[column]
            line.points[x] = mean / scale
            # Draw an interval where it is known, but few seeds one by one.
            values = average.values(column)
            kind = "document" if len(values) == 1 else "seed"
            interval = average.record.get(f"{column}_{kind}_interval")
            if 1 < len(values) < LEAST_SEEDS:
                line.dots += [(x, value / scale) for value in values]
                interval = None
            error = (0.0, 0.0) if interval is None else arms(mean, interval, MOST_BLEU)
            line.errors.append(error)
        lines.append(line)
    return lines

"""The files of a sweep's report: results.csv, card.json, and a self-contained report.html."""

import dataclasses
import json
import shlex
import time
from collections import Counter
from pathlib import Path
from typing import Any

from relu_nmt.applications.sweep.figures import (
    course_figure,
    length_figure,
    length_name,
    memory_figures,
)
from relu_nmt.applications.sweep.plan import SweepDescription, read_description
from relu_nmt.applications.sweep.report_data import BAD, WORDS, Average, ReportData, read_report
from relu_nmt.applications.sweep.results import ALL_SLOTS, SCORES, SLOTS
from relu_nmt.applications.sweep.steps import DONE
from relu_nmt.attention.statistics import STATISTICS
from relu_nmt.errors import DataError
from relu_nmt.evaluation.significance import DEFAULT_SAMPLES, DEFAULT_SEED
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


def trouble(average: Average) -> str:
    """Return in words the status of the seeds without a result; empty if all have one."""
    counts, total = Counter(cell.status for cell in average.cells), len(average.cells)
    bad = {word: counts[status] for status, word in WORDS.items() if status != DONE}
    parts = [word if n == total else f"{n} of {total} {word}" for word, n in bad.items() if n]
    return ", ".join(parts)


def write_report(folder: Path, description: SweepDescription) -> ReportData:
    """Write report.html, results.csv and card.json; return their data.

    Raises:
        DataError: a file of the folder is damaged, or cannot be written.
    """
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
    # Give the template its data, functions and constants.
    values = {
        "data": data,
        "settings": data.description.settings,
        "start": _start_in_words(data.description.settings.sweep.start_from),
        "command": shlex.join(["relu-nmt-sweep", *data.description.settings.command]),
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


def _start_in_words(folder: str | None) -> str:
    """Return the models from which the sweep starts, and their training budget, in words."""
    if folder is None:
        return ""
    earlier = read_description(Path(folder))
    budget = "unknown" if earlier is None else earlier.settings.sweep.time
    return f"the sentence models of {folder}, {budget} per model"

"""The page of an analysis: answers first, then folded sections of tables and figures."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from relu_nmt.applications.statistics import LEAST_KEYS, NUM_FREQUENT, STATISTICS
from relu_nmt.applications.weight_statistics import DEFINITIONS
from relu_nmt.drawing.pages import UNKNOWN, number, render_page
from relu_nmt.jobs.analyze import plots
from relu_nmt.jobs.analyze.analyzed_model import AnalyzedModel
from relu_nmt.jobs.analyze.answers import (
    Answer,
    does_context_count,
    how_many_zeros,
    place_of,
    where_heads_look,
    which_heads_could_go,
    which_translates_better,
)
from relu_nmt.jobs.analyze.curves import TELEMETRY, TRAIN, Curves
from relu_nmt.modules.config import SLOTS

SHOWN_PERCENTS = (0.5, 1.0, 1.5, 5.0, 10.0, 50.0)


def page_text(
    models: Sequence[AnalyzedModel],
    examples: Sequence[Mapping[str, Any]],
    courses: Mapping[str, Curves],
    facts: Mapping[str, str],
    csv_names: Sequence[str],
) -> str:
    """Return the page, with ``facts`` of the inputs, the examples, and links to the CSV files."""
    series = plots.series_of({model.name: model.records for model in models})
    measured: set[str] = set()
    memories = {}
    for model in models:
        for record in model.records:
            measured |= record.keys()
        if model.memories is not None:
            memories[model.name] = model.memories
    title = f"Training of {', '.join(courses)}"
    if models:
        title = f"Attention of {', '.join(model.name for model in models)}"
    values = {
        "title": title,
        "facts_of_all": [*facts.items(), ("report of", time.strftime("%d %B %Y, %H:%M"))],
        "answers": answers_of(models, courses),
        "models": models,
        "measured": measured,
        "series": series,
        "slot_means": _slot_means(series),
        "branches": _branch_ratios(models),
        "ratios": [record["variance_ratio"] for model in models for record in model.branches],
        "memories": memories,
        "examples": examples,
        "courses": courses,
        "SLOTS": SLOTS,
        "STATISTICS": STATISTICS,
        "PERCENTS": SHOWN_PERCENTS,
        "NUM_FREQUENT": NUM_FREQUENT,
        "LEAST_KEYS": LEAST_KEYS,
        "DEFINITIONS": DEFINITIONS,
        "csv_names": csv_names,
        # The template calls functions, and so decides where figures stand.
        "plots": plots,
        "extent": extent,
        "place_of": place_of,
    }
    return render_page("relu_nmt.jobs.analyze", "analysis.html", values)


def answers_of(models: Sequence[AnalyzedModel], courses: Mapping[str, Curves]) -> list[Answer]:
    """Return the answers to all questions for which there are numbers."""
    losses = {model.name: model.losses for model in models if model.losses is not None}
    alone = {model.name: model.alone for model in models if model.alone is not None}
    removals = {model.name: model.removal for model in models if model.removal is not None}
    bleu = {model.name: model.bleu for model in models if model.bleu is not None}
    answers = []
    if losses:
        bleu_of_training = last_bleu([model.name for model in models], courses)
        unit = models[0].unit
        answers.append(which_translates_better(losses, bleu, bleu_of_training, unit))
    if alone:
        answers.append(does_context_count(losses, alone))
    records = {model.name: model.records for model in models if model.records}
    if records:
        by_series = {line.name: line.records for line in plots.series_of(records)}
        answers.append(where_heads_look(by_series))
        answers.append(how_many_zeros(by_series))
        answers.append(which_heads_could_go(records, losses, removals))
    return answers


def last_bleu(names: Sequence[str], courses: Mapping[str, Curves]) -> dict[str, float]:
    """Return the last BLEU of each training's first validation set, {} if a training has none."""
    values: dict[str, float] = {}
    for name in names:
        for (split, metric), points in courses.get(name, {}).items():
            if metric == "bleu" and split not in (TRAIN, TELEMETRY):
                values.setdefault(name, points[max(points)])
    return values if len(values) == len(names) else {}


def extent(values: Iterable[float | None], decimals: int = 2, scale: float = 1.0) -> str:
    """Return the smallest and the largest of the known values, in words."""
    known = [scale * value for value in values if value is not None]
    if not known:
        return UNKNOWN
    lowest = number(min(known), decimals)
    highest = number(max(known), decimals)
    return lowest if lowest == highest else f"{lowest} to {highest}"


def _branch_ratios(
    models: Sequence[AnalyzedModel],
) -> dict[tuple[str, int, str], dict[str, float | None]]:
    """Return a row for each branch, with the ratio of each checkpoint by its name."""
    rows: dict[tuple[str, int, str], dict[str, float | None]] = {}
    for model in models:
        for record in model.branches:
            branch = (record["side"], record["layer"], record["branch"])
            rows.setdefault(branch, {})[model.name] = record["variance_ratio"]
    return rows


def _slot_means(series: Sequence[plots.Series]) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """Return the means over layers and heads of each slot, a row for each line of the plots."""
    means: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for slot in SLOTS:
        for line in series:
            for record in line.records:
                if record["layer"] == "mean" and record["slot"] == slot:
                    means.setdefault(slot, []).append((line.name, record))
    return means

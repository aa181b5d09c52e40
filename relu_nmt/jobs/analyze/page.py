"""The page of an analysis: answers first, then folded sections of tables and figures."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from relu_nmt.applications.layer_statistics import of_memories
from relu_nmt.applications.statistics import LEAST_KEYS, NUM_FREQUENT, STATISTICS
from relu_nmt.applications.weight_statistics import (
    DEFINITIONS,
    Series,
    by_layer,
    by_rank,
    series_of,
)
from relu_nmt.drawing.pages import UNKNOWN, number, render_page
from relu_nmt.drawing.panels import Panel, curve_lines, draw_panels
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
from relu_nmt.jobs.analyze.curves import GROWTH, TELEMETRY, TRAIN, Curves
from relu_nmt.modules.config import SLOTS

DRAWN_TELEMETRY = (
    *("entropy", "sum", "zero_fraction", "null_fraction"),
    *("query_norm", "key_norm", "output_square"),
)
SHOWN_PERCENTS = (0.5, 1.0, 1.5, 5.0, 10.0, 50.0)


def page_text(
    models: Sequence[AnalyzedModel],
    examples: Sequence[Mapping[str, Any]],
    courses: Mapping[str, Curves],
    facts: Mapping[str, str],
    csv_names: Sequence[str],
) -> str:
    """Return the page, with ``facts`` of the inputs, the examples, and links to the CSV files."""
    series = series_of({model.name: model.records for model in models})
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
        # Functions, so that the template decides where figures stand.
        "extent": extent,
        "place_of": place_of,
        "by_layer": by_layer,
        "by_rank": by_rank,
        "of_memories": of_memories,
        "of_courses": of_courses,
        "course_panels": course_panels,
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
        by_series = {name: of_series for name, _, of_series in series_of(records)}
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


def _slot_means(series: Sequence[Series]) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """Return the means over layers and heads of each slot, a row for each line of the plots."""
    means: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for slot in SLOTS:
        for name, _, records in series:
            for record in records:
                if record["layer"] == "mean" and record["slot"] == slot:
                    means.setdefault(slot, []).append((name, record))
    return means


def of_courses(courses: Mapping[str, Curves], panels: Mapping[tuple[str, str], str]) -> str:
    """Return a plot of the trainings' curves over updates, with ``panels`` by split and metric."""
    drawn = []
    for key, title in panels.items():
        curves = [(name, course.get(key, {})) for name, course in courses.items()]
        drawn.append(Panel(title, "updates", curve_lines(curves), from_zero=key[0] == TELEMETRY))
    return draw_panels(drawn)


def course_panels(courses: Mapping[str, Curves]) -> list[dict[tuple[str, str], str]]:
    """Return the panels of losses and scores, then of the telemetry, without empty ones."""
    # Find the metrics with two values in a training, which make a curve, and the losses' unit.
    drawn: dict[tuple[str, str], None] = {}
    bits = "bits per example"
    for course in courses.values():
        for key, points in course.items():
            if len(points) > 1:
                drawn[key] = None
            # Only translation models log a loss without smoothing. Other models count examples.
            if key == (TRAIN, "nll_loss"):
                bits = "bits per token"
    splits = list(dict.fromkeys(split for split, _ in drawn if split not in (TRAIN, TELEMETRY)))
    # Order: training loss, losses on the other splits, regularizer, scores, gradient.
    losses = {
        (TRAIN, "loss"): f"training loss, {bits}",
        (TRAIN, "nll_loss"): "training NLL, bits per token",
    }
    for split in splits:
        losses[split, "loss"] = f"loss on {split}, {bits}"
    for split in splits:
        losses[split, "nll_loss"] = f"NLL on {split}, bits per token"
    losses[TRAIN, "attention_norm"] = "attention_norm: mean |ln S|"
    losses[TRAIN, "attention_entropy"] = "attention_entropy: excess, nats"
    for split in splits:
        losses[split, "accuracy"] = f"accuracy, %, on {split}"
        losses[split, "bleu"] = f"BLEU on {split}"
    losses[TRAIN, "gnorm"] = "norm of the gradient"
    # Group the telemetry by statistic, then by slot.
    telemetry: dict[tuple[str, str], str] = {}
    for name in DRAWN_TELEMETRY:
        for slot in SLOTS:
            telemetry[TELEMETRY, f"{slot} {name}"] = f"{STATISTICS[name].label}, {slot}"
    telemetry[TELEMETRY, f"decoder {GROWTH}"] = "e of the mean square n^e of outputs, decoder"
    panels = []
    for titles in (losses, telemetry):
        panels.append({key: title for key, title in titles.items() if key in drawn})
    return list(filter(None, panels))

"""Results of an analysis as one self-contained page with plots, and as CSV files."""

import itertools
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relu_nmt.applications.analysis.weights import ALL_KEYS, DEFINITIONS, OWN_SENTENCE
from relu_nmt.attention.statistics import ANALYSED, NUM_FREQUENT, STATISTICS
from relu_nmt.io.page import Line, Panel, csv_text, curve_lines, draw_panels, render_page
from relu_nmt.modules.config import SLOTS
from relu_nmt.training.results import TELEMETRY, TRAIN, Course
from relu_nmt.translator.attention_maps import SLOT_NAMES

TEMPLATE = "analysis.html"
PLACE = ("checkpoint", "slot", "sees", "layer", "head")
MEMORY_STATISTICS = ("tokens", "size", "variance_ratio", "anisotropy", "null_fraction")
SEEN = {ALL_KEYS: "document", OWN_SENTENCE: "own sentence"}
USUAL_NAMES = re.compile(r"checkpoint(s|[_\d].*)|average|best|last|results|train")
"""Names of folders and files that every training has."""
SHOWN_PERCENTS = (0.5, 1.0, 1.5, 5.0, 10.0, 50.0)
FIGURE_4_END = 1.5
LEVEL = 1e-6
"""A line whose shares differ by less is level."""
Series = tuple[str, tuple[int, int | None], Sequence[Mapping[str, Any]]]
"""Name in the legend, index of colour and of dashes, and the records of a line."""


@dataclass(frozen=True)
class AnalyzedModel:
    """Results for one checkpoint.

    ``attention`` names the mechanism of each slot; slots in ``without_weights`` have no weights.
    See :meth:`WeightStatistics.records`, :meth:`LayerStatistics.records` and
    :meth:`LayerStatistics.report` for the others; ``memories`` may be None.
    """

    name: str
    path: str
    attention: Mapping[str, str]
    feed_forward: str
    without_weights: Sequence[str]
    records: Sequence[Mapping[str, Any]]
    branches: Sequence[Mapping[str, Any]]
    memories: Mapping[str, Any] | None

    @property
    def remarks(self) -> list[str]:
        """Notes on statistics that this checkpoint lacks."""
        found = [
            f"{SLOT_NAMES[slot]} ({self.attention[slot]}) has no matrix of weights; it is left out"
            for slot in self.without_weights
        ]
        if self.memories is None:
            found.append(f"its feed-forward networks ({self.feed_forward}) are no memories")
        return found


@dataclass(frozen=True)
class AnalysisReport:
    """All contents of a page; ``facts`` are names and values of the inputs.

    An example has the maps of a sentence or group: its ``number``, the texts ``source`` and
    ``target``, and ``figures``, pairs of caption and image.
    """

    models: Sequence[AnalyzedModel] = ()
    examples: Sequence[Mapping[str, Any]] = ()
    courses: Sequence[Course] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def series(self) -> list[Series]:
        """The lines of the plots: one a checkpoint, or one for each kind of visible keys."""
        # With attention inside sentences, a checkpoint has two kinds of lines.
        found: list[Series] = []
        several = any(r["sees"] == OWN_SENTENCE for model in self.models for r in model.records)
        for index, model in enumerate(self.models):
            seen = sorted({record["sees"] for record in model.records})
            for number, sees in enumerate(seen):
                # Number the lines of a checkpoint only if any checkpoint has two kinds.
                kind = number if several else None
                words = f", {SEEN[sees]}" if OWN_SENTENCE in seen else ""
                records = [record for record in model.records if record["sees"] == sees]
                found.append((f"{model.name}{words}", (index, kind), records))
        return found

    def slot_means(self) -> list[tuple[str, list[tuple[str, Mapping[str, Any]]]]]:
        """Return the name of each line with its means over layers and heads, by slot."""
        every = [(name, record) for name, _, records in self.series for record in records]
        means = [(name, record) for name, record in every if record["layer"] == "mean"]
        slots = [slot for slot in SLOTS if any(record["slot"] == slot for _, record in means)]
        return [(slot, [row for row in means if row[1]["slot"] == slot]) for slot in slots]

    def has(self, statistic: str) -> bool:
        """Return True if a record has the statistic."""
        return any(statistic in record for model in self.models for record in model.records)

    def branches(self) -> dict[tuple[str, int, str], dict[str, float | None]]:
        """Return the ratio of each checkpoint, by side, layer and branch."""
        found: dict[tuple[str, int, str], dict[str, float | None]] = {}
        for model in self.models:
            for record in model.branches:
                place = (record["side"], record["layer"], record["branch"])
                found.setdefault(place, {})[model.name] = record["variance_ratio"]
        return found

    @property
    def memories(self) -> dict[str, Mapping[str, Any]]:
        """The reports on feed-forward networks by checkpoint."""
        return {one.name: one.memories for one in self.models if one.memories is not None}

    def csv_files(self) -> dict[str, str]:
        """Return the text of each file by the last part of its name."""
        # Branches and attention of each checkpoint, a row for each head and mean.
        attention, ranks, memories, branches = [], [], [], []
        for model in self.models:
            branches += [{"checkpoint": model.name, **record} for record in model.branches]
            for record in model.records:
                place = {"checkpoint": model.name} | {name: record[name] for name in PLACE[1:]}
                values = {name: record[name] for name in ANALYSED if name in record}
                attention.append({**place, "rows": record["rows"], **values})
                for percent in record["top_sum"]:
                    rank = {name: record[name][percent] for name in ("top_sum", "share_at_rank")}
                    ranks.append(
                        {**place, "percent": percent, **rank, "beyond": 1 - rank["top_sum"]}
                    )
        # Memories, a row for each layer.
        for name, report in self.memories.items():
            for module, part in report["modules"].items():
                side, layer = module.split(".")
                where = {"checkpoint": name, "side": side, "layer": layer}
                top = {f"top_sum_{p}": share for p, share in part.get("top_sums", {}).items()}
                own = {key: part.get(key) for key in MEMORY_STATISTICS}
                memories.append({**where, **own, **top})
        # Columns and rows of each file; empty ones are left out.
        sums = dict.fromkeys(key for row in memories for key in row if key.startswith("top_sum_"))
        courses = [row for course in self.courses for row in course.rows()]
        every = {
            "attention": ([*PLACE, "rows", *ANALYSED], attention),
            "top_sums": ([*PLACE, "percent", "top_sum", "share_at_rank", "beyond"], ranks),
            "branches": (["checkpoint", "side", "layer", "branch", "variance_ratio"], branches),
            "feed_forward": (["checkpoint", "side", "layer", *MEMORY_STATISTICS, *sums], memories),
            "training": (["training", "split", "metric", "num_updates", "value"], courses),
        }
        return {name: csv_text(*table) for name, table in every.items() if table[1]}

    def page(self, csv_names: Sequence[str]) -> str:
        """Return the page, with links to the CSV files."""
        # Name the page after its models, or after its trainings.
        names = [model.name for model in self.models] or [course.name for course in self.courses]
        values = {
            "title": f"{'Attention' if self.models else 'Training'} of {', '.join(names)}",
            "report": self,
            "facts_of_all": [*self.facts.items(), ("report of", time.strftime("%d %B %Y, %H:%M"))],
            "by_layer": by_layer,
            "by_rank": by_rank,
            "of_memories": of_memories,
            "of_courses": of_courses,
            "course_panels": course_panels,
            "SLOTS": SLOTS,
            "STATISTICS": STATISTICS,
            "PERCENTS": SHOWN_PERCENTS,
            "NUM_FREQUENT": NUM_FREQUENT,
            "DEFINITIONS": DEFINITIONS,
            "csv_names": csv_names,
        }
        return render_page("relu_nmt.applications.analysis", TEMPLATE, values)


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Return short distinct names for paths: of their folders if these differ, or of the files.

    Example:
        >>> distinct_names(["runs/relu/best.safetensors", "runs/softmax/last.safetensors"])
        ['relu', 'softmax']
        >>> distinct_names(["runs/relu/checkpoints/checkpoint_best.safetensors"])
        ['relu']
    """
    # Drop the file, or usual names at the end, if the rest still differs.
    parts = [(*Path(path).absolute().parts[:-1], Path(path).stem) for path in paths]
    number = len(set(parts))
    folders = [own[:-1] for own in parts]
    for shorter in [_without_usual_names(own) for own in parts], folders:
        if number > 1 and len(set(shorter)) == number:
            parts = shorter
            break
    # Take as few parts from the end as make the names distinct.
    if number < 2:
        names = [_without_usual_names(own)[-1] for own in parts]
    else:
        while len({own[-1] for own in parts}) == 1:
            parts = [own[:-1] for own in parts]
        length = next(n for n in itertools.count(1) if len({own[-n:] for own in parts}) == number)
        names = ["/".join(own[-length:]) for own in parts]
    # Number a path that comes again.
    again = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name} {n + 1}" if n else name for name, n in zip(names, again, strict=True)]


def _without_usual_names(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts of a path without ``USUAL_NAMES`` at its end."""
    while len(parts) > 2 and USUAL_NAMES.fullmatch(parts[-1]):
        parts = parts[:-1]
    return parts


# ------------------------------------------------------------------- plots, as the src of images


def by_layer(series: Sequence[Series], statistic: str, title: str, scale: float = 1.0) -> str:
    """Return a plot of a statistic by layer, a panel for each slot: means, and a dot for each head.

    The text is empty if no slot has the statistic in two layers. ``title`` is that of the values,
    and ``scale`` their factor.
    """
    panels = []
    for slot in SLOTS:
        lines: list[Line] = []
        for name, (style, dashes), records in series:
            line = Line(name, style, {}, dashes=dashes)
            for record in records:
                layer = record["layer"]
                if record["slot"] == slot and layer != "mean" and statistic in record:
                    value = scale * record[statistic]
                    if record["head"] == "mean":
                        line.points[layer] = value
                    else:
                        line.dots.append((layer, value))
            lines.append(line)
        # Label every layer.
        names = [str(layer) for layer in sorted({x for line in lines for x in line.points})]
        panels.append(Panel(f"{SLOT_NAMES[slot]}: {title}", "layer", lines, names, from_zero=True))
    return draw_panels(panels, share_y=True)


def by_rank(series: Sequence[Series]) -> str:
    """Return a plot of ``top_sum`` and ``share_at_rank`` for p up to 1.5 %.

    The text is empty if all lines are level: rows are so short that this is always one key.

    Reference: ReLUFormer, Figure 4.
    """
    panels = []
    # Sums above, shares below; a column for each slot.
    titles = {"top_sum": "their sum, %", "share_at_rank": "the smallest, %"}
    for statistic, title in titles.items():
        for slot in SLOTS:
            lines = []
            for name, (style, dashes), records in series:
                for record in records:
                    if record["slot"] == slot and record["layer"] == "mean":
                        shares = record[statistic].items()
                        points = {p: 100 * v for p, v in shares if p <= FIGURE_4_END}
                        lines.append(Line(name, style, points, dashes=dashes))
            x_label = "largest p % of the visible keys"
            panels.append(Panel(f"{SLOT_NAMES[slot]}: {title}", x_label, lines, from_zero=True))
    curves = [line.points.values() for panel in panels for line in panel.lines if line.points]
    is_level = all(max(values) - min(values) < 100 * LEVEL for values in curves)
    return "" if is_level else draw_panels(panels, share_y=True)


def of_memories(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a plot of ``top_sums`` of the feed-forward memories, by side.

    ``reports`` has results of :meth:`LayerStatistics.report`, by the name of the line.
    """
    panels = []
    for side in ("encoder", "decoder"):
        curves = []
        for name, report in reports.items():
            sums = report["sides"][side].get("top_sums", {}).items()
            curves.append((name, {float(p): 100 * share for p, share in sums if share is not None}))
        title, x_label = f"{side}: share of the sum, %", "largest p % of a token's weights"
        panels.append(Panel(title, x_label, curve_lines(curves), log_x=True, from_zero=True))
    return draw_panels(panels, share_y=True)


def of_courses(courses: Sequence[Course], panels: Mapping[tuple[str, str], str]) -> str:
    """Return a plot of curves against the number of updates.

    Each training is a line in every panel for which it has values. ``panels`` has the title of
    each panel by split and metric.
    """
    drawn = []
    for key, title in panels.items():
        curves = [(course.name, course.curves.get(key, {})) for course in courses]
        drawn.append(Panel(title, "updates", curve_lines(curves), from_zero=key[0] == TELEMETRY))
    return draw_panels(drawn)


def course_panels(courses: Sequence[Course]) -> list[dict[tuple[str, str], str]]:
    """Return the panels of losses and scores, and those of the telemetry, without empty ones.

    A metric needs two values in a training to make a curve.
    """
    # Find the metrics with two values in a training, and the unit of the losses.
    curves = [curve for course in courses for curve in course.curves.items()]
    known = list(dict.fromkeys(key for key, points in curves if len(points) > 1))
    # Only translation models have a loss without smoothing; others count examples, not tokens.
    bits = "bits per token" if (TRAIN, "nll_loss") in dict(curves) else "bits per example"
    # Order: training loss, losses on the other splits, regulariser, scores, gradient.
    splits = list(dict.fromkeys(s for s, _ in known if s not in (TRAIN, TELEMETRY)))
    losses = {
        (TRAIN, "loss"): f"training loss, {bits}",
        (TRAIN, "nll_loss"): "training NLL, bits per token",
        **{(split, "loss"): f"loss on {split}, {bits}" for split in splits},
        **{(split, "nll_loss"): f"NLL on {split}, bits per token" for split in splits},
        (TRAIN, "attention_norm"): "attention_norm: mean |ln S|",
        (TRAIN, "attention_entropy"): "attention_entropy: excess, nats",
        **{
            (split, name): f"{title} on {split}"
            for split in splits
            for name, title in (("accuracy", "accuracy, %,"), ("bleu", "BLEU"))
        },
        (TRAIN, "gnorm"): "norm of the gradient",
    }
    # Group the telemetry by statistic, then by slot.
    telemetry = {
        (TELEMETRY, f"{slot} {name}"): f"{STATISTICS[name].label}, {slot}"
        for name in ("entropy", "sum", "zero_fraction", "null_fraction")
        for slot in SLOTS
    }
    found = [{key: each[key] for key in each if key in known} for each in (losses, telemetry)]
    return [each for each in found if each]

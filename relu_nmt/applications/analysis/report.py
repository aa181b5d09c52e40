"""Results of an analysis as one self-contained page, and as CSV files."""

import itertools
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relu_nmt.applications.analysis import plots
from relu_nmt.applications.analysis.weights import ALL_KEYS, DEFINITIONS, OWN_SENTENCE
from relu_nmt.attention.statistics import ANALYSED, NUM_FREQUENT, STATISTICS
from relu_nmt.io.page import csv_text, render_page
from relu_nmt.modules.config import SLOTS
from relu_nmt.training.results import Course
from relu_nmt.translation.attention_maps import SLOT_NAMES

TEMPLATE = "analysis.html"
PLACE = ("checkpoint", "slot", "sees", "layer", "head")
MEMORY_STATISTICS = ("tokens", "size", "variance_ratio", "anisotropy", "null_fraction")
SEEN = {ALL_KEYS: "document", OWN_SENTENCE: "own sentence"}
USUAL_NAMES = re.compile(r"checkpoint(s|[_\d].*)|average|best|last|results|train")
"""Names of folders and files that every training has."""
SHOWN_PERCENTS = (0.5, 1.0, 1.5, 5.0, 10.0, 50.0)


@dataclass(frozen=True)
class AnalyzedModel:
    """Results for one checkpoint.

    Args:
        name: name of the checkpoint on the page.
        path: path of its file.
        attention: name of the mechanism by slot.
        feed_forward: name of the feed-forward networks.
        without_weights: slots whose attention has no weights.
        records: see :meth:`relu_nmt.applications.analysis.weights.WeightStatistics.records`.
        branches: see :meth:`relu_nmt.applications.analysis.memories.BranchStatistics.records`.
        memories: see :meth:`relu_nmt.applications.analysis.memories.MemoryStatistics.report`;
            None without memories.
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
class Example:
    """The attention maps of one sentence or group; figures are pairs of caption and image."""

    number: int
    source: str
    target: str
    figures: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class AnalysisReport:
    """All contents of a page; ``facts`` are names and values of the inputs."""

    models: Sequence[AnalyzedModel] = ()
    examples: Sequence[Example] = ()
    courses: Sequence[Course] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def series(self) -> list[plots.Series]:
        """The lines of the plots: one a checkpoint, or one for each kind of visible keys."""
        # With attention inside sentences, a checkpoint has two kinds of lines.
        found = []
        several = any(r["sees"] == OWN_SENTENCE for model in self.models for r in model.records)
        for index, model in enumerate(self.models):
            seen = sorted({record["sees"] for record in model.records})
            for number, sees in enumerate(seen):
                # Number the lines of a checkpoint only if any checkpoint has two kinds.
                kind = number if several else None
                words = f", {SEEN[sees]}" if OWN_SENTENCE in seen else ""
                records = [record for record in model.records if record["sees"] == sees]
                found.append(plots.Series(f"{model.name}{words}", index, kind, records))
        return found

    def slot_means(self) -> list[tuple[str, list[tuple[str, Mapping[str, Any]]]]]:
        """Return the name of each line with its means over layers and heads, by slot."""
        found = []
        for slot in SLOTS:
            rows = [
                (series.name, record)
                for series in self.series
                for record in series.records
                if record["slot"] == slot and record["layer"] == "mean"
            ]
            if rows:
                found.append((slot, rows))
        return found

    def has(self, statistic: str) -> bool:
        """Return True if a record has the statistic."""
        return any(statistic in record for model in self.models for record in model.records)

    def by_layer(self, statistic: str, title: str, scale: float = 1.0) -> str:
        """Return the result of :func:`relu_nmt.applications.analysis.plots.by_layer`."""
        return plots.by_layer(self.series, statistic, title, scale)

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
            "plots": plots,
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

"""The CSV files of an analysis, with all its numbers in full precision."""

from collections.abc import Mapping, Sequence
from typing import Any

from relu_nmt.applications.statistics import ANALYZED
from relu_nmt.io.page import csv_text
from relu_nmt.jobs.analyze.analyzed_model import AnalyzedModel
from relu_nmt.training.log import Curves, curve_rows

PLACE = ("checkpoint", "slot", "sees", "layer", "head")
MEMORY_STATISTICS = ("tokens", "size", "variance_ratio", "anisotropy", "null_fraction")


def csv_texts(models: Sequence[AnalyzedModel], courses: Mapping[str, Curves]) -> dict[str, str]:
    """Return the text of each CSV file by the last part of its name."""
    # Branches and attention of each checkpoint, a row for each head and mean.
    attention: list[Mapping[str, Any]] = []
    ranks: list[Mapping[str, Any]] = []
    memories: list[Mapping[str, Any]] = []
    branches: list[Mapping[str, Any]] = []
    sums: dict[str, None] = {}  # columns of the memories' sums, in order
    for model in models:
        for record in model.branches:
            branches.append({"checkpoint": model.name, **record})
        for record in model.records:
            record = {"checkpoint": model.name, **record}
            attention.append(record)
            for percent, top in record["top_sum"].items():
                share = record["share_at_rank"][percent]
                rank = {"percent": percent, "top_sum": top, "share_at_rank": share}
                ranks.append({**record, **rank, "beyond": 1 - top})
        # Memories, a row for each layer.
        for module, part in (model.memories or {"modules": {}})["modules"].items():
            side, layer = module.split(".")
            row = {"checkpoint": model.name, "side": side, "layer": layer, **part}
            for percent, top in part.get("top_sums", {}).items():
                row[f"top_sum_{percent}"] = top
                sums[f"top_sum_{percent}"] = None
            memories.append(row)
    training: list[Mapping[str, Any]] = []
    for name, curves in courses.items():
        training += curve_rows(name, curves)
    tables: dict[str, tuple[list[str], Sequence[Mapping[str, Any]]]] = {
        "attention": ([*PLACE, "rows", *ANALYZED], attention),
        "top_sums": ([*PLACE, "percent", "top_sum", "share_at_rank", "beyond"], ranks),
        "branches": (["checkpoint", "side", "layer", "branch", "variance_ratio"], branches),
        "feed_forward": (["checkpoint", "side", "layer", *MEMORY_STATISTICS, *sums], memories),
        "training": (["training", "split", "metric", "num_updates", "value"], training),
    }
    texts = {}
    for name, (columns, rows) in tables.items():
        if rows:
            texts[name] = csv_text(columns, rows)
    return texts

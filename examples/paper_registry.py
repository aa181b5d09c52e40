"""Read the registry of the papers' tables and figures, examples/papers/*.yaml.

Scalars stay as they are written there: numbers are texts. The scripts of the examples put the root
of the repository on the path and import ``examples.paper_registry``.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from ruamel.yaml import YAML, YAMLError

from relu_nmt.errors import DataError
from relu_nmt.evaluation.significance import mean_interval

REGISTRY = Path(__file__).with_name("papers")
SHARED = "shared"
"""The file of the measurements that the pages of several papers show."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a file of the registry, scalars as they are written.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return YAML(typ="base", pure=True).load(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except YAMLError as error:
        raise DataError(f"{path}: {' '.join(str(error).split())}") from error


@cache
def read_paper(name: str) -> dict[str, Any]:
    """Return a paper of the registry, or the part that papers share."""
    return read_yaml(REGISTRY / f"{name}.yaml")


def read_papers() -> dict[str, dict[str, Any]]:
    """Return the papers of the registry by name."""
    names = sorted(path.stem for path in REGISTRY.glob("*.yaml"))
    return {name: read_paper(name) for name in names if name != SHARED}


def read_measurements() -> dict[str, dict[str, Any]]:
    """Return the measured tables of all papers by name, with rows and columns of text."""
    found = dict(read_paper(SHARED)["measurements"])
    for paper in read_papers().values():
        found |= paper["measurements"]
    return {name: with_means(table) for name, table in found.items()}


def with_means(table: dict[str, Any]) -> dict[str, Any]:
    """Return a measured table whose numbers by seed have become rows of means.

    Args:
        table: has ``by_seed``, a list over seeds for each column of a row, or rows of text only.
            ``baselines`` names the row to subtract, for a last column of differences.
    """
    if "by_seed" not in table:
        return table
    numbers = {
        name: [[float(number) for number in cell] for cell in cells]
        for name, cells in table["by_seed"].items()
    }
    rows = {name: [mean_of(cell) for cell in cells] for name, cells in numbers.items()}
    for name, baseline in table.get("baselines", {}).items():
        # Subtract the number of the same seed, over the seeds that both have.
        pairs = zip(numbers[name][0], numbers[baseline][0], strict=False)
        rows[name].append(mean_of([own - other for own, other in pairs], "+"))
    width = len(table["columns"])
    rows = {name: [*row, *[""] * (width - len(row))] for name, row in rows.items()}
    return {**table, "rows": {**rows, **table.get("rows", {})}}


def mean_of(values: Sequence[float], sign: str = "") -> str:
    """Return the mean of numbers, with half the width of its 95 % interval from two on.

    Args:
        values: a number for each seed.
        sign: ``+`` shows the sign of a positive mean.
    """
    interval = mean_interval(values)
    mean = f"{fmean(values):{sign}.1f}"
    return mean if interval is None else f"{mean} ± {interval:.1f}"


def published_rows(entry: str) -> dict[str, list[str]]:
    """Return the rows that a paper prints for an entry, by name. None where it prints none.

    Args:
        entry: id of the entry. Its first word is the name of the paper.
    """
    entries = read_paper(entry.partition("-")[0])["entries"]
    return next(one.get("published", {}) for one in entries if one["id"] == entry)

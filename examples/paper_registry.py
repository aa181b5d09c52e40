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
    tables = dict(read_paper(SHARED)["measurements"])
    for paper in read_papers().values():
        tables |= paper["measurements"]
    return {name: with_means(table) for name, table in tables.items()}


def with_means(table: dict[str, Any]) -> dict[str, Any]:
    """Return a measured table whose numbers by seed have become rows of means.

    Args:
        table: has ``by_seed``, a list over seeds for each column of a row, or rows of text only.
            ``baselines`` names the row to subtract, for a last column of differences.
    """
    if "by_seed" not in table:
        return table
    numbers_of = {}
    rows = {}
    for name, cells in table["by_seed"].items():
        numbers = [list(map(float, cell)) for cell in cells]
        numbers_of[name] = numbers
        rows[name] = list(map(mean_of, numbers))
    for name, baseline in table.get("baselines", {}).items():
        # Subtract the number of the same seed, over the seeds that both have.
        pairs = zip(numbers_of[name][0], numbers_of[baseline][0], strict=False)
        differences = [number - base_number for number, base_number in pairs]
        rows[name].append(mean_of(differences, "+"))
    for row in rows.values():
        row += [""] * (len(table["columns"]) - len(row))
    return {**table, "rows": {**rows, **table.get("rows", {})}}


def mean_of(values: Sequence[float], sign: str = "") -> str:
    """Return the mean of numbers. With two or more, add half the width of its 95 % interval.

    Args:
        values: a number for each seed.
        sign: ``+`` shows the sign of a positive mean.
    """
    interval = mean_interval(values)
    mean = f"{fmean(values):{sign}.1f}"
    return mean if interval is None else f"{mean} ± {interval:.1f}"


def published_rows(entry: str) -> dict[str, list[str]]:
    """Return the rows that a paper prints for an entry, by name. Empty if it prints no rows.

    Args:
        entry: id of the entry. Its first word is the name of the paper.
    """
    entries = read_paper(entry.partition("-")[0])["entries"]
    return next(values.get("published", {}) for values in entries if values["id"] == entry)

"""Read the registry of the papers' tables and figures, examples/papers/*.yaml.

Scalars stay as they are written there: numbers are texts. The scripts of the examples put the root
of the repository on the path and import ``examples.paper_registry``.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from relu_nmt.errors import DataError

REGISTRY = Path(__file__).with_name("papers")
SHARED = "shared"
"""The file of the measurements that the pages of several papers show."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a file of the registry, scalars as they are written.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return yaml.load(path.read_text("utf-8"), yaml.BaseLoader)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
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
    """Return the measured tables of all papers by name."""
    found = dict(read_paper(SHARED)["measurements"])
    for paper in read_papers().values():
        found |= paper["measurements"]
    return found


def published_rows(entry: str) -> dict[str, list[str]]:
    """Return the rows that a paper prints for an entry, by name; none where it prints none.

    Args:
        entry: id of the entry; its first word is the name of the paper.
    """
    entries = read_paper(entry.partition("-")[0])["entries"]
    return next(one.get("published", {}) for one in entries if one["id"] == entry)

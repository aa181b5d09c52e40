"""Print what trainings with ``--log-format json`` came to, one a line: table.py LOG..."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def summary(path: Path) -> dict[str, Any]:
    """Return the last value of every name in a log; messages and telemetry left out."""
    last: dict[str, Any] = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            values = json.loads(line)
            if not values.keys() & {"message", "telemetry"}:
                last |= values
    return last


def row(name: str, values: Mapping[str, Any]) -> str:
    """Return a line of the table; a value that the log lacks is a dash."""
    cells = [f"{name:40s}"]
    for key, width, form in (
        ("num_updates", 8, "d"),
        ("loss", 11, ".3f"),
        ("valid_accuracy", 9, ".2f"),
        ("test_accuracy", 9, ".2f"),
        ("wps", 9, ".0f"),
    ):
        value = values.get(key)
        cells.append(f"{'-' if value is None else format(value, form):>{width}s}")
    return " ".join(cells)


def main(paths: Sequence[str]) -> None:
    """Print the table."""
    heads = ("updates", 8), ("train bits", 11), ("valid %", 9), ("test %", 9), ("images/s", 9)
    print(f"{'attention':40s} " + " ".join(f"{head:>{width}s}" for head, width in heads))
    for path in map(Path, paths):
        print(row(path.parent.name, summary(path)))


if __name__ == "__main__":
    main(sys.argv[1:])

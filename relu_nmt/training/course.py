"""The curves of a training, read from its results.json or its log."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.errors import DataError

TRAIN, TELEMETRY = "train", "telemetry"
GROWTH = "output_growth"
"""The slope of log(mean square of outputs) over log(number of visible keys)."""
NOT_DRAWN = ("epoch", "update", "num_updates")
UPDATES_LINE = re.compile(r"\| train_inner \| epoch \d+: +\d+ / \d+ (.*)")
VALID_LINE = re.compile(r"\| epoch \d+ \| valid on '(.+?)' subset \| (.*)")


@dataclass
class Course:
    """The curves of a training.

    Args:
        name: name of the training.
        curves: values by number of updates, for each pair of split and metric. The split is
            ``train``, ``telemetry`` (means over layers and heads: ``encoder entropy``) or the name
            of a validation set.
    """

    name: str
    curves: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)

    def add(self, split: str, values: Any) -> None:
        """Add metrics of one moment; they replace earlier ones of the same update."""
        updates = values.get("num_updates") if isinstance(values, dict) else None
        if not isinstance(updates, int):
            return
        for metric, value in values.items():
            known = isinstance(value, int | float) and math.isfinite(value)
            if known and metric not in NOT_DRAWN:
                self.curves.setdefault((split, metric), {})[updates] = float(value)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every number with its training, split, metric and update."""
        for (split, metric), values in self.curves.items():
            for updates, value in sorted(values.items()):
                where = {"training": self.name, "split": split, "metric": metric}
                yield {**where, "num_updates": updates, "value": value}


def read_course(path: str | os.PathLike[str], name: str, may_be_empty: bool = False) -> Course:
    """Read a ``results.json``, or a log in the format ``json`` or ``simple``.

    Args:
        path: the file.
        name: name of the training.
        may_be_empty: accept a file without averages.

    Raises:
        DataError: the file cannot be read, or has no averages.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise DataError(f"{path}: cannot read the course of the training: {reason}") from error
    # A results.json is one object; a log is lines.
    course, whole = Course(name), _json(text)
    if isinstance(whole, dict) and isinstance(whole.get("train"), list):
        valid = whole.get("valid")
        splits = {TRAIN: whole["train"], **(valid if isinstance(valid, dict) else {})}
        for split, entries in splits.items():
            for values in entries if isinstance(entries, list) else []:
                course.add(split, values)
    else:
        for line in text.split("\n"):
            _add_line(course, line)
    if not course.curves and not may_be_empty:
        raise DataError(
            f"{path}: no course of a training in it; expected a results.json, or a log of "
            "relu-nmt-train (--log-file) with a line of averages"
        )
    return course


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _add_line(course: Course, line: str) -> None:
    values = _json(line) if line.startswith("{") else None
    if isinstance(values, dict):
        if isinstance(values.get("telemetry"), dict):
            means = _of_slots(values["telemetry"])
            course.add(TELEMETRY, {**means, "num_updates": values.get("num_updates")})
        elif "num_updates" in values:
            course.add(TRAIN, values)
        else:
            # Take a validation line apart: its names begin with the subset's.
            for name in [key for key in values if key.endswith("_num_updates")]:
                subset = name.removesuffix("_num_updates")
                if subset != TRAIN:  # the means of an epoch repeat the other lines
                    own = {k.removeprefix(f"{subset}_"): v for k, v in values.items()}
                    course.add(subset, own)
    elif found := UPDATES_LINE.search(line):
        course.add(TRAIN, _numbers(found[1].split(", "), "="))
    elif found := VALID_LINE.search(line):
        course.add(found[1], _numbers(found[2].split(" | "), " "))


def _numbers(pairs: list[str], between: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for pair in pairs:
        name, _, text = pair.partition(between)
        try:
            values[name] = int(text) if text.isdigit() else float(text)
        except ValueError:
            continue
    return values


def _of_slots(telemetry: Mapping[str, Any]) -> dict[str, float]:
    """Return the means over layers and heads of ``attention/SLOT.LAYER.HEAD/STATISTIC``.

    ``attention/SLOT.LAYER.nRANGE/output_square`` gives GROWTH: about 0 where outputs do not depend
    on the number n of visible keys, 1 where they are sums of n independent terms.

    Reference: ReLUFormer, section 4.1.
    """
    found: dict[str, list[float]] = {}
    squares: dict[str, dict[float, list[float]]] = {}
    for name, value in telemetry.items():
        # Split attention/SLOT.LAYER.HEAD/STATISTIC into its parts.
        kind, _, rest = name.partition("/")
        place, _, statistic = rest.partition("/")
        slot, _, head = place.split(".") if place.count(".") == 2 else ("", "", "")
        if kind != "attention" or value is None:
            continue
        if head.isdigit():
            found.setdefault(f"{slot} {statistic}", []).append(value)
        elif head and statistic == "output_square":
            # Take the middle of a range nLOW-HIGH for its number of keys.
            bounds = [int(bound) for bound in head.removeprefix("n").split("-")]
            of_slot = squares.setdefault(slot, {})
            of_slot.setdefault(sum(bounds) / len(bounds), []).append(value)
    # Average the statistics, and fit the growth of the squares with the keys.
    means = {name: sum(values) / len(values) for name, values in found.items()}
    growths = {f"{slot} {GROWTH}": _slope(values) for slot, values in squares.items()}
    return means | {name: growth for name, growth in growths.items() if growth is not None}


def _slope(values: Mapping[float, list[float]]) -> float | None:
    """Return the slope of log mean(values) over the logarithm of their keys, by least squares."""
    means = {n: sum(own) / len(own) for n, own in values.items()}
    points = [(math.log(n), math.log(mean)) for n, mean in means.items() if mean > 0]
    if len(points) < 2:
        return None
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[0])

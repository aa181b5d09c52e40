"""The course of a training as curves, read from its log or ``results.json``."""

import math
import os
import re
import statistics
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from relu_nmt.config.stored import parse_json
from relu_nmt.errors import DataError

TRAIN, TELEMETRY = "train", "telemetry"
GROWTH = "output_growth"
"""The slope of log(mean square of outputs) over log(number of visible keys)."""
NOT_DRAWN = ("epoch", "update", "num_updates")
UPDATES_LINE = re.compile(r"\| train_inner \| epoch \d+: +\d+ / \d+ (.*)")
SLOT_STATISTIC = re.compile(r"attention/([^./]*)\.[^./]*\.([^./]*)/(.*)")
VALID_LINE = re.compile(r"\| epoch \d+ \| valid on '(.+?)' subset \| (.*)")

Curves = dict[tuple[str, str], dict[int, float]]
"""Values by number of updates, for each pair of split and metric.

The split is ``train``, ``telemetry`` (means over layers and heads: ``encoder entropy``) or the name
of a validation set.
"""


def add_point(curves: Curves, split: str, values: Any) -> None:
    """Add the metrics of one moment to curves. They replace earlier ones of the same update."""
    if not isinstance(values, dict) or not isinstance(values.get("num_updates"), int):
        return
    for metric, value in values.items():
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if is_number and metric not in NOT_DRAWN:
            curves.setdefault((split, metric), {})[values["num_updates"]] = float(value)


def curve_rows(name: str, curves: Curves) -> Iterator[dict[str, Any]]:
    """Yield every number of the training ``name`` with its split, metric and update."""
    for (split, metric), values in curves.items():
        where = {"training": name, "split": split, "metric": metric}
        for updates, value in sorted(values.items()):
            yield {**where, "num_updates": updates, "value": value}


def read_curves(path: str | os.PathLike[str], may_be_empty: bool = False) -> Curves:
    """Read a ``results.json``, or a log in the format ``json`` or ``simple``."""
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise DataError(f"{path}: cannot read the course of the training: {reason}") from error
    # A results.json is one object. A log is lines.
    curves: Curves = {}
    content = _json(text)
    if isinstance(content, dict) and isinstance(content.get("train"), list):
        splits = {TRAIN: content["train"]}
        if isinstance(content.get("valid"), dict):
            splits |= content["valid"]
        for split, entries in splits.items():
            if isinstance(entries, list):
                for values in entries:
                    add_point(curves, split, values)
    else:
        for line in text.split("\n"):
            _add_line(curves, line)
    if not curves and not may_be_empty:
        raise DataError(
            f"{path}: no course of a training in it; expected a results.json, or a log of "
            "relu-nmt-train (--log-file) with a line of averages"
        )
    return curves


def _json(text: str) -> Any:
    with suppress(ValueError):
        return parse_json(text)
    return None


def _add_line(curves: Curves, line: str) -> None:
    values = _json(line)
    if isinstance(values, dict):
        if isinstance(values.get("telemetry"), dict):
            means = _of_slots(values["telemetry"])
            add_point(curves, TELEMETRY, {**means, "num_updates": values.get("num_updates")})
        elif "num_updates" in values:
            add_point(curves, TRAIN, values)
        # Take a validation line apart: its names begin with the name of the subset.
        for name in values:
            subset = name.removesuffix("_num_updates")
            if subset not in (name, TRAIN):  # the means of an epoch repeat the other lines
                subset_values = {k.removeprefix(f"{subset}_"): v for k, v in values.items()}
                add_point(curves, subset, subset_values)
    elif match := UPDATES_LINE.search(line):
        add_point(curves, TRAIN, _numbers(match[1].split(", "), "="))
    elif match := VALID_LINE.search(line):
        add_point(curves, match[1], _numbers(match[2].split(" | "), " "))


def _numbers(pairs: list[str], between: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for pair in pairs:
        name, _, text = pair.partition(between)
        with suppress(ValueError):
            values[name] = int(text) if text.isdigit() else float(text)
    return values


def _of_slots(telemetry: Mapping[str, Any]) -> dict[str, float]:
    """Return the means over layers and heads of ``attention/SLOT.LAYER.HEAD/STATISTIC``.

    ``attention/SLOT.LAYER.nRANGE/output_square`` gives GROWTH: about 0 where outputs do not depend
    on the number n of visible keys, 1 where they are sums of n independent terms.

    Reference: ReLUFormer, section 4.1.
    """
    values_by_name: dict[str, list[float]] = {}
    squares: dict[str, dict[float, list[float]]] = {}
    for name, value in telemetry.items():
        parts = SLOT_STATISTIC.fullmatch(name)
        if parts is None or value is None:
            continue
        slot, head, statistic = parts.groups()
        if head.isdigit():
            values_by_name.setdefault(f"{slot} {statistic}", []).append(value)
        elif head and statistic == "output_square":
            # Take the middle of a range nLOW-HIGH for its number of keys.
            low, _, high = head.removeprefix("n").partition("-")
            middle = (int(low) + int(high or low)) / 2
            squares.setdefault(slot, {}).setdefault(middle, []).append(value)
    means = {name: sum(values) / len(values) for name, values in values_by_name.items()}
    # Fit the growth of the squares with the keys, a line through the logarithms.
    for slot, of_slot in squares.items():
        log_counts: list[float] = []
        log_squares: list[float] = []
        for count, values in of_slot.items():
            mean = sum(values) / len(values)
            if mean > 0:
                log_counts.append(math.log(count))
                log_squares.append(math.log(mean))
        if len(log_counts) > 1:
            slope = statistics.linear_regression(log_counts, log_squares).slope
            means[f"{slot} {GROWTH}"] = slope
    return means

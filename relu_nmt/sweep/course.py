"""The course of a training: loss and gradient norm by update, and what attention did meanwhile.

The latter is there where the training logged it: ``--log-format json`` behind the ``--``.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from relu_nmt.errors import DataError
from relu_nmt.sweep.steps import Step
from relu_nmt.training.results import TrainingResult

LOGGED = {"train_loss": "loss", "gradient_norm": "gnorm"}
VECTORS = ("query_norm", "key_norm", "output_square")
GROWTH = "output_growth"
COURSES = (*LOGGED, *VECTORS, GROWTH)

Course = dict[str, dict[int, float]]
"""Values by number of updates, by name; without those that are not finite."""


def read_course(step: Step) -> Course:
    """Return the course of a training; of one without results yet, nothing.

    Returns:
        ``train_loss`` in bits and ``gradient_norm``, means of each log interval; from telemetry,
        means over all modules and heads: ``query_norm`` and ``key_norm``, the lengths of queries
        and keys, ``output_square``, the mean square of outputs; and ``output_growth``, the slope
        of log output_square over log n in the decoder's self-attention, n being the visible keys:
        about 0 where outputs do not depend on the length, 1 where they are sums of independent
        terms.

    Reference: ReLUFormer, section 4.1.
    """
    course: defaultdict[str, dict[int, float]] = defaultdict(dict)

    def add(name: str, updates: int, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            course[name][updates] = value

    try:
        results = TrainingResult.load(step.checkpoints)
    except DataError:
        return {}
    for interval in results.train:
        for name, column in LOGGED.items():
            add(name, interval["num_updates"], interval.get(column))
    for updates, scalars in _telemetry(step):
        of_heads, of_lengths = _by_statistic(scalars)
        for name in VECTORS:
            add(name, updates, _mean(of_heads[name]))
        add(GROWTH, updates, slope(of_lengths))
    return dict(course)


def summary(course: Course) -> dict[str, float]:
    """Return what a table tells of a course.

    Returns:
        ``largest_gradient_norm``, and of telemetry the first and last values:
        ``first_query_norm``, ``last_query_norm``...
    """
    found = {}
    if course.get("gradient_norm"):
        found["largest_gradient_norm"] = max(course["gradient_norm"].values())
    for name in (*VECTORS, GROWTH):
        if course.get(name):
            values = course[name]
            found[f"first_{name}"], found[f"last_{name}"] = values[min(values)], values[max(values)]
    return found


def _telemetry(step: Step) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield updates and scalars of the lines of a log that have them."""
    path = step.path(".log")
    if not path.exists():
        return
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            # A log may be another form, hold what libraries say, and end within a line.
            if line.startswith("{") and '"telemetry"' in line:
                try:
                    values = json.loads(line)
                    yield values["num_updates"], values["telemetry"]
                except (ValueError, KeyError):
                    continue


def _by_statistic(
    scalars: Mapping[str, float | None],
) -> tuple[dict[str, list[float]], dict[float, list[float]]]:
    """Return the values of all heads by statistic, and output_square by number of keys."""
    of_heads: defaultdict[str, list[float]] = defaultdict(list)
    of_lengths: defaultdict[float, list[float]] = defaultdict(list)
    for name, value in scalars.items():
        kind, _, rest = name.partition("/")
        place, _, statistic = rest.partition("/")
        last = place.split(".")[-1]
        if kind != "attention" or value is None:
            continue
        if last.isdigit():
            of_heads[statistic].append(value)
        elif statistic == "output_square":
            bounds = [int(bound) for bound in last.removeprefix("n").split("-")]
            of_lengths[sum(bounds) / len(bounds)].append(value)
    return of_heads, of_lengths


def slope(values: Mapping[float, list[float]]) -> float | None:
    """Return the slope of log mean(values) over the logarithm of their keys, by least squares.

    Example:
        >>> round(slope({1: [3.0], 2: [6.0, 6.0], 4: [12.0]}), 6)
        1.0
    """
    means = {n: _mean(own) for n, own in values.items()}
    points = [(math.log(n), math.log(mean)) for n, mean in means.items() if mean and mean > 0]
    if len(points) < 2:
        return None
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[0])


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None

"""What a sweep tells of the course of each training: loss, gradients, and vectors of attention.

The latter are there where the training logged telemetry: ``--log-format json`` behind the ``--``.
"""

from contextlib import suppress

from relu_nmt.applications.sweep.steps import Step
from relu_nmt.errors import DataError
from relu_nmt.training import course as training_course
from relu_nmt.training.course import GROWTH, TELEMETRY, TRAIN
from relu_nmt.training.results import FILE_NAME

VECTORS = ("query_norm", "key_norm", "output_square")

Course = dict[str, dict[int, float]]
"""Values by number of updates, by name; without those that are not finite."""


def read_course(step: Step) -> Course:
    """Return the course of a training, as far as it can be read.

    Returns:
        ``train_loss`` in bits and ``gradient_norm``, means of each log interval; from telemetry,
        means over the slots: ``query_norm`` and ``key_norm``, the lengths of queries and keys,
        and ``output_square``, the mean square of outputs; and ``output_growth``
        (:data:`relu_nmt.training.course.GROWTH`) of the decoder's self-attention.
    """
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for path in (step.path(".log"), step.checkpoints / FILE_NAME):
        with suppress(DataError):
            curves |= training_course.read_course(path, step.model.name, may_be_empty=True).curves
    found = {
        "train_loss": curves.get((TRAIN, "loss")),
        "gradient_norm": curves.get((TRAIN, "gnorm")),
        GROWTH: curves.get((TELEMETRY, f"decoder {GROWTH}")),
    }
    for name in VECTORS:
        of_slots = [curves[key] for key in curves if key[0] == TELEMETRY and f" {name}" in key[1]]
        found[name] = _mean(of_slots)
    return {name: values for name, values in found.items() if values}


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


def _mean(curves: list[dict[int, float]]) -> dict[int, float]:
    """Return the mean of curves at each update."""
    updates = sorted({number for curve in curves for number in curve})
    known = {number: [c[number] for c in curves if number in c] for number in updates}
    return {number: sum(values) / len(values) for number, values in known.items()}

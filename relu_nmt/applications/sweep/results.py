"""The results of a sweep, read from its folder: records of models at document lengths, and means.

The report shows nothing else. The course of each training is read from its log and results.json.
"""

import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relu_nmt.applications.sweep.plan import model_folder
from relu_nmt.applications.sweep.steps import (
    CONTRASTS,
    DIVERGED,
    DONE,
    FAILED,
    STARTED,
    Step,
    StepState,
    SweepModel,
    shown_command,
)
from relu_nmt.data.split import LENGTHS_FILE
from relu_nmt.errors import DataError, ReluNmtError
from relu_nmt.evaluation.document_scores import DEFAULT_EDGES, length_buckets
from relu_nmt.evaluation.significance import (
    SegmentStatistics,
    mean_interval,
    resampled_scores,
    resampling_interval,
)
from relu_nmt.training.results import FILE_NAME, GROWTH, TELEMETRY, TRAIN, TrainingResult
from relu_nmt.training.results import read_course as read_curves

PENDING, NOT_CONVERGED = "pending", "not converged"
LOWEST_CONVERGED_BLEU = 1.0
"""d-BLEU; a model with less at every length counts as not converged."""
SCORES = ("d_bleu", "s_bleu", "group_bleu", "chrf")
# Names in the file of --results, by column.
RESULTS = {name: name for name in ("mismatch_rate", "groups", "sentences", "tokens", "at_limit")}
RESULTS |= {
    f"decode_{name}": name
    for name in ("tokens_per_second", "seconds", "memory_bytes", "gpu_memory_bytes")
}
SLOTS = ("encoder", "decoder", "cross")
ALL_SLOTS = "attention"
"""Prefix of the columns with means over all attention modules."""
STATISTICS = {
    "entropy": "entropy",
    "exp_entropy": "exp_entropy",
    "max_entropy": "mean_log_n",
    "zero_fraction": "zero_fraction",
    "null_fraction": "null_fraction",
    "row_sum": "sum",
    **{name: name for name in ("query_norm", "key_norm", "output_square")},
}
"""Columns, and their names in :mod:`relu_nmt.attention.statistics`."""
CONTRAST_COLUMNS = ("accuracy_context", "accuracy_alone", "chance", "contrasts")
MEMORY_STATISTICS = ("variance_ratio", "anisotropy", "null_fraction")
LENGTH_FIELDS = (
    *("groups", "sentences", "over_long_sentences", "mean_tokens", "longest_tokens"),
    "mean_sentences",
)
# Numbers whose mean over seeds has no meaning.
NO_MEAN = ("seed", "mixture", "length")
SHARED = ("attention", "trained_on", "mixture", "length")
TEXTS = (*(f"{score}_signature" for score in SCORES), "feed_forward")
VECTORS = ("query_norm", "key_norm", "output_square")

Record = dict[str, Any]
Course = dict[str, dict[int, float]]
"""Finite values of a training by name and number of updates."""


class System(NamedTuple):
    """An attention with the lengths of its training: a row of the tables.

    ``mixture`` holds the lengths of the ``--doc-mixture``; it is empty for a model per length.
    """

    attention: str
    mixture: tuple[int, ...] = ()


@dataclass
class Cell:
    """A model at a document length in tokens."""

    model: SweepModel
    length: int
    record: Record = field(default_factory=dict)  # known numbers and texts by column
    course: Course = field(default_factory=dict)  # course of the training, see :func:`read_course`
    # BLEU statistics of the documents; None before the evaluation.
    statistics: SegmentStatistics | None = None

    @property
    def status(self) -> str:
        """A status of the step, or PENDING or NOT_CONVERGED."""
        return self.record["status"]

    @property
    def system(self) -> System:
        """The system, shared with other lengths and seeds."""
        return System(self.model.attention, self.model.lengths if self.model.is_mixture else ())


def read_cells(folder: Path, models: Mapping[SweepModel, Sequence[int]]) -> list[Cell]:
    """Return a cell for each model and length of its evaluation, done or not."""
    cells = []
    for model, lengths in models.items():
        # Collect the columns that all evaluations of the model share.
        home = model_folder(folder, model)
        train = Step(model, None, home)
        state, course = train.state, read_course(train)
        shared = {
            "attention": model.attention,
            "trained_on": model.trained_on,
            "mixture": int(model.is_mixture),
            "seed": model.seed,
            **_training_record(train, state),
            **_contrast_record(Step(model, CONTRASTS, home)),
            **_summary(course),
        }
        own = [_evaluated(Step(model, length, home), length, state, shared) for length in lengths]
        for cell in own:
            cell.course = course
        # Mark models that fail at every length; a model weak at a single one has converged.
        scored = [cell for cell in own if cell.status == DONE]
        if scored and all(cell.record["d_bleu"] < LOWEST_CONVERGED_BLEU for cell in scored):
            for cell in scored:
                cell.record["status"] = NOT_CONVERGED
                cell.record["note"] = f"d-BLEU below {LOWEST_CONVERGED_BLEU:g}"
        cells += own
    return cells


def _evaluated(step: Step, length: int, train: StepState | None, shared: Record) -> Cell:
    """Return the cell of an evaluation."""
    state = step.state
    cell = Cell(step.model, length, {**shared, "length": length})
    # An unfinished training passes its status on to the evaluation.
    status, note = PENDING, ""
    if train is not None and train.status != DONE:
        status, note = train.status, train.note
    elif train is not None:
        status, note = (STARTED, "") if state is None else (state.status, state.note)
    if state is not None:
        cell.record["evaluate_command"] = _shown(state)
    # Count unreadable results as a failure of this evaluation alone.
    if status == DONE:
        try:
            _add_scores(cell, step)
        except (ReluNmtError, OSError, ValueError, KeyError, TypeError) as error:
            status, note = FAILED, f"the results cannot be read: {error}"
    cell.record |= {"status": status, "note": note}
    return cell


def _add_scores(cell: Cell, step: Step) -> None:
    # Copy scores and speeds from the results of relu-nmt-generate.
    record = cell.record
    results = json.loads(step.path(".results.json").read_text("utf-8"))
    # Refuse results without the score that every table needs.
    if not results["d_bleu"]:
        raise ValueError("no d-BLEU; are there references?")
    for name in SCORES:
        if results.get(name):
            record[name] = float(results[name]["score"])
            record[f"{name}_signature"] = results[name]["signature"]
    for column, name in RESULTS.items():
        if results.get(name) is not None:
            record[column] = results[name]
    # Add the parts that only some evaluations have.
    _add_lengths(record, "test", results.get("lengths"))
    _add_weights(record, step.path(".attention.json"))
    _add_memories(record, step.path(".memory.json"))
    # Score the documents again in buckets.
    found = cell.statistics = SegmentStatistics.from_json(results["document_statistics"])
    record["documents"] = len(found.counts)
    # Sort the documents by the length of the reference, the second of BLEU's counts.
    buckets = length_buckets(found.counts[:, 1].tolist(), DEFAULT_EDGES)
    for bucket, members in buckets.items():
        record[f"d_bleu[{bucket}]"] = found.score(members)
        record[f"documents[{bucket}]"] = len(members)
    # Results of earlier versions lack the positions.
    for title, positions in (results.get("s_bleu_by_position") or {}).items():
        for bucket, values in positions.items():
            record[f"sentences[{title} {bucket}]"] = values["sentences"]
            if values["score"] is not None:
                record[f"s_bleu[{title} {bucket}]"] = values["score"]


def _add_weights(record: Record, path: Path) -> None:
    """Add the statistics of the attentions; mechanisms without weights have no file."""
    if not path.exists():
        return
    found = json.loads(path.read_text("utf-8"))
    slots = {**found["slots"], ALL_SLOTS: found.get("overall", {})}
    for (slot, values), (column, name) in itertools.product(slots.items(), STATISTICS.items()):
        if name in values:
            record[f"{slot}_{column}"] = values[name]


def _add_memories(record: Record, path: Path) -> None:
    """Add the statistics of the feed-forward networks, if they were measured."""
    if not path.exists():
        return
    found = json.loads(path.read_text("utf-8"))
    record["feed_forward"] = found["feed_forward"]
    # The size counts only if all modules share it.
    sizes = {module["size"] for module in found["modules"].values()}
    if len(sizes) == 1:
        record["memory_size"] = sizes.pop()
    for name in MEMORY_STATISTICS:
        if found["overall"].get(name) is not None:
            record[f"memory_{name}"] = found["overall"][name]
    for percent, value in found["overall"].get("top_sums", {}).items():
        record[f"memory_top_sum[{percent}]"] = value


def _training_record(step: Step, state: StepState | None) -> Record:
    """Return the known columns of a training; empty before it begins."""
    if state is None:
        return {}
    # Describe the machine and the versions.
    machine = state.environment
    gpus, visible = machine.get("gpus"), machine.get("CUDA_VISIBLE_DEVICES") or "first"
    versions = " ".join(str(machine.get(name, "")) for name in ("relu_nmt", "revision"))
    record = {
        **_results_of(step.checkpoints),
        "train_memory_bytes": state.peak_memory or None,
        "started": state.started,
        "train_command": _shown(state),
        "device": f"{gpus[0]} ({visible})" if gpus else machine.get("cpu"),
        "threads": machine.get("OMP_NUM_THREADS"),
        "relu_nmt": versions.strip(),
        "torch": machine.get("torch"),
        "python": machine.get("python"),
    }
    # Leave unknown columns out, so that they stay empty in results.csv.
    record = {name: value for name, value in record.items() if value is not None}
    # Add the lengths of the training documents, if the file is whole.
    with suppress(OSError, ValueError, KeyError, TypeError):
        lengths = json.loads((step.checkpoints / LENGTHS_FILE).read_text("utf-8"))
        for part in lengths["splits"].get("train", []):
            prefix = f"train[{part['max_doc_tokens']}]" if step.model.is_mixture else "train"
            _add_lengths(record, prefix, part)
    return record


def _contrast_record(step: Step) -> Record:
    """Return accuracies in percent by category, with the sentences before and without them."""
    state, record = step.state, Record()
    if state is None or state.status != DONE:
        return record
    for one in json.loads(step.path(".results.json").read_text("utf-8")):
        # Name the columns by category: with context or alone, chance, and number of contrasts.
        if one.get("name") == "accuracy":
            with_context, alone, chance, counted = (
                f"{column}[{one['category']}]" for column in CONTRAST_COLUMNS
            )
            record[alone if one["context"] == "0" else with_context] = one["score"]
            record |= {chance: one["chance"], counted: one["contrasts"]}
    return record


def _results_of(checkpoints: Path) -> Record:
    # Return no columns before the first results.
    try:
        results = TrainingResult.load(checkpoints)
    except DataError:
        return {}
    # Take the values of the last log interval and the last validation.
    intervals = results.train or results.epochs
    validations = next(iter(results.valid.values()), [])
    return {
        "updates": results.num_updates,
        "train_loss": intervals[-1].get("loss") if intervals else None,
        "valid_nll": validations[-1].get("nll_loss") if validations else None,
        "valid_accuracy": validations[-1].get("accuracy") if validations else None,
        "train_tokens_per_second": results.tokens_per_second,
        "train_updates_per_second": results.updates_per_second,
        "train_seconds": results.seconds,
        "train_gpu_memory_bytes": results.memory.get("gpu_bytes"),
    }


def _shown(state: StepState) -> str:
    return " && ".join(shlex.join(shown_command(command)) for command in state.commands)


def _add_lengths(record: Record, prefix: str, lengths: Mapping[str, Any] | None) -> None:
    """Add the realised lengths of a split, in the form of ``describe_lengths``."""
    if not lengths:
        return
    for name in LENGTH_FIELDS:
        if name in lengths:
            record[f"{prefix}_{name}"] = lengths[name]
    for quantile, value in lengths.get("quantiles_tokens", {}).items():
        record[f"{prefix}_{quantile}_quantile_tokens"] = value


# ------------------------------------------------------------------- means over seeds


@dataclass
class Average:
    """A system at a document length in tokens, with a cell for each seed.

    Args:
        record: means by column, intervals, gain; see :func:`average_cells`.
        resampled: d-BLEU of each resample of the documents, by converged seed.
        gains: gain in d-BLEU over the baseline, for each seed that converged with both.
    """

    system: System
    length: int
    cells: list[Cell]
    record: Record = field(default_factory=dict)
    resampled: dict[int, np.ndarray] = field(default_factory=dict)
    gains: list[float] = field(default_factory=list)

    def values(self, column: str) -> list[float]:
        """Return the values of the seeds that converged."""
        records = (cell.record for cell in self.cells if cell.status == DONE)
        return [record[column] for record in records if column in record]


def average_of(system: System, length: int, cells: list[Cell]) -> Average:
    """Return the means over the seeds whose training converged, and the numbers of the others."""
    converged = [cell for cell in cells if cell.status == DONE]
    average = Average(system, length, cells)
    record = average.record
    # Count the seeds by status.
    record |= {name: cells[0].record[name] for name in SHARED}
    record["seeds"] = ",".join(str(cell.model.seed) for cell in converged)
    for status in (DONE, NOT_CONVERGED, DIVERGED, FAILED, PENDING, STARTED):
        number = sum(cell.status == status for cell in cells)
        if number:
            record[f"seeds_{status.replace(' ', '_')}"] = number
    if not converged:
        return average
    # Average the numbers that all converged seeds have.
    for name, value in converged[0].record.items():
        values = [cell.record.get(name) for cell in converged]
        numbers = [v for v in values if isinstance(v, int | float)]
        if name in TEXTS and len(set(values)) == 1:
            record[name] = value
        elif name not in NO_MEAN and len(numbers) == len(values):
            record[name] = sum(numbers) / len(numbers)
    # Add the interval over seeds, if there are two or more.
    interval = mean_interval([cell.record["d_bleu"] for cell in converged])
    if interval is not None:
        record["d_bleu_seed_interval"] = interval
    # Resample the documents of all seeds together, if they evaluated the same ones.
    found = [cell.statistics for cell in converged if cell.statistics is not None]
    if len(found) == len(converged) and len({len(one.counts) for one in found}) == 1:
        scores = resampled_scores(found)
        seeds = (cell.model.seed for cell in converged)
        average.resampled = dict(zip(seeds, scores, strict=True))
        record["d_bleu_document_interval"] = resampling_interval(scores.mean(0))
    return average


# ------------------------------------------------------------------- the course of a training


def read_course(step: Step) -> Course:
    """Return the course of a training, read from its log and its results.

    Telemetry is there if the training logged it: ``--log-format json`` behind the ``--``.

    Returns:
        ``train_loss`` in bits and ``gradient_norm``, means of each log interval; from telemetry,
        means over the slots: ``query_norm`` and ``key_norm``, the lengths of queries and keys,
        and ``output_square``, the mean square of outputs; and ``output_growth``
        (:data:`relu_nmt.training.results.GROWTH`) of the decoder's self-attention.
    """
    # Read the log first: the results replace its values, but have no telemetry.
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for path in (step.path(".log"), step.checkpoints / FILE_NAME):
        with suppress(DataError):
            curves |= read_curves(path, step.model.name, may_be_empty=True).curves
    found = {
        "train_loss": curves.get((TRAIN, "loss")),
        "gradient_norm": curves.get((TRAIN, "gnorm")),
        GROWTH: curves.get((TELEMETRY, f"decoder {GROWTH}")),
    }
    # Average the telemetry over the slots.
    for name in VECTORS:
        of_slots = [curves[key] for key in curves if key[0] == TELEMETRY and f" {name}" in key[1]]
        found[name] = _mean(of_slots)
    return {name: values for name, values in found.items() if values}


def _summary(course: Course) -> dict[str, float]:
    """Return ``largest_gradient_norm``, and ``first_`` and ``last_`` values of telemetry."""
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

"""All numbers of a sweep as records, the only source of reports.

There is one for each model and length, and one for their means over seeds, with confidence
intervals and gains against the first attention.
"""

import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relu_nmt.data.groups import LENGTHS_FILE
from relu_nmt.errors import DataError, ReluNmtError
from relu_nmt.evaluation.buckets import DEFAULT_EDGES, length_buckets
from relu_nmt.evaluation.significance import (
    SegmentStatistics,
    mean_interval,
    p_value,
    resampled_scores,
    resampling_interval,
)
from relu_nmt.sweep.course import Course, read_course, summary
from relu_nmt.sweep.plan import model_folder, shown_command
from relu_nmt.sweep.steps import (
    CONTRASTS,
    DIVERGED,
    DONE,
    FAILED,
    STARTED,
    Step,
    StepState,
    SweepModel,
)
from relu_nmt.training.results import TrainingResult

PENDING, NOT_CONVERGED = "pending", "not converged"
LOWEST_CONVERGED_BLEU = 1.0
"""A model below it at every length counts as one that does not converge."""
SCORES = ("d_bleu", "s_bleu", "group_bleu", "chrf")
# Columns, and what ``--results`` calls them.
RESULTS = {name: name for name in ("mismatch_rate", "groups", "sentences", "tokens", "at_limit")}
RESULTS |= {
    f"decode_{name}": name
    for name in ("tokens_per_second", "seconds", "memory_bytes", "gpu_memory_bytes")
}
SLOTS = ("encoder", "decoder", "cross")
ALL_SLOTS = "attention"
"""Before the names of columns that are means over all attention modules."""
STATISTICS = {
    "entropy": "entropy",
    "exp_entropy": "exp_entropy",
    "max_entropy": "mean_log_n",
    "zero_fraction": "zero_fraction",
    "null_fraction": "null_fraction",
    "row_sum": "sum",
    **{name: name for name in ("query_norm", "key_norm", "output_square")},
}
CONTRAST_COLUMNS = ("accuracy_context", "accuracy_alone", "chance", "contrasts")
MEMORY_STATISTICS = ("variance_ratio", "anisotropy", "null_fraction")
SPEEDS = {f"{what}_relative_speed": f"{what}_tokens_per_second" for what in ("train", "decode")}
"""Speeds over those of the baseline."""
LENGTH_FIELDS = (
    *("groups", "sentences", "over_long_sentences", "mean_tokens", "longest_tokens"),
    "mean_sentences",
)
# Numbers of which a mean over seeds tells nothing.
NO_MEAN = ("seed", "mixture", "length")
SHARED = ("attention", "trained_on", "mixture", "length")
TEXTS = (*(f"{score}_signature" for score in SCORES), "feed_forward")

Record = dict[str, Any]


class System(NamedTuple):
    """What has a row in the tables: an attention, and how the models learn lengths.

    ``mixture`` holds the lengths of the ``--doc-mixture``; none for a model per length.
    """

    attention: str
    mixture: tuple[int, ...] = ()


@dataclass
class Cell:
    """A model at a document length.

    Args:
        model: the model.
        length: of the evaluation, in tokens.
        record: its numbers and texts by column, without those that are unknown.
        course: of the training, see :func:`relu_nmt.sweep.course.read_course`.
        statistics: of the documents, for d-BLEU; None if not evaluated.
    """

    model: SweepModel
    length: int
    record: Record = field(default_factory=dict)
    course: Course = field(default_factory=dict)
    statistics: SegmentStatistics | None = None

    @property
    def status(self) -> str:
        """done, pending, started, failed, diverged, or not converged."""
        return self.record["status"]

    @property
    def system(self) -> System:
        """What it belongs to, with other lengths and seeds."""
        return System(self.model.attention, self.model.lengths if self.model.is_mixture else ())


def read_cells(folder: Path, models: Mapping[SweepModel, Sequence[int]]) -> list[Cell]:
    """Return a cell for each model and length of its evaluation, done or not.

    Args:
        folder: of the sweep, with what its steps have left.
        models: with their lengths in tokens.
    """
    cells = []
    for model, lengths in models.items():
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
            **summary(course),
        }
        own = [_evaluated(Step(model, length, home), length, state, shared) for length in lengths]
        for cell in own:
            cell.course = course
        # A model that translates at one length has learnt, however weak it is at another.
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
    status, note = PENDING, ""
    if train is not None and train.status != DONE:
        status, note = train.status, train.note
    elif train is not None:
        status, note = (STARTED, "") if state is None else (state.status, state.note)
    if state is not None:
        cell.record["evaluate_command"] = _shown(state)
    if status == DONE:
        try:
            _add_scores(cell, step)
        except (ReluNmtError, OSError, ValueError, KeyError, TypeError) as error:
            status, note = FAILED, f"the results cannot be read: {error}"
    cell.record |= {"status": status, "note": note}
    return cell


def _add_scores(cell: Cell, step: Step) -> None:
    record = cell.record
    results = json.loads(step.path(".results.json").read_text("utf-8"))
    if not results["d_bleu"]:
        raise ValueError("no d-BLEU; are there references?")
    for name in SCORES:
        if results.get(name):
            record[name] = float(results[name]["score"])
            record[f"{name}_signature"] = results[name]["signature"]
    for column, name in RESULTS.items():
        if results.get(name) is not None:
            record[column] = results[name]
    _add_lengths(record, "test", results.get("lengths"))
    _add_weights(record, step.path(".attention.json"))
    _add_memories(record, step.path(".memory.json"))
    found = cell.statistics = SegmentStatistics.from_json(results["document_statistics"])
    record["documents"] = len(found.counts)
    # By the length of the reference document, the second of BLEU's counts.
    buckets = length_buckets(found.counts[:, 1].tolist(), DEFAULT_EDGES)
    for bucket, members in buckets.items():
        record[f"d_bleu[{bucket}]"] = found.score(members)
        record[f"documents[{bucket}]"] = len(members)
    # Of results made before there were positions, nothing.
    for title, positions in (results.get("s_bleu_by_position") or {}).items():
        for bucket, values in positions.items():
            record[f"sentences[{title} {bucket}]"] = values["sentences"]
            if values["score"] is not None:
                record[f"s_bleu[{title} {bucket}]"] = values["score"]


def _add_weights(record: Record, path: Path) -> None:
    """Add the statistics of the attentions; there are none of mechanisms without weights."""
    if not path.exists():
        return
    found = json.loads(path.read_text("utf-8"))
    places = {**found["slots"], ALL_SLOTS: found.get("overall", {})}
    for (place, values), (column, name) in itertools.product(places.items(), STATISTICS.items()):
        if name in values:
            record[f"{place}_{column}"] = values[name]


def _add_memories(record: Record, path: Path) -> None:
    """Add the statistics of the feed-forward networks, if they were measured."""
    if not path.exists():
        return
    found = json.loads(path.read_text("utf-8"))
    record["feed_forward"] = found["feed_forward"]
    sizes = {module["size"] for module in found["modules"].values()}
    if len(sizes) == 1:
        record["memory_size"] = sizes.pop()
    for name in MEMORY_STATISTICS:
        if found["overall"].get(name) is not None:
            record[f"memory_{name}"] = found["overall"][name]
    for percent, value in found["overall"].get("top_sums", {}).items():
        record[f"memory_top_sum[{percent}]"] = value


def _training_record(step: Step, state: StepState | None) -> Record:
    """Return what is known of a training; little of one that has hardly begun."""
    if state is None:
        return {}
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
    record = {name: value for name, value in record.items() if value is not None}
    try:
        lengths = json.loads((step.checkpoints / LENGTHS_FILE).read_text("utf-8"))
        for part in lengths["splits"].get("train", []):
            prefix = f"train[{part['max_doc_tokens']}]" if step.model.is_mixture else "train"
            _add_lengths(record, prefix, part)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return record


def _contrast_record(step: Step) -> Record:
    """Return accuracies in percent by category, given the sentences before and without them."""
    state, record = step.state, Record()
    if state is None or state.status != DONE:
        return record
    for one in json.loads(step.path(".results.json").read_text("utf-8")):
        if one.get("name") == "accuracy":
            with_context, alone, chance, counted = (
                f"{column}[{one['category']}]" for column in CONTRAST_COLUMNS
            )
            record[alone if one["context"] == "0" else with_context] = one["score"]
            record |= {chance: one["chance"], counted: one["contrasts"]}
    return record


def _results_of(checkpoints: Path) -> Record:
    try:
        results = TrainingResult.load(checkpoints)
    except DataError:
        return {}
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
    """Add the realised lengths of a split, as ``describe_lengths`` gives them."""
    if not lengths:
        return
    for name in LENGTH_FIELDS:
        if name in lengths:
            record[f"{prefix}_{name}"] = lengths[name]
    for quantile, value in lengths.get("quantiles_tokens", {}).items():
        record[f"{prefix}_{quantile}_quantile_tokens"] = value


@dataclass
class Average:
    """A system at a document length, over all seeds.

    Args:
        system: the system.
        length: of the evaluation, in tokens.
        cells: one for each seed.
        record: means by column, intervals, gain; see :func:`average_cells`.
        resampled: by seed that converged, d-BLEU of each resample of the documents.
    """

    system: System
    length: int
    cells: list[Cell]
    record: Record = field(default_factory=dict)
    resampled: dict[int, np.ndarray] = field(default_factory=dict)


def average_cells(cells: Sequence[Cell], baseline: str) -> list[Average]:
    """Return an average for each system and length, in the order of the cells.

    A mean is over the seeds whose training converged; the record says how many did not. Its
    columns are those of the cells and

    * ``d_bleu_seed_interval``, ``d_bleu_document_interval``: half widths of 95% intervals;
    * ``gain``, ``gain_seed_interval``, ``gain_document_interval``, ``p_value``: d-BLEU against
      the baseline, over the seeds that converged with both, ``gain_seeds``;
    * ``train_relative_speed``, ``decode_relative_speed``: tokens per second over those of the
      baseline;
    * ``seeds``, and the numbers of seeds by status.

    Args:
        cells: all cells; those of a system and length in the order of their seeds.
        baseline: the attention that the others are compared with.
    """
    groups: dict[tuple[System, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.system, cell.length), []).append(cell)
    averages = {key: _average(*key, own) for key, own in groups.items()}
    for (system, length), average in averages.items():
        other = averages.get((System(baseline, system.mixture), length))
        if other is None:
            continue
        for column, speed in SPEEDS.items():
            if average.record.get(speed) and other.record.get(speed):
                average.record[column] = average.record[speed] / other.record[speed]
        if other is not average:
            _add_gain(average, other)
    return list(averages.values())


def _average(system: System, length: int, cells: list[Cell]) -> Average:
    converged = [cell for cell in cells if cell.status == DONE]
    average = Average(system, length, cells)
    record = average.record
    record |= {name: cells[0].record[name] for name in SHARED}
    record["seeds"] = ",".join(str(cell.model.seed) for cell in converged)
    for status in (DONE, NOT_CONVERGED, DIVERGED, FAILED, PENDING, STARTED):
        number = sum(cell.status == status for cell in cells)
        if number:
            record[f"seeds_{status.replace(' ', '_')}"] = number
    if not converged:
        return average
    for name, value in converged[0].record.items():
        values = [cell.record.get(name) for cell in converged]
        numbers = [v for v in values if isinstance(v, int | float)]
        if name in TEXTS and len(set(values)) == 1:
            record[name] = value
        elif name not in NO_MEAN and len(numbers) == len(values):
            record[name] = sum(numbers) / len(numbers)
    interval = mean_interval([cell.record["d_bleu"] for cell in converged])
    if interval is not None:
        record["d_bleu_seed_interval"] = interval
    found = [cell.statistics for cell in converged if cell.statistics is not None]
    if len(found) == len(converged) and len({len(one.counts) for one in found}) == 1:
        scores = resampled_scores(found)
        seeds = (cell.model.seed for cell in converged)
        average.resampled = dict(zip(seeds, scores, strict=True))
        record["d_bleu_document_interval"] = resampling_interval(scores.mean(0))
    return average


def _add_gain(average: Average, other: Average) -> None:
    """Compare with the baseline, trained in the same way, on the seeds that both have."""
    seeds = sorted(average.resampled.keys() & other.resampled.keys())
    if not seeds:
        return
    sides = (average, other)
    own, base = (np.mean([side.resampled[seed] for seed in seeds], axis=0) for side in sides)
    scores = [
        {cell.model.seed: cell.record["d_bleu"] for cell in side.cells if cell.status == DONE}
        for side in sides
    ]
    gains = [scores[0][seed] - scores[1][seed] for seed in seeds]
    record, gain = average.record, sum(gains) / len(gains)
    record["gain"] = gain
    interval = mean_interval(gains)
    if interval is not None:
        record["gain_seed_interval"] = interval
    record["gain_document_interval"] = resampling_interval(own - base)
    record["p_value"] = p_value(own, base, gain)
    record["gain_seeds"] = ",".join(map(str, seeds))

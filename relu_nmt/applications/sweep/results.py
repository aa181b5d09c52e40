"""The results in the folder of a sweep: records of models at document lengths, and their means."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relu_nmt.applications.sweep.steps import (
    CONTRASTS,
    DIVERGED,
    DONE,
    FAILED,
    PENDING,
    STARTED,
    Step,
    SweepDescription,
    SweepModel,
    models_in,
)
from relu_nmt.config.stored import checked, parse_json
from relu_nmt.data.split import LENGTHS_FILE
from relu_nmt.errors import DataError, ReluNmtError, reporting
from relu_nmt.evaluation.document_scores import DEFAULT_EDGES, length_buckets
from relu_nmt.evaluation.significance import (
    SegmentStatistics,
    mean_interval,
    p_value,
    resampled_scores,
    resampling_interval,
)
from relu_nmt.io.safe_write import plain_file
from relu_nmt.training.config import RESULTS_FILE
from relu_nmt.training.log import GROWTH, TELEMETRY, TRAIN, read_curves
from relu_nmt.training.save_dir import TrainingResult

NOT_CONVERGED = "not converged"
DAMAGE = (OSError, ValueError, AttributeError, KeyError, TypeError)
"""Errors of reading a file that is damaged."""
LOWEST_CONVERGED_BLEU = 1.0
"""d-BLEU. A model with less at every length counts as not converged."""
SCORES = ("d_bleu", "s_bleu", "group_bleu", "chrf")
# Names in the file of --results, by column.
COUNTED = ("mismatch_rate", "groups", "sentences", "tokens", "at_limit")
MEASURED = ("tokens_per_second", "seconds", "memory_bytes", "gpu_memory_bytes")
RESULTS = {**{name: name for name in COUNTED}, **{f"decode_{name}": name for name in MEASURED}}
ALL_SLOTS = "attention"  # prefix of the columns with means over all attention modules
VECTORS = ("query_norm", "key_norm", "output_square")
STATISTICS = {
    "entropy": "entropy",
    "exp_entropy": "exp_entropy",
    "max_entropy": "mean_log_n",
    "zero_fraction": "zero_fraction",
    "null_fraction": "null_fraction",
    "row_sum": "sum",
    **{name: name for name in VECTORS},
}
"""Columns, and their names in :mod:`relu_nmt.attention.records`."""
MEMORY_STATISTICS = ("variance_ratio", "anisotropy", "null_fraction")
LENGTH_FIELDS = (
    *("groups", "sentences", "over_long_sentences", "mean_tokens", "longest_tokens"),
    "mean_sentences",
)
# Columns that seeds share, whose mean has no meaning, and texts.
SHARED = ("attention", "trained_on", "mixture", "length")
TEXTS = (*(f"{score}_signature" for score in SCORES), "feed_forward")
SPEEDS = {f"{kind}_relative_speed": f"{kind}_tokens_per_second" for kind in ("train", "decode")}
"""Columns of speeds by the columns of the quotients with the baseline's speed."""

Record = dict[str, Any]
Course = dict[str, dict[int, float]]  # finite values of a training by name and number of updates


class System(NamedTuple):
    """An attention with the lengths of its training: a row of the tables.

    ``mixture`` holds the lengths of the ``--doc-mixture``. It is empty for a model per length.
    """

    attention: str
    mixture: tuple[int, ...] = ()


@dataclass
class Cell:
    """A model at a document length in tokens."""

    model: SweepModel
    length: int
    record: Record = field(default_factory=dict)  # known numbers and texts by column
    statistics: SegmentStatistics | None = None  # BLEU counts of the documents, once evaluated

    @property
    def status(self) -> str:
        """A status of the step, or NOT_CONVERGED."""
        return self.record["status"]

    @property
    def system(self) -> System:
        """The system, shared with other lengths and seeds."""
        return System(self.model.attention, self.model.lengths if self.model.is_mixture else ())


@dataclass
class Average:
    """A system at a document length in tokens, with a cell for each seed."""

    system: System
    length: int
    cells: list[Cell] = field(default_factory=list)
    record: Record = field(default_factory=dict)  # columns of :func:`average_cells`
    # d-BLEU of each resample of the documents, by converged seed.
    resampled: dict[int, np.ndarray] = field(default_factory=dict)
    gains: list[float] = field(default_factory=list)  # of each seed, see :func:`compare`

    def values(self, column: str) -> list[float]:
        """Return the values of the seeds that converged."""
        records = (cell.record for cell in self.cells if cell.status == DONE)
        return [record[column] for record in records if column in record]


def read_results(folder: Path, description: SweepDescription) -> tuple[list[Cell], list[Average]]:
    """Return the present results in a sweep's folder, and their means over seeds.

    There is a cell for each model and length of its evaluation, done or not, in the order of
    mixtures, attentions, lengths and seeds.
    """
    attentions = description.attentions
    cells: list[Cell] = []
    for model, lengths in models_in(folder, description.settings).items():
        cells += _cells_of(folder, model, lengths)

    def order(cell: Cell) -> tuple[object, ...]:
        name, mixture = cell.system
        return mixture, [*attentions, name].index(name), name, cell.length, cell.model.seed

    cells.sort(key=order)
    return cells, average_cells(cells, attentions[0])


def _cells_of(folder: Path, model: SweepModel, lengths: Sequence[int]) -> list[Cell]:
    # Collect the columns that all evaluations of the model share.
    home = model.folder(folder)
    train = Step(model, None, home)
    training = train.stored()
    shared = {
        "attention": model.attention,
        "trained_on": model.trained_on,
        "mixture": int(model.is_mixture),
        "seed": model.seed,
        **({} if training.status == PENDING else _training_record(training)),
        **_contrast_record(Step(model, CONTRASTS, home)),
        **_summary(read_course(train)),
    }
    cells = [Cell(model, length, {**shared, "length": length}) for length in lengths]
    for cell in cells:
        _add_evaluation(cell, Step(model, cell.length, home), training)
    # Mark models that fail at every length. A model weak at a single one has converged.
    scored = [cell for cell in cells if cell.status == DONE]
    if scored and all(cell.record["d_bleu"] < LOWEST_CONVERGED_BLEU for cell in scored):
        note = f"d-BLEU below {LOWEST_CONVERGED_BLEU:g}"
        for cell in scored:
            cell.record |= {"status": NOT_CONVERGED, "note": note}
    return cells


def _add_evaluation(cell: Cell, step: Step, training: Step) -> None:
    """Add the columns of an evaluation, and its status."""
    # An unfinished training passes its status on to the evaluation.
    stored, status, note = step.stored(), training.status, training.note
    if status == DONE:
        status, note = STARTED if stored.status == PENDING else stored.status, stored.note
    if stored.status != PENDING:
        cell.record["evaluate_command"] = stored.shown
    # Count unreadable results as a failure of this evaluation alone.
    if status == DONE:
        try:
            _add_scores(cell, step)
        except (ReluNmtError, *DAMAGE) as error:
            status, note = FAILED, f"the results cannot be read: {error}"
    cell.record |= {"status": status, "note": note}


def _add_scores(cell: Cell, step: Step) -> None:
    # Copy scores and speeds from the results of relu-nmt-generate.
    record: Record = {}
    results = _read_json(step.path(".results.json"))
    # Refuse results without the score that every table needs.
    if not results["d_bleu"]:
        raise ValueError("no d-BLEU; are there references?")
    for name in SCORES:
        if results.get(name):
            record[name] = float(results[name]["score"])
            record[f"{name}_signature"] = results[name]["signature"]
    record |= _known({column: results.get(name) for column, name in RESULTS.items()})
    record |= _lengths_record("test", results.get("lengths") or {})
    # Add the parts that only some evaluations have: mechanisms without weights have no statistics.
    for ending, read in ((".attention", _weights_record), (".memory", _memories_record)):
        if (path := step.path(f"{ending}.json")).exists():
            record |= read(_read_json(path))
    # Score the documents again, by the length of the reference, the second of BLEU's counts.
    statistics = cell.statistics = SegmentStatistics.from_json(results["document_statistics"])
    record["documents"] = len(statistics.counts)
    buckets = length_buckets(statistics.counts[:, 1].tolist(), DEFAULT_EDGES)
    for bucket, members in buckets.items():
        record[f"d_bleu[{bucket}]"] = statistics.score(members)
        record[f"documents[{bucket}]"] = len(members)
    # Results of earlier versions lack the positions.
    for title, positions in (results.get("s_bleu_by_position") or {}).items():
        for bucket, values in positions.items():
            columns = ("sentences", values["sentences"]), ("s_bleu", values["score"])
            record |= _known({f"{name}[{title} {bucket}]": value for name, value in columns})
    # Take numbers and texts alone, with which the tables compute.
    cell.record |= checked({**{f"{name}?": str for name in TEXTS}, "*": float | None}, record)


def _read_json(path: Path) -> Any:
    return parse_json(plain_file(path).read_bytes())


def _known(record: Record) -> Record:
    """Return the columns with a value: unknown ones stay empty in results.csv."""
    return {name: value for name, value in record.items() if value is not None}


def _weights_record(statistics: Mapping[str, Any]) -> Record:
    """Return the statistics of the attentions."""
    slots = {**statistics["slots"], ALL_SLOTS: statistics.get("overall", {})}
    return {
        f"{slot}_{column}": values[name]
        for slot, values in slots.items()
        for column, name in STATISTICS.items()
        if name in values
    }


def _memories_record(statistics: Mapping[str, Any]) -> Record:
    """Return the statistics of the feed-forward networks."""
    overall = statistics["overall"]
    # The size counts only if all modules share it.
    sizes = {module["size"] for module in statistics["modules"].values()}
    return {
        "feed_forward": statistics["feed_forward"],
        **({"memory_size": sizes.pop()} if len(sizes) == 1 else {}),
        **_known({f"memory_{name}": overall.get(name) for name in MEMORY_STATISTICS}),
        **{f"memory_top_sum[{p}]": value for p, value in overall.get("top_sums", {}).items()},
    }


def _lengths_record(prefix: str, lengths: Mapping[str, Any]) -> Record:
    """Return the realized lengths of a split, in the form of ``describe_lengths``."""
    quantiles = lengths.get("quantiles_tokens", {}).items()
    return {
        **{f"{prefix}_{name}": lengths[name] for name in LENGTH_FIELDS if name in lengths},
        **{f"{prefix}_{quantile}_quantile_tokens": value for quantile, value in quantiles},
    }


def _training_record(step: Step) -> Record:
    """Return the known columns of a training that has begun."""
    # Take the values of the last log interval and the last validation, as far as they are known.
    record: Record = {}
    with suppress(DataError):
        results = TrainingResult.load(step.checkpoints)
        last = (results.train or results.epochs or [{}])[-1]
        valid = (next(iter(results.valid.values()), []) or [{}])[-1]
        record = {
            "updates": results.num_updates,
            "train_loss": last.get("loss"),
            "valid_nll": valid.get("nll_loss"),
            "valid_accuracy": valid.get("accuracy"),
            "train_tokens_per_second": results.tokens_per_second,
            "train_updates_per_second": results.updates_per_second,
            "train_seconds": results.seconds,
            "train_gpu_memory_bytes": results.memory.get("gpu_bytes"),
        }
    # Describe the machine and the versions.
    machine = step.environment
    gpus, visible = machine.get("gpus"), machine.get("CUDA_VISIBLE_DEVICES") or "first"
    versions = " ".join(str(machine.get(name, "")) for name in ("relu_nmt", "revision"))
    record |= {
        "train_memory_bytes": step.peak_memory or None,
        "started": step.started,
        "train_command": step.shown,
        "device": f"{gpus[0]} ({visible})" if gpus else machine.get("cpu"),
        "threads": machine.get("OMP_NUM_THREADS"),
        "relu_nmt": versions.strip(),
        "torch": machine.get("torch"),
        "python": machine.get("python"),
    }
    # Add the lengths of the training documents, if the file is whole.
    with suppress(*DAMAGE):
        lengths = _read_json(step.checkpoints / LENGTHS_FILE)
        for part in lengths["splits"].get("train", []):
            prefix = f"train[{part['max_doc_tokens']}]" if step.model.is_mixture else "train"
            record |= _lengths_record(prefix, part)
    return _known(record)


def _contrast_record(step: Step) -> Record:
    """Return accuracies in percent by category, with the sentences before and without them."""
    record: Record = {}
    if step.stored().status != DONE:
        return record
    path = step.path(".results.json")
    advice = f"delete {step.path('.json')} to score the contrasts again"
    with reporting(f"{path}: damaged; {advice}", caught=DAMAGE):
        for entry in _read_json(path):
            # Name the columns by category: with context or alone, chance, and number of contrasts.
            if entry.get("name") == "accuracy":
                kind = "alone" if entry["context"] == "0" else "context"
                values = {f"accuracy_{kind}": entry["score"]}
                values |= {name: entry[name] for name in ("chance", "contrasts")}
                record |= {f"{name}[{entry['category']}]": value for name, value in values.items()}
    return record


def read_course(step: Step) -> Course:
    """Return the course of a training, read from its log and its results.

    It has ``gradient_norm``, means of each log interval. If the training logged telemetry
    (``--log-format json`` behind the ``--``), it also has means over the slots: the lengths
    ``query_norm`` and ``key_norm`` and the mean square ``output_square``; and ``output_growth``
    (:data:`relu_nmt.training.log.GROWTH`) of the decoder's self-attention.
    """
    # Read the log first: the results replace its values, but have no telemetry.
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for path in (step.path(".log"), step.checkpoints / RESULTS_FILE):
        with suppress(DataError):
            curves |= read_curves(path, may_be_empty=True)
    course = {
        "gradient_norm": curves.get((TRAIN, "gnorm"), {}),
        GROWTH: curves.get((TELEMETRY, f"decoder {GROWTH}"), {}),
    }
    # Average the telemetry over the slots, at each update.
    telemetry = {metric: curve for (split, metric), curve in curves.items() if split == TELEMETRY}
    for name in VECTORS:
        slots = [curve for metric, curve in telemetry.items() if f" {name}" in metric]
        for update in sorted(set().union(*slots)):
            values = [curve[update] for curve in slots if update in curve]
            course.setdefault(name, {})[update] = sum(values) / len(values)
    return {name: curve for name, curve in course.items() if curve}


def _summary(course: Course) -> dict[str, float]:
    """Return ``largest_gradient_norm``, and ``first_`` and ``last_`` values of telemetry."""
    summary = {}
    if norms := course.get("gradient_norm"):
        summary["largest_gradient_norm"] = max(norms.values())
    for name in (*VECTORS, GROWTH):
        if values := course.get(name):
            summary[f"first_{name}"] = values[min(values)]
            summary[f"last_{name}"] = values[max(values)]
    return summary


# ------------------------------------------------------------------- means over seeds


def average_cells(cells: Sequence[Cell], baseline: str) -> list[Average]:
    """Return an average for each system and length, in the order of the cells and their seeds.

    A mean is over the seeds whose training converged. The record counts the other seeds. It has the
    columns of the cells and

    * ``d_bleu_seed_interval``, ``d_bleu_document_interval``: half widths of 95% intervals.
    * ``gain``, ``gain_seed_interval``, ``gain_document_interval``, ``p_value``: gain in d-BLEU
      over the baseline, for the seeds that converged with both, ``gain_seeds``.
    * ``train_relative_speed``, ``decode_relative_speed``: tokens per second over the
      baseline's.
    * ``seeds``, and the numbers of seeds by status.
    """
    # Group the seeds of each system and length.
    averages: dict[tuple[System, int], Average] = {}
    for cell in cells:
        key = cell.system, cell.length
        averages.setdefault(key, Average(*key)).cells.append(cell)
    for average in averages.values():
        _add_means(average)
    # Compare each average with the baseline at the same length.
    for (system, length), average in averages.items():
        other = averages.get((System(baseline, system.mixture), length))
        if other is None:
            continue
        for column, speed in SPEEDS.items():
            if average.record.get(speed) and other.record.get(speed):
                average.record[column] = average.record[speed] / other.record[speed]
        # Leave the baseline without a gain over itself.
        if other is not average:
            gain, average.gains = compare(average, other)
            average.record |= gain
    return list(averages.values())


def _add_means(average: Average) -> None:
    """Set the means over the seeds whose training converged, and count the other seeds."""
    cells, record = average.cells, average.record
    converged = [cell for cell in cells if cell.status == DONE]
    record |= {name: cells[0].record[name] for name in SHARED}
    record["seeds"] = ",".join(str(cell.model.seed) for cell in converged)
    # Count the seeds by status.
    counts = Counter(cell.status for cell in cells)
    statuses = (DONE, NOT_CONVERGED, DIVERGED, FAILED, PENDING, STARTED)
    record |= {f"seeds_{one.replace(' ', '_')}": counts[one] for one in statuses if counts[one]}
    if not converged:
        return
    # Average the numbers that all converged seeds have.
    for name, value in converged[0].record.items():
        values = [cell.record.get(name) for cell in converged]
        numbers = [v for v in values if isinstance(v, int | float)]
        if name in TEXTS and len(set(values)) == 1:
            record[name] = value
        elif name not in ("seed", *SHARED) and len(numbers) == len(values):
            record[name] = sum(numbers) / len(numbers)
    # Add the interval over seeds, if there are two or more.
    record |= _known({"d_bleu_seed_interval": mean_interval(average.values("d_bleu"))})
    # Resample the documents of all seeds together, if they evaluated the same ones.
    statistics = [cell.statistics for cell in converged if cell.statistics is not None]
    if len(statistics) == len(converged) and len({len(one.counts) for one in statistics}) == 1:
        scores = resampled_scores(statistics)
        average.resampled = {c.model.seed: one for c, one in zip(converged, scores, strict=True)}
        record["d_bleu_document_interval"] = resampling_interval(scores.mean(0))


def compare(average: Average, other: Average) -> tuple[Record, list[float]]:
    """Return the columns of a gain in d-BLEU, over the seeds of both averages, and its values.

    Both results are empty without a common seed.
    """
    sides = average, other
    seeds = sorted(average.resampled.keys() & other.resampled.keys())
    if not seeds:
        return {}, []
    # Average the gains of single seeds, and the resampled scores over the seeds.
    scores = [dict(zip(side.resampled, side.values("d_bleu"), strict=True)) for side in sides]
    gains = [scores[0][seed] - scores[1][seed] for seed in seeds]
    gain = sum(gains) / len(gains)
    means = [np.mean([side.resampled[seed] for seed in seeds], axis=0) for side in sides]
    # Add the intervals over seeds and over resamples of the documents.
    record = {
        "gain": gain,
        "gain_seed_interval": mean_interval(gains),
        "gain_document_interval": resampling_interval(means[0] - means[1]),
        "p_value": p_value(means[0], means[1], gain),
        "gain_seeds": ",".join(map(str, seeds)),
    }
    return _known(record), gains

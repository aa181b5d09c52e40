"""The results in the folder of a sweep: records of models at document lengths, and their means."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relu_nmt.applications.sweep import steps
from relu_nmt.applications.sweep.steps import Step, SweepDescription, SweepModel, models_in
from relu_nmt.config.stored import checked
from relu_nmt.data.split import LENGTHS_FILE
from relu_nmt.errors import DataError, ReluNmtError, reporting
from relu_nmt.evaluation import significance
from relu_nmt.evaluation.document_scores import DEFAULT_EDGES, length_buckets
from relu_nmt.evaluation.significance import SegmentStatistics
from relu_nmt.training.save_dir import TrainingResult

NOT_CONVERGED = "not converged"
DAMAGE = (OSError, ValueError, AttributeError, KeyError, TypeError)  # of a damaged file
LOWEST_CONVERGED_BLEU = 1.0  # least d-BLEU at the best length of a converged model
ALL_SLOTS = "attention"  # prefix of the columns with means over all attention modules
# Columns of results.csv in the shape of the files, see :func:`columns_of`.
EVALUATION = {  # evaluate-LENGTH.results.json
    "d_bleu s_bleu group_bleu chrf": {"score": "{}", "signature": "{}_signature"},
    "mismatch_rate groups sentences tokens at_limit": "{}",
    "tokens_per_second seconds memory_bytes gpu_memory_bytes": "decode_{}",
}
POSITIONS = {"*": {"*": {"sentences": "sentences[{} {}]", "score": "s_bleu[{} {}]"}}}
WEIGHTS = {  # a slot in evaluate-LENGTH.attention.json
    "entropy exp_entropy": "{}_{}",
    "mean_log_n": "{}_max_entropy",
    "zero_fraction null_fraction": "{}_{}",
    "sum": "{}_row_sum",
    "query_norm key_norm output_square": "{}_{}",
}
MEMORIES = {  # the means in evaluate-LENGTH.memory.json
    "variance_ratio anisotropy null_fraction": "memory_{}",
    "top_sums": {"*": "memory_top_sum[{1}]"},  # {1} is the percent
}
LENGTHS = {  # a split in document_lengths.json and in evaluate-LENGTH.results.json
    "groups sentences over_long_sentences mean_tokens longest_tokens mean_sentences": "{}_{}",
    "quantiles_tokens": {"*": "{0}_{2}_quantile_tokens"},  # {0} is the split, {2} the quantile
}
# Columns that all seeds share, which get no mean. TEXTS are columns of text.
SHARED = ("attention", "trained_on", "mixture", "length")
SIGNATURES = ("d_bleu_signature", "s_bleu_signature", "group_bleu_signature", "chrf_signature")
TEXTS = (*SIGNATURES, "feed_forward")
# Relative speeds: column of the quotient, and column of the speed divided by the baseline's.
SPEEDS = {
    "train_relative_speed": "train_tokens_per_second",
    "decode_relative_speed": "decode_tokens_per_second",
}

Record = dict[str, Any]


class System(NamedTuple):
    """A row of the tables: an attention, and the lengths of its ``--doc-mixture`` if it has one."""

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
        mixture = self.model.lengths if self.model.is_mixture else ()
        return System(self.model.attention, mixture)


@dataclass
class Average:
    """A system at a document length in tokens, with a cell for each seed."""

    system: System
    length: int
    cells: list[Cell] = field(default_factory=list)
    record: Record = field(default_factory=dict)  # columns of :func:`average_cells`
    # d-BLEU of each resample of the documents, by converged seed.
    resampled: dict[int, np.ndarray] = field(default_factory=dict)
    gains: list[float] = field(default_factory=list)  # by seed, see :func:`compare`

    def values(self, column: str) -> list[float]:
        """Return the values of the seeds that converged."""
        values = []
        for cell in self.cells:
            if cell.status == steps.DONE and column in cell.record:
                values.append(cell.record[column])
        return values


def read_results(folder: Path, description: SweepDescription) -> tuple[list[Cell], list[Average]]:
    """Return cells for all models and lengths in a sweep's folder, done or not, and averages."""
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
    home = model.folder(folder)
    training = Step(model, None, home).stored()
    shared: Record = {
        "attention": model.attention,
        "trained_on": model.trained_on,
        "mixture": int(model.is_mixture),
        "seed": model.seed,
    }
    if training.status != steps.PENDING:
        shared |= _training_record(training)
    shared |= _contrast_record(Step(model, steps.CONTRASTS, home))
    cells = []
    scored = []
    for length in lengths:
        cell = Cell(model, length, {**shared, "length": length})
        _add_evaluation(cell, Step(model, length, home), training)
        cells.append(cell)
        if cell.status == steps.DONE:
            scored.append(cell)
    # Mark models that are weak at every length. A model that is good at one has converged.
    best = max((cell.record["d_bleu"] for cell in scored), default=LOWEST_CONVERGED_BLEU)
    if best < LOWEST_CONVERGED_BLEU:
        for cell in scored:
            cell.record["status"] = NOT_CONVERGED
            cell.record["note"] = f"d-BLEU below {LOWEST_CONVERGED_BLEU:g}"
    return cells


def _add_evaluation(cell: Cell, step: Step, training: Step) -> None:
    stored = step.stored()
    cell.record |= {"status": training.status, "note": training.note}
    if stored.status != steps.PENDING:
        cell.record["evaluate_command"] = stored.shown
    # Until the training is done, the evaluation has the status of the training.
    if training.status == steps.DONE:
        cell.record |= {"status": stored.status, "note": stored.note}
        if stored.status == steps.PENDING:
            cell.record["status"] = steps.STARTED
    # Count unreadable results as a failure of this evaluation alone.
    if cell.status == steps.DONE:
        try:
            _add_scores(cell, step)
        except (ReluNmtError, *DAMAGE) as error:
            cell.record |= {"status": steps.FAILED, "note": f"the results cannot be read: {error}"}


def _add_scores(cell: Cell, step: Step) -> None:
    results = steps.read_json(step.path(".results.json"))
    record = columns_of(results, EVALUATION)
    # Refuse results without the score that every table needs.
    if "d_bleu" not in record:
        raise ValueError("no d-BLEU; are there references?")
    record |= columns_of(results.get("lengths"), LENGTHS, "test")
    # Add statistics, which mechanisms without weights lack.
    path = step.path(".attention.json")
    if path.exists():
        weights = steps.read_json(path)
        record |= columns_of(weights["slots"], {"*": WEIGHTS})
        record |= columns_of(weights.get("overall"), WEIGHTS, ALL_SLOTS)
    path = step.path(".memory.json")
    if path.exists():
        memories = steps.read_json(path)
        record["feed_forward"] = memories["feed_forward"]
        # Report the size only if all modules have the same.
        sizes = {module["size"] for module in memories["modules"].values()}
        if len(sizes) == 1:
            record["memory_size"] = sizes.pop()
        record |= columns_of(memories["overall"], MEMORIES)
    # Score the documents in buckets by the reference's length, the second of BLEU's counts.
    statistics = cell.statistics = SegmentStatistics.from_json(results["document_statistics"])
    record["documents"] = len(statistics.counts)
    buckets = length_buckets(statistics.counts[:, 1].tolist(), DEFAULT_EDGES)
    for bucket, members in buckets.items():
        record[f"d_bleu[{bucket}]"] = statistics.score(members)
        record[f"documents[{bucket}]"] = len(members)
    # Results of earlier versions lack the positions.
    record |= columns_of(results.get("s_bleu_by_position"), POSITIONS)
    # Accept only numbers and texts, since the tables compute with them.
    form = dict.fromkeys((f"{name}?" for name in TEXTS), str) | {"*": float}
    cell.record |= checked(form, record)


def columns_of(content: Any, columns: Any, *names: str) -> Record:
    """Return the known values of a file by column.

    ``columns`` has the shape of the file, with a column in the place of a value. Each key is one or
    more names, or ``*`` for all names. The first of ``names`` and of the names that lead to a value
    fill the ``{}`` of its column.

    Example:
        >>> columns_of({"cross": {"sum": 0.9}}, {"*": {"entropy sum": "{}_{}"}})
        {'cross_sum': 0.9}
    """
    if content is None:
        return {}
    if isinstance(columns, str):
        return {columns.format(*names): content}
    record: Record = {}
    for keys, inner in columns.items():
        for key in content if keys == "*" else keys.split():
            record |= columns_of(content.get(key), inner, *names, key)
    return record


def _known(record: Record) -> Record:
    """Return the columns with a value. Other columns stay empty in results.csv."""
    return {name: value for name, value in record.items() if value is not None}


def _training_record(step: Step) -> Record:
    # Take the known values of the last log interval and the last validation.
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
    machine = step.environment
    device = machine.get("cpu")
    if machine.get("gpus"):
        device = f"{machine['gpus'][0]} ({machine.get('CUDA_VISIBLE_DEVICES') or 'first'})"
    versions = f"{machine.get('relu_nmt', '')} {machine.get('revision', '')}"
    record |= {
        "train_memory_bytes": step.peak_memory or None,
        "started": step.started,
        "train_command": step.shown,
        "device": device,
        "threads": machine.get("OMP_NUM_THREADS"),
        "relu_nmt": versions.strip(),
        "torch": machine.get("torch"),
        "python": machine.get("python"),
    }
    with suppress(*DAMAGE):
        lengths = steps.read_json(step.checkpoints / LENGTHS_FILE)
        for part in lengths["splits"].get("train", []):
            prefix = f"train[{part['max_doc_tokens']}]" if step.model.is_mixture else "train"
            record |= columns_of(part, LENGTHS, prefix)
    return _known(record)


def _contrast_record(step: Step) -> Record:
    """Return accuracies in percent by category, with context and without context."""
    record: Record = {}
    if step.stored().status != steps.DONE:
        return record
    path = step.path(".results.json")
    advice = f"delete {step.path('.json')} to score the contrasts again"
    with reporting(f"{path}: damaged; {advice}", caught=DAMAGE):
        for entry in steps.read_json(path):
            # Each category has columns for accuracy (context or alone), chance and contrasts.
            if entry.get("name") == "accuracy":
                kind = "alone" if entry["context"] == "0" else "context"
                record[f"accuracy_{kind}[{entry['category']}]"] = entry["score"]
                for name in ("chance", "contrasts"):
                    record[f"{name}[{entry['category']}]"] = entry[name]
    return record


# ------------------------------------------------------------------- means over seeds


def average_cells(cells: Sequence[Cell], baseline: str) -> list[Average]:
    """Return an average for each system and length, in the order of the cells and their seeds.

    Means are over the seeds whose training converged. Intervals are half widths at 95%. Gains and
    relative speeds compare with the baseline. Gains use the ``gain_seeds``, which converged with
    both systems.
    """
    averages: dict[tuple[System, int], Average] = {}
    for cell in cells:
        key = cell.system, cell.length
        averages.setdefault(key, Average(*key)).cells.append(cell)
    for average in averages.values():
        _add_means(average)
    for (system, length), average in averages.items():
        other = averages.get((System(baseline, system.mixture), length))
        if other is None:
            continue
        for column, speed in SPEEDS.items():
            if average.record.get(speed) and other.record.get(speed):
                average.record[column] = average.record[speed] / other.record[speed]
        if other is not average:
            gain, average.gains = compare(average, other)
            average.record |= gain
    return list(averages.values())


def _add_means(average: Average) -> None:
    """Set the means over the seeds whose training converged, and count the other seeds."""
    record = average.record
    converged = []
    counts: Counter[str] = Counter()
    for cell in average.cells:
        counts[cell.status] += 1
        if cell.status == steps.DONE:
            converged.append(cell)
    for name in SHARED:
        record[name] = average.cells[0].record[name]
    record["seeds"] = ",".join(str(cell.model.seed) for cell in converged)
    ended = (steps.DONE, NOT_CONVERGED, steps.DIVERGED, steps.FAILED)
    for status in (*ended, steps.PENDING, steps.STARTED):
        if counts[status]:
            record[f"seeds_{status.replace(' ', '_')}"] = counts[status]
    if not converged:
        return
    for name, value in converged[0].record.items():
        values: list[Any] = [cell.record.get(name) for cell in converged]
        if name in TEXTS and len(set(values)) == 1:
            record[name] = value
        elif name not in ("seed", *SHARED):
            with suppress(TypeError):  # a text, or a number that is unknown for a seed
                record[name] = sum(values) / len(values)
    record |= _known({"d_bleu_seed_interval": significance.mean_interval(average.values("d_bleu"))})
    # Resample the documents of all seeds together, if all seeds evaluated the same documents.
    statistics = [cell.statistics for cell in converged if cell.statistics is not None]
    sizes = {len(of_seed.counts) for of_seed in statistics}
    if len(statistics) == len(converged) and len(sizes) == 1:
        scores = significance.resampled_scores(statistics)
        for cell, scores_of_seed in zip(converged, scores, strict=True):
            average.resampled[cell.model.seed] = scores_of_seed
        record["d_bleu_document_interval"] = significance.resampling_interval(scores.mean(0))


def compare(average: Average, other: Average) -> tuple[Record, list[float]]:
    """Return columns and values of a gain in d-BLEU over the common seeds. Empty: no such seed."""
    seeds = sorted(average.resampled.keys() & other.resampled.keys())
    if not seeds:
        return {}, []
    scores = dict(zip(average.resampled, average.values("d_bleu"), strict=True))
    other_scores = dict(zip(other.resampled, other.values("d_bleu"), strict=True))
    gains = [scores[seed] - other_scores[seed] for seed in seeds]
    gain = sum(gains) / len(gains)
    resampled = np.mean([average.resampled[seed] for seed in seeds], axis=0)
    other_resampled = np.mean([other.resampled[seed] for seed in seeds], axis=0)
    record = {
        "gain": gain,
        "gain_seed_interval": significance.mean_interval(gains),
        "gain_document_interval": significance.resampling_interval(resampled - other_resampled),
        "p_value": significance.p_value(resampled, other_resampled, gain),
        "gain_seeds": ",".join(map(str, seeds)),
    }
    return _known(record), gains

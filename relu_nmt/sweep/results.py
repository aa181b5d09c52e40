"""All numbers of a sweep as records: one for each model and length, the only source of reports."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from relu_nmt.data.groups import LENGTHS_FILE
from relu_nmt.errors import DataError, ReluNmtError
from relu_nmt.evaluation.bleu import DEFAULT_EDGES, length_buckets
from relu_nmt.evaluation.significance import SegmentStatistics
from relu_nmt.sweep.plan import model_folder, shown_command
from relu_nmt.sweep.steps import DONE, FAILED, STARTED, Step, StepState, SweepModel
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
STATISTICS = {
    "entropy": "entropy",
    "max_entropy": "mean_log_n",
    "zero_fraction": "zero_fraction",
    "null_fraction": "null_fraction",
    "row_sum": "sum",
}
LENGTH_FIELDS = (
    *("groups", "sentences", "over_long_sentences", "mean_tokens", "longest_tokens"),
    "mean_sentences",
)

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
        statistics: of the documents, for d-BLEU; None if not evaluated.
    """

    model: SweepModel
    length: int
    record: Record = field(default_factory=dict)
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
        state = train.state
        shared = {
            "attention": model.attention,
            "trained_on": model.trained_on,
            "mixture": int(model.is_mixture),
            "seed": model.seed,
            **_training_record(train, state),
        }
        own = [_evaluated(Step(model, length, home), length, state, shared) for length in lengths]
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
    status, note = _status(train, state)
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
    _add_statistics(record, step.path(".attention.json"))
    found = cell.statistics = SegmentStatistics.from_json(results["document_statistics"])
    record["documents"] = len(found.counts)
    # By the length of the reference document, the second of BLEU's counts.
    buckets = length_buckets(found.counts[:, 1].tolist(), DEFAULT_EDGES)
    for bucket, members in buckets.items():
        record[f"d_bleu[{bucket}]"] = found.score(members)
        record[f"documents[{bucket}]"] = len(members)


def _status(train: StepState | None, evaluation: StepState | None) -> tuple[str, str]:
    """Return the status of a cell, and the last log line if something went wrong."""
    if train is None:
        return PENDING, ""
    if train.status != DONE:
        return train.status, train.note
    if evaluation is None:
        return STARTED, ""
    return evaluation.status, evaluation.note


def _training_record(step: Step, state: StepState | None) -> Record:
    if state is None:
        return {}
    record = {
        **_course(step.checkpoints),
        "train_memory_bytes": state.peak_memory or None,
        "started": state.started,
        "train_command": _shown(state),
        **_machine(state.environment),
    }
    record = {name: value for name, value in record.items() if value is not None}
    try:
        lengths = json.loads((step.checkpoints / LENGTHS_FILE).read_text("utf-8"))
        for part in lengths["splits"].get("train", []):
            prefix = f"train[{part['max_doc_tokens']}]" if step.model.is_mixture else "train"
            _add_lengths(record, prefix, part)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # a training that has hardly begun
    return record


def _course(checkpoints: Path) -> Record:
    """Return what a training tells of itself; nothing of one that has hardly begun."""
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
        "train_tokens_per_second": results.tokens_per_second,
        "train_updates_per_second": results.updates_per_second,
        "train_seconds": results.seconds,
        "train_gpu_memory_bytes": results.memory.get("gpu_bytes"),
    }


def _machine(environment: Mapping[str, Any]) -> Record:
    gpus = environment.get("gpus") or []
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return {
        "device": f"{gpus[0]} ({visible or 'first'})" if gpus else environment.get("cpu"),
        "threads": environment.get("OMP_NUM_THREADS"),
        "relu_nmt": " ".join(str(environment.get(n, "")) for n in ("relu_nmt", "revision")).strip(),
        "torch": environment.get("torch"),
        "python": environment.get("python"),
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


def _add_statistics(record: Record, path: Path) -> None:
    """Add what is known of the attention weights; nothing for mechanisms without weights."""
    try:
        slots = json.loads(path.read_text("utf-8"))["slots"]
    except FileNotFoundError:
        return
    for slot in SLOTS:
        for column, name in STATISTICS.items():
            if name in slots.get(slot, {}):
                record[f"{slot}_{column}"] = slots[slot][name]

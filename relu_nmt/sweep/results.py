"""All numbers of a sweep as records: one for each model and length, the only source of reports."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.data.groups import LENGTHS_FILE
from relu_nmt.errors import ReluNmtError
from relu_nmt.evaluation.document_scores import Documents
from relu_nmt.evaluation.length_buckets import DEFAULT_EDGES, length_buckets
from relu_nmt.sweep.document_counts import bleu_of, stored_counts
from relu_nmt.sweep.plan import EVALUATE, TRAIN, Step, Training, shown_command
from relu_nmt.sweep.step_state import DIVERGED, DONE, FAILED, STARTED, StepState, read_state
from relu_nmt.sweep.training_log import last_line, read_training_log

PENDING, NOT_CONVERGED = "pending", "not converged"
LOWEST_CONVERGED_BLEU = 1.0
"""A model below it at every length counts as one that does not converge."""
ROUNDING = 1e-6
"""Largest difference between two ways to compute the same BLEU."""
SCORES = ("d_bleu", "s_bleu", "group_bleu", "chrf")
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


@dataclass(frozen=True)
class System:
    """What has a row in the tables: an attention, and how the models learn lengths.

    Args:
        attention: as ``--attention`` takes it.
        mixture: lengths of the ``--doc-mixture``; none for a model per length.
    """

    attention: str
    mixture: tuple[int, ...] = ()

    @classmethod
    def of(cls, training: Training) -> "System":
        """Return the system that a model belongs to."""
        return cls(training.attention, training.lengths if training.is_mixture else ())


@dataclass
class Cell:
    """A model at a document length.

    Args:
        training: the model.
        length: of the evaluation, in tokens.
        record: its numbers and texts by column, without those that are unknown.
        counts: for d-BLEU, [documents, counts]; None if not evaluated.
    """

    training: Training
    length: int
    record: Record = field(default_factory=dict)
    counts: np.ndarray | None = None

    @property
    def status(self) -> str:
        """done, pending, started, failed, diverged, or not converged."""
        return self.record["status"]


class CellReader:
    """Reads what the steps of a sweep have left.

    Args:
        references: reference sentences of each document; None: there are none.
        models: folder of the models.
    """

    def __init__(self, references: Documents | None, models: Path) -> None:
        self._references = references
        self._models = models

    def read(self, everything: Mapping[Training, Sequence[int]]) -> list[Cell]:
        """Return a cell for each model and length, done or not."""
        return [
            cell for training, lengths in everything.items() for cell in self._of(training, lengths)
        ]

    def _of(self, training: Training, lengths: Sequence[int]) -> list[Cell]:
        folder = self._models / training.name
        train = Step(TRAIN, training, None, folder, ())
        state = read_state(train)
        shared = {**_identity(training), **_training_record(train, state)}
        cells = []
        for length in lengths:
            step = Step(EVALUATE, training, length, folder, ())
            cells.append(self._evaluated(Cell(training, length, dict(shared)), step, state))
        # A model that translates at one length has learnt, however weak it is at another.
        scored = [cell for cell in cells if cell.status == DONE]
        if scored and all(cell.record["d_bleu"] < LOWEST_CONVERGED_BLEU for cell in scored):
            for cell in scored:
                cell.record["status"] = NOT_CONVERGED
                cell.record["note"] = f"d-BLEU below {LOWEST_CONVERGED_BLEU:g}"
        return cells

    def _evaluated(self, cell: Cell, step: Step, train: StepState | None) -> Cell:
        """Add what is known of an evaluation."""
        record, state = cell.record, read_state(step)
        record["length"] = step.length
        status, note = _status(train, state)
        if state is not None:
            record["evaluate_command"] = _shown(state)
        if status == DONE:
            try:
                self._add_scores(cell, step, state)
            except (ReluNmtError, OSError, ValueError, KeyError, TypeError) as error:
                status, note = FAILED, f"the results cannot be read: {error}"
        elif status in (FAILED, DIVERGED) and not note:
            note = last_line(step.path(".log"))
        record["status"] = status
        record["note"] = note or record.get("note", "")
        return cell

    def _add_scores(self, cell: Cell, step: Step, state: StepState) -> None:
        record = cell.record
        results = json.loads(step.path(".results.json").read_text("utf-8"))
        if not results["d_bleu"]:
            raise ValueError("no d-BLEU; are there references?")
        for name in SCORES:
            if results.get(name):
                record[name] = float(results[name]["score"])
                record[f"{name}_signature"] = results[name]["signature"]
        for name in ("mismatch_rate", "groups", "sentences", "tokens", "at_limit"):
            if results.get(name) is not None:
                record[name] = results[name]
        record |= {
            "decode_tokens_per_second": results["tokens_per_second"],
            "decode_seconds": results["seconds"],
        }
        for name in ("memory_bytes", "gpu_memory_bytes"):
            if results.get(name):
                record[f"decode_{name}"] = results[name]
        _add_lengths(record, "test", results.get("lengths"))
        _add_statistics(record, step.path(".attention.json"))
        if self._references is not None:
            path, signature = step.path(".txt"), record["d_bleu_signature"]
            counts = stored_counts(path, self._references, signature, state.started)
            if abs(bleu_of(counts.sum(0)) - record["d_bleu"]) > ROUNDING:
                record["note"] = "no intervals: the score is not that of the raw text"
                return
            cell.counts = counts
            record["documents"] = len(counts)
            _add_buckets(record, counts)


def _identity(training: Training) -> Record:
    return {
        "attention": training.attention,
        "trained_on": training.trained_on,
        "mixture": int(training.is_mixture),
        "seed": training.seed,
    }


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
    summary = read_training_log(step.path(".log"))
    record = {
        "updates": summary.updates,
        "train_loss": summary.train_loss,
        "valid_nll": summary.valid_nll,
        "train_tokens_per_second": summary.tokens_per_second,
        "train_updates_per_second": summary.updates_per_second,
        "train_seconds": summary.seconds,
        "train_memory_bytes": state.peak_memory or None,
        "train_gpu_memory_bytes": summary.gpu_memory,
        "started": state.started,
        "train_command": _shown(state),
        **_machine(state.environment),
    }
    record = {name: value for name, value in record.items() if value is not None}
    try:
        lengths = json.loads((step.checkpoints / LENGTHS_FILE).read_text("utf-8"))
        for part in lengths["splits"].get("train", []):
            prefix = f"train[{part['max_doc_tokens']}]" if step.training.is_mixture else "train"
            _add_lengths(record, prefix, part)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # a training that has hardly begun
    return record


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
    return " && ".join(" ".join(_quoted(shown_command(c))) for c in state.commands)


def _quoted(words: Sequence[str]) -> list[str]:
    import shlex

    return [shlex.quote(word) for word in words]


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


def _add_buckets(record: Record, counts: np.ndarray) -> None:
    """Add d-BLEU by the length of the reference document."""
    for bucket in length_buckets(counts[:, -1].tolist(), DEFAULT_EDGES):
        record[f"d_bleu[{bucket}]"] = bleu_of(counts[list(bucket.members)].sum(0))
        record[f"documents[{bucket}]"] = len(bucket.members)

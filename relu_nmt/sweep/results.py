"""All numbers of a sweep as records: one for each model and length, the only source of reports."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.data.data_folder import documents_path, find_pair, infer_languages, raw_path
from relu_nmt.data.documents import read_documents
from relu_nmt.data.groups import LENGTHS_FILE
from relu_nmt.errors import DataError, ReluNmtError
from relu_nmt.evaluation import document_scores as docs
from relu_nmt.evaluation.bleu import MetricConfig
from relu_nmt.evaluation.length_buckets import DEFAULT_EDGES, length_buckets
from relu_nmt.evaluation.significance import SegmentStatistics
from relu_nmt.io.safe_write import write_text
from relu_nmt.io.text_lines import read_lines
from relu_nmt.sweep.plan import MODELS, OUTPUT_SEPARATOR, shown_command
from relu_nmt.sweep.steps import (
    DONE,
    FAILED,
    STARTED,
    Step,
    StepState,
    SweepModel,
    read_state,
)
from relu_nmt.training.results import TrainingResult

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
    def of(cls, model: SweepModel) -> "System":
        """Return the system that a model belongs to."""
        return cls(model.attention, model.lengths if model.is_mixture else ())


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


class CellReader:
    """Reads what the steps of a sweep have left.

    Args:
        folder: of the sweep.
        references: reference sentences of each document; None: there are none.
    """

    def __init__(self, folder: Path, references: docs.Documents | None) -> None:
        self._models = folder / MODELS
        self._references = references

    def read(self, everything: Mapping[SweepModel, Sequence[int]]) -> list[Cell]:
        """Return a cell for each model and length, done or not."""
        return [cell for model, lengths in everything.items() for cell in self._of(model, lengths)]

    def _of(self, model: SweepModel, lengths: Sequence[int]) -> list[Cell]:
        folder = self._models / model.name
        train = Step(model, None, folder)
        state = read_state(train)
        shared = {**_identity(model), **_training_record(train, state)}
        cells = []
        for length in lengths:
            step = Step(model, length, folder)
            cells.append(self._evaluated(Cell(model, length, dict(shared)), step, state))
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
        if status == DONE and state is not None:
            try:
                self._add_scores(cell, step, state)
            except (ReluNmtError, OSError, ValueError, KeyError, TypeError) as error:
                status, note = FAILED, f"the results cannot be read: {error}"
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
            found = document_statistics(path, self._references, signature, state.started)
            if abs(found.score() - record["d_bleu"]) > ROUNDING:
                record["note"] = "no intervals: the score is not that of the raw text"
                return
            cell.statistics = found
            record["documents"] = len(found.counts)
            _add_buckets(record, found)


def _identity(model: SweepModel) -> Record:
    return {
        "attention": model.attention,
        "trained_on": model.trained_on,
        "mixture": int(model.is_mixture),
        "seed": model.seed,
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


def _add_buckets(record: Record, documents: SegmentStatistics) -> None:
    """Add d-BLEU by the length of the reference document, the second of BLEU's counts."""
    for bucket in length_buckets(documents.counts[:, 1].tolist(), DEFAULT_EDGES):
        record[f"d_bleu[{bucket}]"] = documents.score(bucket.members)
        record[f"documents[{bucket}]"] = len(bucket.members)


def reference_documents(
    data: str, split: str, languages: Sequence[str] = ()
) -> docs.Documents | None:
    """Return the raw reference sentences of each document of a split; None if there are none.

    Args:
        data: the data folder.
        split: ``test``...
        languages: source and target language; by default those of the folder's only pair.

    Raises:
        DataError: files of the folder are missing or do not fit.
    """
    source, target = languages or infer_languages(data)
    pair = find_pair(data, split, source, target)
    raw, counts = raw_path(data, split, pair, target), documents_path(data, split, pair)
    if not raw.exists() or not counts.exists():
        return None
    return docs.cut_by_counts(read_lines(raw), read_documents(counts), f"{raw} with {counts}")


def document_statistics(
    translation: Path, references: docs.Documents, signature: str, run: str
) -> SegmentStatistics:
    """Return what d-BLEU is computed from; counted once, then read from beside the translation.

    Args:
        translation: text with a line ``<d>`` before each document.
        references: lines of each document.
        signature: sacreBLEU's, of the score to take apart.
        run: identifies the run that made the translation.

    Raises:
        DataError: the file cannot be read, or has other documents than the reference.
    """
    parts = dict(part.split(":", 1) for part in signature.split("|") if ":" in part)
    metric = MetricConfig(lowercase=parts.get("case") == "lc", tokenize=parts.get("tok", "13a"))
    path = translation.with_suffix(".statistics.json")
    key = [run, re.sub(r"\|version:.*", "", signature), len(references)]
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["key"] == key:
            return SegmentStatistics(metric, np.array(stored["counts"], dtype=np.int64))
    except (OSError, ValueError, TypeError, KeyError):
        pass  # counted anew
    hypotheses = docs.split_at_separators(read_lines(translation), OUTPUT_SEPARATOR)
    docs.check_same_documents(hypotheses, [references], ["the translation", "the reference"])
    joined = docs.join_lines(hypotheses), [docs.join_lines(references)]
    found = SegmentStatistics.of(metric, *joined)
    write_text(path, json.dumps({"key": key, "counts": found.counts.tolist()}) + "\n")
    return found

"""The folder of a training, ``--save-dir``: its checkpoints, and its result in ``results.json``."""

import dataclasses
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relu_nmt.config.stored import checked, parse_json
from relu_nmt.errors import IN_BRACKETS, CheckpointError, ConfigError, DataError, reporting
from relu_nmt.io import safe_write
from relu_nmt.io.memory import peak_gpu_bytes, peak_resident_bytes
from relu_nmt.io.process import SIGNAL_EXIT_CODE
from relu_nmt.training.checkpoint import SUFFIX, Checkpoint, save_checkpoint
from relu_nmt.training.config import LAST, RESULTS_FILE, TrainerConfig
from relu_nmt.training.log import json_number

BEST = f"checkpoint_best{SUFFIX}"
FORMAT = 1
PIPE_SIGNAL = 13
LOST_EXIT_CODE = 2
BY_UPDATES = r"checkpoint_\d+_(\d+)"
BY_EPOCHS = r"checkpoint(\d+)"
"""Names of the checkpoints saved by updates and by epochs, up to the suffix."""
WRITTEN = re.compile(
    rf"(?:{BY_UPDATES}|{BY_EPOCHS}|checkpoint_best|checkpoint_last|checkpoint\.best_.+)"
    + re.escape(SUFFIX)
)
"""Names of all checkpoints that a training writes."""
ENTRY_FORM = {
    **dict.fromkeys(("num_updates?", "wps?", "ups?", "train_wall?"), float | None),
    **dict.fromkeys(("loss?", "nll_loss?", "accuracy?"), float | None),
    "*": float | str | None,
}
"""The form of an entry of the curves, see :func:`checked`."""
BEST_FORM = {"metric": str, "value": float, "num_updates": int}
LOCK = ".lock"
BYTES_PER_VALUE = 4
VALUES_PER_WEIGHT = 3  # in a checkpoint: the weight and Adam's two moments, one more with EMA

CurveEntry = dict[str, Any]
"""Values by name. None stands for infinity and NaN, which JSON does not have."""


@dataclass
class TrainingResult:
    """The curves of a training and the reason of its end, over all resumes.

    The file has all fields but ``save_dir`` and ``log_lost``.
    """

    save_dir: Path | None = None  # of the file and of the checkpoints. None if none are written
    ended: str | None = None  # the reason of the end. None while it runs or if it was killed
    signal: int | None = None  # number of the signal that interrupted it, if one did
    diverged: bool = False  # loss or gradient were not finite, or no loss scale of float16 worked
    epoch: int = 1  # of the last update
    num_updates: int = 0
    seconds: float = 0.0  # time of running, validation and saving included
    parameters: int = 0  # number of the model's parameters, frozen ones included
    # Averages by name of each log interval, with ``epoch`` and ``num_updates``: losses in bits,
    # ``lr``, ``wps`` (tokens per second) and so on, as in the log.
    train: list[CurveEntry] = field(default_factory=list)
    epochs: list[CurveEntry] = field(default_factory=list)  # the same for each finished epoch
    # The metrics of each validation set at each validation, and the signatures of scores.
    valid: dict[str, list[CurveEntry]] = field(default_factory=dict)
    best: dict[str, Any] | None = None  # metric, value and num_updates of the best validation
    # Peak memory over all runs in bytes: ``resident_bytes`` of the first process, ``gpu_bytes`` of
    # tensors on its GPU. None where they are not counted.
    memory: dict[str, int | None] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    log_lost: OSError | None = None  # the error that ended a part of the log, if one did

    @property
    def best_score(self) -> float | None:
        """The best value of ``best_checkpoint_metric``. None if nothing was validated."""
        return None if self.best is None else self.best["value"]

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint with the best score, if there is one."""
        return self._checkpoint(BEST)

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint, from which the same settings go on, if there is one."""
        return self._checkpoint(LAST)

    def _checkpoint(self, name: str) -> Path | None:
        if self.save_dir is None or not (self.save_dir / name).is_file():
            return None
        return self.save_dir / name

    @property
    def exit_code(self) -> int:
        """The exit code: 0, 128 plus a signal, 141 without a reader, 2 if another log is lost."""
        if self.signal is not None:
            return SIGNAL_EXIT_CODE + self.signal
        if isinstance(self.log_lost, BrokenPipeError):
            return SIGNAL_EXIT_CODE + PIPE_SIGNAL
        return 0 if self.log_lost is None else LOST_EXIT_CODE

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens without padding per second of training, without validation and saving."""
        return self._per_second("wps")

    @property
    def updates_per_second(self) -> float | None:
        """Updates per second of training, without validation and saving."""
        return self._per_second("ups")

    def _per_second(self, name: str) -> float | None:
        """Return a mean speed. The first of several intervals, which is slow, does not count."""
        parts = self.train or self.epochs
        total = seconds = 0.0
        for part in parts[1:] or parts:
            duration = part.get("train_wall") or 0.0
            total += (part.get(name) or 0.0) * duration
            seconds += duration
        return total / seconds if seconds else None

    def set_progress(self, num_updates: int, seconds: float) -> None:
        """Set updates and time, and update the peak memory."""
        self.num_updates = num_updates
        self.seconds = seconds
        peaks = {"resident_bytes": peak_resident_bytes(), "gpu_bytes": peak_gpu_bytes()}
        for name, peak in peaks.items():
            self.memory[name] = max(self.memory.get(name) or 0, peak or 0) or None

    def set_best(self, metric: str, score: float | None, subset: str | None) -> None:
        """Set the best score of validation set ``subset`` (None: the first), and its update."""
        validations = self.valid.get(subset or next(iter(self.valid), ""), [])
        self.best = None
        for stats in validations:  # the last of equal scores counts
            if score is not None and stats.get(str(metric)) == score:
                self.best = {"metric": metric, "value": score, "num_updates": stats["num_updates"]}

    def write(self) -> None:
        """Write ``results.json`` into ``save_dir``, whole or not at all."""
        if self.save_dir is None:
            return
        path = self.save_dir / RESULTS_FILE
        values: dict[str, Any] = {"format": FORMAT}
        for name in (*self._stored(), "tokens_per_second", "updates_per_second"):
            values[name] = getattr(self, name)
        with reporting(f"{path}: cannot be written", form=IN_BRACKETS):
            path.parent.mkdir(parents=True, exist_ok=True)
            safe_write.write_text(path, safe_write.json_text(values))

    @classmethod
    def _stored(cls) -> list[str]:
        names = [field.name for field in dataclasses.fields(cls)]
        return [name for name in names if name not in ("save_dir", "log_lost")]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "TrainingResult":
        """Read the ``results.json`` of a folder (DataError: missing, or in another format)."""
        path = Path(folder) / RESULTS_FILE
        with reporting(f"{path}: cannot be read", form=IN_BRACKETS):
            text = safe_write.plain_file(path).read_bytes()
        try:
            values = parse_json(text)
            if values["format"] != FORMAT:
                raise DataError(
                    f"{path}: format {values['format']}, but this relu_nmt reads format {FORMAT}; "
                    "use the relu_nmt that wrote it"
                )
            result: TrainingResult = checked(cls, {name: values[name] for name in cls._stored()})
            if result.best is not None:
                checked(BEST_FORM, result.best)
            for entries in (result.train, result.epochs, *result.valid.values()):
                for values in entries:
                    checked(ENTRY_FORM, values)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: damaged, or not the results of a training; remove it to go on without "
                "the history that it held"
            ) from error
        result.save_dir = Path(folder)
        return result

    @classmethod
    def to_continue(
        cls, folder: Path, checkpoint: Path | None, num_updates: int
    ) -> "TrainingResult":
        """Return the result to continue, with entries up to ``num_updates``, or a new one."""
        continues = checkpoint is not None and checkpoint.parent.resolve() == folder.resolve()
        if not continues or not (folder / RESULTS_FILE).exists():
            return cls(folder)
        result = cls.load(folder)
        result.ended = result.signal = None
        result.diverged = False
        for entries in (result.train, result.epochs, *result.valid.values()):
            entries[:] = [e for e in entries if (e.get("num_updates") or 0) <= num_updates]
        return result


def entry(epoch: int, stats: Mapping[str, float]) -> CurveEntry:
    """Return averages or metrics of an epoch as an entry of the result."""
    return {"epoch": epoch, **{name: json_number(value) for name, value in stats.items()}}


class CheckpointFolder:
    """The folder ``--save-dir``."""

    def __init__(self, config: TrainerConfig) -> None:
        self._config = config
        self.path = Path(config.save_dir)

    def names(
        self,
        epoch: int,
        num_updates: int,
        end_of_epoch: bool,
        *,
        is_best: bool = False,
        kept_score: float | None = None,
        interrupted: bool = False,
    ) -> list[str]:
        """Return the names of the checkpoint after an update.

        ``kept_score`` is the score of the checkpoint if :meth:`keeps` is true for it, else None.
        Deviation from fairseq: a checkpoint at the end of an epoch that is also due by updates has
        both names.
        """
        config = self._config
        if config.no_save:
            return []
        names = []
        is_by_epoch = end_of_epoch and not config.no_epoch_checkpoints
        if is_by_epoch and epoch % config.save_interval == 0:
            names.append(f"checkpoint{epoch}{SUFFIX}")
        interval = config.save_interval_updates
        if interval and num_updates % interval == 0:
            names.append(f"checkpoint_{epoch}_{num_updates}{SUFFIX}")
        if is_best:
            names.append(BEST)
        if kept_score is not None:
            metric = config.best_checkpoint_metric
            names.append(f"checkpoint.best_{metric}_{kept_score:.4f}{SUFFIX}")
        # An interrupted training always needs checkpoint_last.
        if interrupted or not config.no_last_checkpoints:
            names.append(LAST)
        return names

    def keeps(self, score: float) -> bool:
        """Return True if a validation score is one of the best, whose checkpoints are kept."""
        count = self._config.keep_best_checkpoints
        if count <= 0 or math.isnan(score):
            return False
        kept_scores = [number for number, _ in numbered_checkpoints(self.path, self._best_pattern)]
        if len(kept_scores) < count:
            return True
        return score > min(kept_scores) if self._config.maximize else score < max(kept_scores)

    @property
    def _best_pattern(self) -> str:
        return rf"checkpoint\.best_{re.escape(self._config.best_checkpoint_metric)}_(-?\d+\.?\d*)"

    def write(self, checkpoint: Checkpoint, names: list[str]) -> None:
        """Write a checkpoint to a file for each name, and remove old checkpoints."""
        first, *further_paths = [self.path / name for name in names]
        save_checkpoint(first, checkpoint)
        for path in further_paths:
            text = f"{path}: cannot write the checkpoint"
            advice = f"it is stored as {first.name}"
            with reporting(text, CheckpointError, form=IN_BRACKETS, advice=advice):
                safe_write.copy_file(first, path)
        self._prune(names)

    def restore_path(self) -> Path | None:
        """Return the checkpoint that training goes on from. None for a fresh start."""
        name = self._config.restore_file
        if (self.path / name).exists():
            return self.path / name
        if name == LAST:
            return None
        # Look in the working directory only for a name that the user gives.
        if Path(name).exists():
            return Path(name)
        raise CheckpointError(
            f"--restore-file {name}: no such file, here or in {self.path}; give a path, or a name "
            "in --save-dir"
        )

    def present(self) -> Path | None:
        """Return the first file here that is named like a training's checkpoint, if any."""
        for file in sorted(self.path.glob("*")):
            if WRITTEN.fullmatch(file.name):
                return file
        return None

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Lock the folder inside the block. At the end remove a new folder without files."""
        if self._config.no_save:
            yield
            return
        is_new = not self.path.exists()
        with reporting("--save-dir", ConfigError, DataError, form="{} {}"):
            lock = safe_write.acquire_lock(self.path / LOCK)
        if lock is None:
            raise ConfigError(
                f"--save-dir {self.path}: another training is writing to it; stop that one, or "
                "choose another folder"
            )
        try:
            # Remove files of killed trainings only under the lock, which keeps others out.
            safe_write.remove_abandoned(self.path)
            yield
        finally:
            # Remove the folder while it is locked. A failure hides no error of the training.
            with suppress(OSError):
                if is_new and os.listdir(self.path) == [LOCK]:
                    shutil.rmtree(self.path)
            os.close(lock)

    def check(self, num_weights: int, averaged: bool) -> None:
        """Refuse a folder that cannot be written, or is too full for checkpoints of the model."""
        if self._config.no_save:
            return
        checkpoint_bytes = num_weights * (VALUES_PER_WEIGHT + averaged) * BYTES_PER_VALUE
        # Make the folder, and a file in it, to find missing permissions now.
        with reporting(f"--save-dir {self.path}: cannot be written", ConfigError, form=IN_BRACKETS):
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        # Count the files that saving adds before it removes old ones.
        config = self._config
        names = self.names(
            config.save_interval,
            config.save_interval_updates,
            end_of_epoch=True,
            is_best=not config.disable_validation,
            kept_score=0.0 if config.keep_best_checkpoints > 0 else None,
        )
        files = 1 + len(names)
        for name in {BEST, LAST}.intersection(names):
            path = self.path / name
            if path.exists() and path.stat().st_nlink == 1:  # replaced, and shares no bytes
                files -= 1
        free = shutil.disk_usage(self.path).free
        if free < files * checkpoint_bytes:
            raise ConfigError(
                f"--save-dir {self.path}: {free / 1e6:,.0f} MB free, but a checkpoint takes "
                f"{checkpoint_bytes / 1e6:,.0f} MB and {files} must fit; free some space "
                "or choose another folder"
            )

    def try_out(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint to a temporary file and remove it."""
        with safe_write.temporary_folder(self.path / "checkpoint_trial") as folder:
            save_checkpoint(folder / f"trial{SUFFIX}", checkpoint)

    def _prune(self, written: list[str]) -> None:
        """Remove checkpoints beyond the limits, of the kinds that have just been written."""
        config = self._config
        for pattern, count in (
            (BY_UPDATES, config.keep_interval_updates),
            (BY_EPOCHS, config.keep_last_epochs),
            (self._best_pattern, config.keep_best_checkpoints),
        ):
            # Leave out kinds without a limit, or without a new checkpoint.
            new_checkpoints = _with_numbers(pattern, written)
            if count <= 0 or not new_checkpoints:
                continue
            # Sort by score, the worst in front: the highest score if lower is better.
            checkpoints = numbered_checkpoints(self.path, pattern)
            if pattern != self._best_pattern:  # larger ones are an earlier training's, and go first
                newest, _ = new_checkpoints[0]
                checkpoints.sort(key=lambda checkpoint: (checkpoint[0] <= newest, checkpoint[0]))
            elif not config.maximize:
                checkpoints.reverse()
            for _, path in checkpoints[: max(0, len(checkpoints) - count)]:
                path.unlink(missing_ok=True)


def numbered_checkpoints(folder: Path, pattern: str) -> list[tuple[float, Path]]:
    """Return a folder's checkpoints, by the number in their names, the group of ``pattern``."""
    with reporting(f"{folder}: cannot read the folder", CheckpointError):
        names = os.listdir(folder)
    return sorted((number, folder / name) for number, name in _with_numbers(pattern, names))


def last_checkpoints(folder: Path, count: int, pattern: str, last: int | None) -> list[Path]:
    """Return ``count`` checkpoints of a folder up to the number ``last``, the newest first."""
    paths = []
    for number, path in reversed(numbered_checkpoints(folder, pattern)):
        if last is None or number <= last:
            paths.append(path)
    if len(paths) < count:
        kind = "updates" if pattern == BY_UPDATES else "epochs"
        bound = "" if last is None else f" up to {last}"
        raise CheckpointError(
            f"{folder}: {len(paths)} checkpoints saved by {kind}{bound}, but {count} are asked "
            "for; ask for fewer"
        )
    return paths[:count]


def _with_numbers(pattern: str, names: Iterable[str]) -> list[tuple[float, str]]:
    """Return the number in each name that matches the pattern, and the name."""
    numbers = []
    for name in names:
        match = re.fullmatch(pattern + re.escape(SUFFIX), name)
        if match:
            numbers.append((float(match[1]), name))
    return numbers

"""The result of a training, ``results.json`` beside its checkpoints, and the curves in it."""

import dataclasses
import json
import math
import os
import re
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import write_text

FILE_NAME = "results.json"
# Names under which the best and the newest checkpoint lie beside it.
BEST = "checkpoint_best.safetensors"
LAST = "checkpoint_last.safetensors"
FORMAT = 1
SIGNAL_EXIT_CODE = 128
"""The exit code after a signal is this plus its number, as in a shell."""
PIPE_SIGNAL, LOST_EXIT_CODE = 13, 2

Stats = dict[str, Any]
"""Values by name; None stands for infinity and NaN, which JSON does not have."""

MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Unit of the system's count in bytes: Linux counts KiB, macOS bytes."""


def peak_resident_bytes() -> int | None:
    """Return the peak resident memory of this process; None where the system does not count it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


def peak_gpu_bytes() -> int | None:
    """Return the peak memory of tensors on the GPU; None without a GPU."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None


@dataclass
class TrainingResult:
    """The curves of a training and the reason of its end, over all resumes.

    The file has all fields but ``save_dir`` and ``log_lost``.

    Args:
        save_dir: folder of the file and of the checkpoints; None if none are written.
        ended: the reason of the end, for the user; None while it runs or if it was killed.
        signal: number of the signal that interrupted it, if one did.
        diverged: it ended because loss or gradient were not finite, or no loss scale of float16
            worked.
        epoch: epoch of the last update, from 1.
        num_updates: updates made.
        seconds: time of running, validation and saving included.
        parameters: number of the model's parameters, frozen ones included.
        train: averages by name since the log interval before, each with ``epoch`` and
            ``num_updates``: losses in bits, ``lr``, ``wps`` (tokens per second), ``ups`` (updates
            per second) and so on, as in the log.
        epochs: the same for each finished epoch.
        valid: by validation set, its metrics at each validation, and the signatures of scores.
        best: ``metric``, ``value`` and ``num_updates`` of the best validation so far.
        memory: most bytes over all runs: ``resident_bytes`` of the first process,
            ``gpu_bytes`` of tensors on its GPU; None where they are not counted.
        settings: the settings of the training.
        log_lost: the error that ended a part of the log, if one did; the training went on.

    Example:
        >>> result = TrainingResult(num_updates=20)
        >>> for updates, wps, seconds in ((10, 100.0, 5.0), (20, 200.0, 2.5)):
        ...     stats = {"num_updates": updates, "wps": wps, "ups": wps / 50, "train_wall": seconds}
        ...     result.train.append(entry(1, stats))
        >>> result.tokens_per_second, result.updates_per_second
        (200.0, 4.0)
    """

    save_dir: Path | None = None
    ended: str | None = None
    signal: int | None = None
    diverged: bool = False
    epoch: int = 1
    num_updates: int = 0
    seconds: float = 0.0
    parameters: int = 0
    train: list[Stats] = field(default_factory=list)
    epochs: list[Stats] = field(default_factory=list)
    valid: dict[str, list[Stats]] = field(default_factory=dict)
    best: dict[str, Any] | None = None
    memory: dict[str, int | None] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    log_lost: OSError | None = None

    @property
    def best_score(self) -> float | None:
        """The best value of ``best_checkpoint_metric``; None if nothing was validated."""
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
        path = None if self.save_dir is None else self.save_dir / name
        return path if path is not None and path.is_file() else None

    @property
    def exit_code(self) -> int:
        """The exit code of the command.

        0, or 128 plus the signal that ended it, or 141 (SIGPIPE) if the reader of its output has
        left, or 2 if another part of the log could not be written.
        """
        if self.signal is not None:
            return SIGNAL_EXIT_CODE + self.signal
        if isinstance(self.log_lost, BrokenPipeError):
            return SIGNAL_EXIT_CODE + PIPE_SIGNAL
        return 0 if self.log_lost is None else LOST_EXIT_CODE

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens without padding per second of training, validation and saving not counted."""
        return self._per_second("wps")

    @property
    def updates_per_second(self) -> float | None:
        """Updates per second of training, validation and saving not counted."""
        return self._per_second("ups")

    def _per_second(self, name: str) -> float | None:
        """Return a mean speed, without the first interval, which is slow, if there are others."""
        parts = self.train or self.epochs
        pairs = [(one[name] or 0.0, one["train_wall"] or 0.0) for one in parts[1:] or parts]
        seconds = sum(duration for _, duration in pairs)
        return sum(speed * duration for speed, duration in pairs) / seconds if seconds else None

    def measure(self, num_updates: int, seconds: float) -> None:
        """Set updates and time, and update the peak memory."""
        self.num_updates, self.seconds = num_updates, seconds
        peaks = {"resident_bytes": peak_resident_bytes(), "gpu_bytes": peak_gpu_bytes()}
        for name, peak in peaks.items():
            known = [value for value in (self.memory.get(name), peak) if value is not None]
            self.memory[name] = max(known, default=None)

    def set_best(self, metric: str, score: float | None, subset: str | None) -> None:
        """Set the best score, found in a validation set (None: the first), and its update."""
        validations = self.valid.get(subset or next(iter(self.valid), ""), [])
        when = [one["num_updates"] for one in validations if one.get(str(metric)) == score]
        known = score is not None and when
        self.best = {"metric": metric, "value": score, "num_updates": when[-1]} if known else None

    def write(self) -> None:
        """Write ``results.json`` into ``save_dir``, whole or not at all."""
        if self.save_dir is None:
            return
        path = self.save_dir / FILE_NAME
        values = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in self._stored()},
            "tokens_per_second": self.tokens_per_second,
            "updates_per_second": self.updates_per_second,
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(values, ensure_ascii=False, indent=1) + "\n")
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({error.strerror})") from error

    @classmethod
    def _stored(cls) -> list[str]:
        names = [field.name for field in dataclasses.fields(cls)]
        return [name for name in names if name not in ("save_dir", "log_lost")]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "TrainingResult":
        """Read the ``results.json`` of a folder.

        Raises:
            DataError: no such file, or a file of another format.
        """
        path = Path(folder) / FILE_NAME
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["format"] != FORMAT:
                raise DataError(
                    f"{path}: format {values['format']}, but this relu_nmt reads format {FORMAT}; "
                    "use the relu_nmt that wrote it"
                )
            return cls(Path(folder), **{name: values[name] for name in cls._stored()})
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: damaged, or not the results of a training; remove it to go on without "
                "the history that it held"
            ) from error

    @classmethod
    def to_continue(
        cls, folder: Path, checkpoint: Path | None, num_updates: int
    ) -> "TrainingResult":
        """Return the result of the run that a training goes on with, or a new one.

        Entries after the checkpoint, made after ``num_updates``, are dropped, and so is the end of
        that run. A checkpoint of another folder begins a new result.
        """
        # Begin a new result if the checkpoint comes from another folder.
        continues = checkpoint is not None and checkpoint.parent.resolve() == folder.resolve()
        if not continues or not (folder / FILE_NAME).exists():
            return cls(folder)
        result = cls.load(folder)
        result.ended, result.signal, result.diverged = None, None, False
        # Drop entries that the continued run will make a second time.
        for entries in (result.train, result.epochs, *result.valid.values()):
            entries[:] = [one for one in entries if (one.get("num_updates") or 0) <= num_updates]
        return result


def entry(epoch: int, stats: Mapping[str, float]) -> Stats:
    """Return averages or metrics of an epoch as an entry of the result."""
    found = {name: value if math.isfinite(value) else None for name, value in stats.items()}
    return {"epoch": epoch, **found}


TRAIN, TELEMETRY = "train", "telemetry"
GROWTH = "output_growth"
"""The slope of log(mean square of outputs) over log(number of visible keys)."""
NOT_DRAWN = ("epoch", "update", "num_updates")
UPDATES_LINE = re.compile(r"\| train_inner \| epoch \d+: +\d+ / \d+ (.*)")
VALID_LINE = re.compile(r"\| epoch \d+ \| valid on '(.+?)' subset \| (.*)")


@dataclass
class Course:
    """The curves of a training.

    Args:
        name: name of the training.
        curves: values by number of updates, for each pair of split and metric. The split is
            ``train``, ``telemetry`` (means over layers and heads: ``encoder entropy``) or the name
            of a validation set.
    """

    name: str
    curves: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)

    def add(self, split: str, values: Any) -> None:
        """Add metrics of one moment; they replace earlier ones of the same update."""
        updates = values.get("num_updates") if isinstance(values, dict) else None
        if not isinstance(updates, int):
            return
        for metric, value in values.items():
            known = isinstance(value, int | float) and math.isfinite(value)
            if known and metric not in NOT_DRAWN:
                self.curves.setdefault((split, metric), {})[updates] = float(value)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every number with its training, split, metric and update."""
        for (split, metric), values in self.curves.items():
            for updates, value in sorted(values.items()):
                where = {"training": self.name, "split": split, "metric": metric}
                yield {**where, "num_updates": updates, "value": value}


def read_course(path: str | os.PathLike[str], name: str, may_be_empty: bool = False) -> Course:
    """Read a ``results.json``, or a log in the format ``json`` or ``simple``."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise DataError(f"{path}: cannot read the course of the training: {reason}") from error
    # A results.json is one object; a log is lines.
    course, whole = Course(name), _json(text)
    if isinstance(whole, dict) and isinstance(whole.get("train"), list):
        valid = whole.get("valid")
        splits = {TRAIN: whole["train"], **(valid if isinstance(valid, dict) else {})}
        for split, entries in splits.items():
            for values in entries if isinstance(entries, list) else []:
                course.add(split, values)
    else:
        for line in text.split("\n"):
            _add_line(course, line)
    if not course.curves and not may_be_empty:
        raise DataError(
            f"{path}: no course of a training in it; expected a results.json, or a log of "
            "relu-nmt-train (--log-file) with a line of averages"
        )
    return course


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _add_line(course: Course, line: str) -> None:
    values = _json(line) if line.startswith("{") else None
    if isinstance(values, dict):
        if isinstance(values.get("telemetry"), dict):
            means = _of_slots(values["telemetry"])
            course.add(TELEMETRY, {**means, "num_updates": values.get("num_updates")})
        elif "num_updates" in values:
            course.add(TRAIN, values)
        else:
            # Take a validation line apart: its names begin with the subset's.
            for name in [key for key in values if key.endswith("_num_updates")]:
                subset = name.removesuffix("_num_updates")
                if subset != TRAIN:  # the means of an epoch repeat the other lines
                    own = {k.removeprefix(f"{subset}_"): v for k, v in values.items()}
                    course.add(subset, own)
    elif found := UPDATES_LINE.search(line):
        course.add(TRAIN, _numbers(found[1].split(", "), "="))
    elif found := VALID_LINE.search(line):
        course.add(found[1], _numbers(found[2].split(" | "), " "))


def _numbers(pairs: list[str], between: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for pair in pairs:
        name, _, text = pair.partition(between)
        try:
            values[name] = int(text) if text.isdigit() else float(text)
        except ValueError:
            continue
    return values


def _of_slots(telemetry: Mapping[str, Any]) -> dict[str, float]:
    """Return the means over layers and heads of ``attention/SLOT.LAYER.HEAD/STATISTIC``.

    ``attention/SLOT.LAYER.nRANGE/output_square`` gives GROWTH: about 0 where outputs do not depend
    on the number n of visible keys, 1 where they are sums of n independent terms.

    Reference: ReLUFormer, section 4.1.
    """
    found: dict[str, list[float]] = {}
    squares: dict[str, dict[float, list[float]]] = {}
    for name, value in telemetry.items():
        # Split attention/SLOT.LAYER.HEAD/STATISTIC into its parts.
        kind, _, rest = name.partition("/")
        place, _, statistic = rest.partition("/")
        slot, _, head = place.split(".") if place.count(".") == 2 else ("", "", "")
        if kind != "attention" or value is None:
            continue
        if head.isdigit():
            found.setdefault(f"{slot} {statistic}", []).append(value)
        elif head and statistic == "output_square":
            # Take the middle of a range nLOW-HIGH for its number of keys.
            bounds = [int(bound) for bound in head.removeprefix("n").split("-")]
            of_slot = squares.setdefault(slot, {})
            of_slot.setdefault(sum(bounds) / len(bounds), []).append(value)
    # Average the statistics, and fit the growth of the squares with the keys.
    means = {name: sum(values) / len(values) for name, values in found.items()}
    growths = {f"{slot} {GROWTH}": _slope(values) for slot, values in squares.items()}
    return means | {name: growth for name, growth in growths.items() if growth is not None}


def _slope(values: Mapping[float, list[float]]) -> float | None:
    """Return the slope of log mean(values) over the logarithm of their keys, by least squares."""
    means = {n: sum(own) / len(own) for n, own in values.items()}
    points = [(math.log(n), math.log(mean)) for n, mean in means.items() if mean > 0]
    if len(points) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope

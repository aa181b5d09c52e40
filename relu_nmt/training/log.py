"""The log of a training, in fairseq's format, which ``jobs/analyze/curves.py`` reads back."""

import json
import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from relu_nmt.errors import IN_BRACKETS, ConfigError, needing, printable, reporting
from relu_nmt.io.process import discard_output
from relu_nmt.training.config import TrainerConfig

TELEMETRY_DIGITS = 4
"""Significant digits of telemetry: there are many values, and small ones among them."""
LOSS_SUFFIX = "loss"
"""Averages with this ending are losses: kept in nats, reported in bits as in fairseq."""
DECIMALS = {"ppl": 2, "wps": 1, "ups": 2, "wpb": 1, "bsz": 1, "clip": 1, "train_wall": 0, "wall": 0}
DEFAULT_DECIMALS = 3
EXACT = ("lr", "loss_scale")  # are not rounded
# The parts of a log, as notes on a lost part name them.
OUTPUT = "standard output"
FILE = "the log file"
BOARD = "TensorBoard's files"

_reporting = partial(reporting, kind=ConfigError, form=IN_BRACKETS)

Stats = Mapping[str, float]


@dataclass
class Meters:
    """Sums over some updates: since the last log line, or since the start of the epoch."""

    sums: dict[str, tuple[float, float]] = field(default_factory=dict)  # (sum, count) by metric
    tokens: float = 0.0  # without padding
    sentences: float = 0.0  # or images
    updates: int = 0
    gradient_norms: float = 0.0
    clips: int = 0  # updates whose gradient was clipped
    seconds: float = 0.0  # of training alone

    def add(self, other: "Meters") -> None:
        """Add the sums over further updates."""
        add_metrics(self.sums, other.sums)
        for name in vars(self).keys() - {"sums"}:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def stats(
        self, num_updates: int, lr: float, loss_scale: float | None, wall: float
    ) -> dict[str, float]:
        """Return the averages for the log, in fairseq's order: losses in bits, sizes per update.

        ``wall`` is the running time in seconds. ``loss_scale`` is None except in float16.
        """
        updates = max(1, self.updates)
        seconds = max(self.seconds, 1e-9)
        stats = {
            **metric_averages(self.sums),
            "wps": self.tokens / seconds,
            "ups": self.updates / seconds,
            "wpb": self.tokens / updates,
            "bsz": self.sentences / updates,
            "num_updates": num_updates,
            "lr": lr,
            "gnorm": self.gradient_norms / updates,
        }
        # Add values only where they apply: clipped updates, and float16's loss scale.
        if self.clips:
            stats["clip"] = 100.0 * self.clips / updates
        if loss_scale is not None:
            stats["loss_scale"] = loss_scale
        return {**stats, "train_wall": self.seconds, "wall": wall}


class TrainingLog:
    """Log lines, in ``json`` as objects, and TensorBoard curves of the same numbers.

    All processes but the first are ``quiet``. Without ``shown`` only the log file and TensorBoard
    are written. ``lost`` is the first error that ended a part of the log, such as a full disk or a
    closed pipe. Training goes on without that part.
    """

    def __init__(self, config: TrainerConfig, quiet: bool = False, shown: bool = True) -> None:
        self._config = config
        self.lost: OSError | None = None
        default = "tqdm" if sys.stderr.isatty() and not config.no_progress_bar else "simple"
        self._format = config.log_format or default
        self._bar = tqdm(disable=True)
        # Updates of the epoch, also if there is no bar.
        self._num_done = 0
        self._num_updates = 1
        # Streams of lines. None stands for the standard output of the moment.
        self._streams: dict[str, TextIO | None] = {}
        if shown and not quiet:
            self._streams[OUTPUT] = None
        path = config.log_file
        if path and not quiet:
            with _reporting(f"--log-file {path}: cannot be written"):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._streams[FILE] = open(path, "a", encoding="utf-8")  # noqa: SIM115
        # TensorBoard has one run per tag (train_inner, train, valid), as in fairseq.
        self._writers: dict[str, Any] = {}
        self._writer_class: type | None = None
        self._hook = threading.excepthook
        board = config.tensorboard_logdir
        if board and not quiet:
            package = "the package tensorboard; install it with pip install tensorboard"
            with needing(f"--tensorboard-logdir needs {package}"):
                from torch.utils.tensorboard import SummaryWriter
            # Make the folder now, so that an error comes before the training.
            with _reporting(f"--tensorboard-logdir {board}: cannot be made"):
                Path(board).mkdir(parents=True, exist_ok=True)
            self._writer_class = SummaryWriter
            threading.excepthook = self._report_thread
        self._first_update = 0
        self._warned: set[str] = set()

    def say(self, text: str, name: str = "train") -> None:
        """Print a remark."""
        text = printable(text)
        if self._format == "json":
            self._write(json.dumps({"message": text}, ensure_ascii=False))
        else:
            self._write(_stamped(name, text))

    def warn_once(self, name: str, text: str) -> None:
        """Print a warning about a metric, but only one in this run."""
        if name not in self._warned:
            self._warned.add(name)
            self.say(f"WARNING: {text}")

    def begin(self, num_updates: int) -> None:
        """Begin after ``num_updates`` updates. TensorBoard hides later points of an earlier run."""
        self._first_update = num_updates + 1

    def begin_epoch(self, epoch: int, done: int, total: int) -> None:
        """Begin an epoch of ``total`` updates, ``done`` of which were made before a resume."""
        self._num_done = done
        self._num_updates = total
        self._bar = tqdm(
            initial=done,
            total=total,
            desc=f"epoch {epoch:03d}",
            leave=False,
            file=sys.stderr,
            disable=self._format != "tqdm" or OUTPUT not in self._streams,
        )

    def advance(self) -> None:
        """Count one update of the epoch."""
        self._num_done += 1
        self._bar.update()

    def updates(self, epoch: int, stats: Stats) -> None:
        """Print averages since the last such line."""
        if self._format == "json":
            done = round(epoch - 1 + self._num_done / self._num_updates, 3)
            self._write(json.dumps({"epoch": epoch, "update": done, **_json_values(stats)}))
        elif self._format == "simple":
            values = ", ".join(f"{n}={format_value(n, v)}" for n, v in stats.items())
            text = f"epoch {epoch:03d}:  {self._num_done:5d} / {self._num_updates:d} {values}"
            self._write(_stamped("train_inner", text))
        elif self._format == "tqdm":
            self._bar.set_postfix({n: format_value(n, v) for n, v in stats.items()}, refresh=True)
        self._add_curves("train_inner", stats)

    def wants_telemetry(self, num_updates: int) -> bool:
        """Return True if the objective's telemetry of this update is due and would be shown."""
        interval = self._config.telemetry_interval
        has_reader = self._writer_class is not None or (self._format == "json" and self._streams)
        return bool(has_reader) and interval > 0 and num_updates % interval == 0

    def telemetry(self, epoch: int, num_updates: int, scalars: Stats) -> None:
        """Log an objective's scalars as curves, and as an object of JSON in that format."""
        if self._format == "json":
            values = {
                n: json_number(float(f"{x:.{TELEMETRY_DIGITS}g}")) for n, x in scalars.items()
            }
            line = {"epoch": epoch, "num_updates": num_updates, "telemetry": values}
            self._write(json.dumps(line))
        self._add_curves("train_inner", {**scalars, "num_updates": num_updates})

    def end_epoch(self, epoch: int, stats: Stats) -> None:
        """Print the averages of an epoch."""
        self._bar.close()
        self._summary(epoch, "train", "", stats)

    def validation(self, epoch: int, subset: str, stats: Stats) -> None:
        """Print the scores of a validation set."""
        self._summary(epoch, subset, f"valid on '{subset}' subset | ", stats)

    def close(self) -> None:
        """Close the bar, the log file and TensorBoard's files."""
        self._bar.close()
        file = self._streams.pop(FILE, None)
        if file is not None:
            with self._may_be_lost(FILE):
                file.close()
        with self._may_be_lost(BOARD):
            for writer in self._writers.values():
                writer.close()
        self._writers.clear()
        threading.excepthook = self._hook

    def _report_thread(self, error: threading.ExceptHookArgs) -> None:
        """Print the trace of a failed thread, except TensorBoard's, whose loss is noted already."""
        is_of_board = type(error.thread).__module__.startswith("tensorboard.")
        if not is_of_board or not isinstance(error.exc_value, OSError):
            self._hook(error)

    def _summary(self, epoch: int, name: str, title: str, stats: Stats) -> None:
        """Print averages as one line, and add them to the curves of ``name``."""
        if self._format == "json":
            named = {f"{name}_{key}": value for key, value in _json_values(stats).items()}
            self._write(json.dumps({"epoch": epoch, **named}))
        elif self._format != "none":
            values = " | ".join(f"{n} {format_value(n, v)}" for n, v in stats.items())
            self._write(_stamped(name, f"epoch {epoch:03d} | {title}{values}"))
        self._add_curves(name, stats)

    def _add_curves(self, tag: str, values: Stats) -> None:
        """Add the finite values to curves over ``num_updates``, which is one of the values."""
        if self._writer_class is None:
            return
        with self._may_be_lost(BOARD):
            if tag not in self._writers:
                folder = str(Path(self._config.tensorboard_logdir or "") / tag)
                self._writers[tag] = self._writer_class(folder, purge_step=self._first_update)
            for name, value in values.items():
                if name != "num_updates" and math.isfinite(value):
                    self._writers[tag].add_scalar(name, value, int(values["num_updates"]))
            self._writers[tag].flush()

    def _write(self, line: str) -> None:
        self._bar.clear()
        for part, stream in list(self._streams.items()):
            with self._may_be_lost(part):
                print(line, file=stream, flush=True)
        self._bar.refresh()

    @contextmanager
    def _may_be_lost(self, part: str) -> Iterator[None]:
        """Go on without a part of the log if it cannot be written, with one note about it."""
        try:
            yield
        except OSError as error:
            self.lost = self.lost or error
            stream = self._streams.pop(part, None)
            if part == BOARD:
                self._writer_class = None
                self._writers.clear()
            elif part == OUTPUT:
                discard_output()
            elif stream is not None:
                with suppress(OSError):
                    stream.close()
            with suppress(OSError):  # it may be the same pipe
                text = f"NOTE: {part} cannot be written ({error.strerror or error}); "
                print(text + "training goes on without", file=sys.stderr, flush=True)


def _json_values(stats: Stats) -> dict[str, float | None]:
    """Return rounded values for JSON, with None for infinity and NaN."""
    return {name: json_number(rounded(name, value)) for name, value in stats.items()}


def json_number(value: float) -> float | None:
    """Return None for infinity and NaN, which JSON does not have, else the value."""
    return value if math.isfinite(value) else None


def _stamped(name: str, text: str) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} | INFO | {name} | {text}"


def be_silent(text: str) -> None:
    """Print nothing."""


def add_metrics(
    sums: dict[str, tuple[Any, float]], other_sums: Mapping[str, tuple[Any, float]], weight: int = 1
) -> None:
    """Add weighted (sum, count) pairs by name, in place. Sums on a device stay there."""
    for name, (total, count) in other_sums.items():
        old_total, old_count = sums.get(name, (0, 0))
        sums[name] = (old_total + weight * total, old_count + weight * count)


def metric_averages(sums: Mapping[str, tuple[Any, float]]) -> dict[str, float]:
    """Return the averages, losses in bits, and ``ppl`` = 2^nll_loss after the losses."""
    averages = {}
    for name, (total, count) in sums.items():
        average = total / count if count else math.nan
        if name.endswith(LOSS_SUFFIX):
            average /= math.log(2)
        averages[name] = average
        if name == "nll_loss":
            averages["ppl"] = math.inf
            if average < 1000:
                averages["ppl"] = 2.0**average
    return averages


def rounded(name: str, value: float) -> float:
    """Return the value rounded for the log."""
    if isinstance(value, int) or name in EXACT or not math.isfinite(value):
        return value
    return round(value, DECIMALS.get(name, DEFAULT_DECIMALS) or None)


def format_value(name: str, value: float) -> str:
    """Return the value as text, for example ``3.142`` or ``1.25e-07``."""
    value = rounded(name, value)
    return str(value) if isinstance(value, int) else f"{value:g}"

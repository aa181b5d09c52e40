"""The log of a training: averages and lines in fairseq's format, and curves for TensorBoard."""

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from relu_nmt.errors import ConfigError, needing
from relu_nmt.io.process import discard_output
from relu_nmt.training.config import TrainerConfig

UPDATES_TAG = "train_inner"
EPOCH_TAG = "train"
# Significant digits: there are many values, and small ones among them.
TELEMETRY_DIGITS = 4
# Averages with this ending are losses: kept in nats, reported in bits as in fairseq.
LOSS_SUFFIX = "loss"
DECIMALS = {"ppl": 2, "wps": 1, "ups": 2, "wpb": 1, "bsz": 1, "clip": 1, "train_wall": 0, "wall": 0}
EXACT = ("lr", "loss_scale")
DEFAULT_DECIMALS = 3
OUTPUT, FILE, BOARD = "standard output", "the log file", "TensorBoard's files"
"""The parts of a log, as a note on the loss of one names it."""

Stats = Mapping[str, float]


@dataclass
class Meters:
    """Sums over some updates: since the last log line, or since the start of the epoch.

    Args:
        sums: (sum, count) by metric.
        tokens: number of tokens without padding.
        sentences: number of sentences (images).
        gradient_norms: sum of the gradient norms.
        clips: number of updates whose gradient was clipped.
        seconds: training time, without validation and saving.
    """

    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    tokens: float = 0.0
    sentences: float = 0.0
    updates: int = 0
    gradient_norms: float = 0.0
    clips: int = 0
    seconds: float = 0.0

    def add(self, other: "Meters") -> None:
        """Add the sums over further updates."""
        add_metrics(self.sums, other.sums)
        self.tokens += other.tokens
        self.sentences += other.sentences
        self.updates += other.updates
        self.gradient_norms += other.gradient_norms
        self.clips += other.clips
        self.seconds += other.seconds

    def stats(
        self, num_updates: int, lr: float, loss_scale: float | None, wall: float
    ) -> dict[str, float]:
        """Return the averages for the log, in fairseq's order.

        Losses are in bits, speeds per second, sizes per update; ``wall`` is the time of running in
        seconds. ``loss_scale`` is None unless the dtype is float16.
        """
        updates, seconds = max(1, self.updates), max(self.seconds, 1e-9)
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
    """Log lines and TensorBoard curves from the same numbers.

    In ``json`` every line is a JSON object.

    Args:
        config: format of the log, and its file.
        quiet: log nothing (all processes but the first).
        shown: print on standard output; the log file and TensorBoard do not depend on it.

    Attributes:
        lost: the first error that ended a part of the log, such as a full disk or a closed pipe.
            Training goes on without that part.

    Raises:
        ConfigError: the log file cannot be written.
        MissingExtraError: ``--tensorboard-logdir`` without tensorboard installed.

    Example:
        >>> log = TrainingLog(TrainerConfig(log_format="json"))
        >>> log.validation(1, "valid", {"loss": 3.14159, "num_updates": 7})
        {"epoch": 1, "valid_loss": 3.142, "valid_num_updates": 7}
    """

    def __init__(self, config: TrainerConfig, quiet: bool = False, shown: bool = True) -> None:
        self._config = config
        self.lost: OSError | None = None
        default = "tqdm" if sys.stderr.isatty() and not config.no_progress_bar else "simple"
        self._format = config.log_format or default
        self._bar: Any = None
        # Streams of lines; None stands for the standard output of the moment.
        self._streams: dict[str, TextIO | None] = {OUTPUT: None} if shown and not quiet else {}
        if config.log_file and not quiet:
            self._streams[FILE] = _open_file(config.log_file)
        board = config.tensorboard_logdir
        self._writer_class = _summary_writer(board) if board and not quiet else None
        # TensorBoard has one run per tag (train_inner, train, valid), as in fairseq.
        self._writers: dict[str, Any] = {}
        self._first_update = 0

    def say(self, text: str, name: str = "train") -> None:
        """Print a remark."""
        if self._format == "json":
            self._write(json.dumps({"message": text}, ensure_ascii=False))
        else:
            self._write(_stamped(name, text))

    def begin(self, num_updates: int) -> None:
        """Begin after ``num_updates`` updates, which hides later points of an earlier run."""
        self._first_update = num_updates + 1

    def begin_epoch(self, epoch: int, done: int, total: int) -> None:
        """Begin an epoch of ``total`` updates, ``done`` of which were made before a resume."""
        if self._format == "tqdm" and OUTPUT in self._streams:
            from tqdm import tqdm

            self._bar = tqdm(
                initial=done, total=total, desc=f"epoch {epoch:03d}", leave=False, file=sys.stderr
            )

    def advance(self) -> None:
        """Move the bar on by one update."""
        if self._bar is not None:
            self._bar.update()

    def updates(self, epoch: int, position: int, total: int, stats: Stats) -> None:
        """Print the averages since the last such line, after ``position`` of ``total`` updates."""
        if self._format == "json":
            done = round(epoch - 1 + position / total, 3)
            self._write(json.dumps({"epoch": epoch, "update": done, **_json_values(stats)}))
        elif self._format == "simple":
            values = ", ".join(f"{n}={format_value(n, v)}" for n, v in stats.items())
            text = f"epoch {epoch:03d}:  {position:5d} / {total:d} {values}"
            self._write(_stamped("train_inner", text))
        elif self._bar is not None:
            self._bar.set_postfix({n: format_value(n, v) for n, v in stats.items()}, refresh=True)
        self._add_curves(UPDATES_TAG, stats)

    def wants_telemetry(self, num_updates: int) -> bool:
        """Return True if the objective's telemetry of this update is due and would be shown."""
        interval = self._config.telemetry_interval
        shown = self._writer_class is not None or self._prints_telemetry
        return shown and interval > 0 and num_updates % interval == 0

    def telemetry(self, epoch: int, num_updates: int, scalars: Stats) -> None:
        """Log an objective's scalars as curves, and as an object of JSON in that format."""
        if self._prints_telemetry:
            values = {
                name: float(f"{value:.{TELEMETRY_DIGITS}g}") if math.isfinite(value) else None
                for name, value in scalars.items()
            }
            line = {"epoch": epoch, "num_updates": num_updates, "telemetry": values}
            self._write(json.dumps(line))
        self._add_curves(UPDATES_TAG, {**scalars, "num_updates": num_updates})

    @property
    def _prints_telemetry(self) -> bool:
        return self._format == "json" and bool(self._streams)

    def end_epoch(self, epoch: int, stats: Stats) -> None:
        """Print the averages of an epoch."""
        self._close_bar()
        self._summary(epoch, EPOCH_TAG, "", stats)

    def validation(self, epoch: int, subset: str, stats: Stats) -> None:
        """Print the scores of a validation set."""
        self._summary(epoch, subset, f"valid on '{subset}' subset | ", stats)

    def close(self) -> None:
        """Close the bar, the log file and TensorBoard's files."""
        self._close_bar()
        if (file := self._streams.pop(FILE, None)) is not None:
            with self._may_be_lost(FILE):
                file.close()
        with self._may_be_lost(BOARD):
            for writer in self._writers.values():
                writer.close()
        self._writers.clear()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

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
        if self._bar is not None:
            self._bar.clear()
        for part, stream in list(self._streams.items()):
            with self._may_be_lost(part):
                print(line, file=stream, flush=True)
        if self._bar is not None:
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
            elif part == OUTPUT:
                discard_output()
            elif stream is not None:
                with suppress(OSError):
                    stream.close()
            with suppress(OSError):  # it may be the same pipe
                text = f"NOTE: {part} cannot be written ({error.strerror or error}); "
                print(text + "training goes on without", file=sys.stderr, flush=True)


def _summary_writer(folder: str) -> type:
    """Return TensorBoard's class that writes curves, and make the folder."""
    package = "the package tensorboard; install it with pip install tensorboard"
    with needing(f"--tensorboard-logdir needs {package}"):
        from torch.utils.tensorboard import SummaryWriter
    # Make the folder now, so that an error comes before the training.
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--tensorboard-logdir {folder}: cannot be made ({error.strerror})"
        ) from error
    return SummaryWriter


def _open_file(path: str) -> TextIO:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--log-file {path}: cannot be written ({error.strerror})") from error


def _json_values(stats: Stats) -> dict[str, float | None]:
    """Return rounded values for JSON, with None for infinity and NaN."""
    return {n: rounded(n, v) if math.isfinite(v) else None for n, v in stats.items()}


def _stamped(name: str, text: str) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} | INFO | {name} | {text}"


def add_metrics(sums: dict[str, tuple[Any, float]], more: Mapping[str, tuple[Any, float]]) -> None:
    """Add (sum, count) pairs by name, in place; sums on a device stay there."""
    for name, (total, count) in more.items():
        old_total, old_count = sums.get(name, (0, 0))
        sums[name] = (old_total + total, old_count + count)


def metric_averages(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return the averages, losses in bits, and ``ppl`` = 2^nll_loss after the losses."""
    averages = {}
    for name, (total, count) in sums.items():
        average = total / count if count else math.nan
        averages[name] = average / math.log(2) if name.endswith(LOSS_SUFFIX) else average
        if name == "nll_loss":
            bits = averages[name]
            averages["ppl"] = 2.0**bits if bits < 1000 else math.inf
    return averages


def rounded(name: str, value: float) -> float:
    """Return the value rounded for the log."""
    if isinstance(value, int) or name in EXACT or not math.isfinite(value):
        return value
    decimals = DECIMALS.get(name, DEFAULT_DECIMALS)
    return round(value, decimals) if decimals else round(value)


def format_value(name: str, value: float) -> str:
    """Return the value as text, for example ``3.142`` or ``1.25e-07``."""
    value = rounded(name, value)
    return str(value) if isinstance(value, int) else f"{value:g}"

"""The log of a training: lines in the shapes that fairseq prints, and curves for TensorBoard."""

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from relu_nmt.errors import ConfigError, MissingExtraError
from relu_nmt.training.config import LoggingConfig
from relu_nmt.training.meters import format_value, rounded

UPDATES_TAG = "train_inner"
EPOCH_TAG = "train"
# Significant digits: there are many values, and small ones among them.
TELEMETRY_DIGITS = 4

Stats = Mapping[str, float]


class TrainingLog:
    """Log lines and TensorBoard curves from the same numbers.

    In ``json`` every line is a JSON object.

    Args:
        config: form of the log and the file.
        quiet: log nothing (all processes but the first).
        shown: print on standard output; the log file and TensorBoard do not depend on it.

    Raises:
        ConfigError: the log file cannot be written.
        MissingExtraError: tensorboard is wanted but not installed.

    Example:
        >>> log = TrainingLog(LoggingConfig(log_format="json"))
        >>> log.validation(1, "valid", {"loss": 3.14159, "num_updates": 7})
        {"epoch": 1, "valid_loss": 3.142, "valid_num_updates": 7}
    """

    def __init__(self, config: LoggingConfig, quiet: bool = False, shown: bool = True) -> None:
        self._config = config
        self._shown = shown and not quiet
        self._format = config.log_format or _default_format(config)
        self._bar: Any = None
        self._file = _open_file(config.log_file) if config.log_file and not quiet else None
        self._board = TensorBoardLog(None if quiet else config.tensorboard_logdir)

    def say(self, text: str, name: str = "train") -> None:
        """Print a remark."""
        if self._format == "json":
            self._write(json.dumps({"message": text}, ensure_ascii=False))
        else:
            self._write(_stamped(name, text))

    def begin(self, num_updates: int) -> None:
        """Begin or go on: curves of an earlier run beyond ``num_updates`` are hidden."""
        self._board.begin(num_updates)

    def begin_epoch(self, epoch: int, done: int, total: int) -> None:
        """Begin an epoch of ``total`` updates, ``done`` of which were made before a resume."""
        if self._format == "tqdm" and self._shown:
            from tqdm import tqdm

            self._bar = tqdm(
                initial=done, total=total, desc=f"epoch {epoch:03d}", leave=False, file=sys.stderr
            )

    def advance(self) -> None:
        """Move the bar on by one update."""
        if self._bar is not None:
            self._bar.update()

    def updates(self, epoch: int, position: int, total: int, stats: Stats) -> None:
        """Print the averages since the last such line.

        Args:
            epoch: from 1.
            position: updates made in this epoch.
            total: updates of this epoch.
            stats: values by name.
        """
        if self._format == "json":
            done = round(epoch - 1 + position / total, 3)
            self._write_json({"epoch": epoch, "update": done, **_json_values(stats)})
        elif self._format == "simple":
            values = ", ".join(f"{n}={format_value(n, v)}" for n, v in stats.items())
            text = f"epoch {epoch:03d}:  {position:5d} / {total:d} {values}"
            self._write(_stamped("train_inner", text))
        elif self._bar is not None:
            self._bar.set_postfix({n: format_value(n, v) for n, v in stats.items()}, refresh=True)
        self._board.add(UPDATES_TAG, stats)

    def wants_telemetry(self, num_updates: int) -> bool:
        """Say whether the objective's telemetry of this update is logged.

        It costs time, so it is sampled, and left out where nothing would show it.
        """
        interval = self._config.telemetry_interval
        shown = self._board.active or self._prints_telemetry
        return shown and interval > 0 and num_updates % interval == 0

    def telemetry(self, epoch: int, num_updates: int, scalars: Stats) -> None:
        """Log an objective's scalars: one object of JSON; the other forms have no place."""
        if self._prints_telemetry:
            values = {
                name: float(f"{value:.{TELEMETRY_DIGITS}g}") if math.isfinite(value) else None
                for name, value in scalars.items()
            }
            self._write_json({"epoch": epoch, "num_updates": num_updates, "telemetry": values})
        self._board.add(UPDATES_TAG, {**scalars, "num_updates": num_updates})

    @property
    def _prints_telemetry(self) -> bool:
        return self._format == "json" and (self._shown or self._file is not None)

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
        if self._file is not None:
            self._file.close()
            self._file = None
        self._board.close()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _summary(self, epoch: int, name: str, title: str, stats: Stats) -> None:
        if self._format == "json":
            named = {f"{name}_{key}": value for key, value in _json_values(stats).items()}
            self._write_json({"epoch": epoch, **named})
        elif self._format != "none":
            told = " | ".join(f"{n} {format_value(n, v)}" for n, v in stats.items())
            self._write(_stamped(name, f"epoch {epoch:03d} | {title}{told}"))
        self._board.add(name, stats)

    def _write_json(self, values: Mapping[str, Any]) -> None:
        self._write(json.dumps(values))

    def _write(self, line: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        if self._shown:
            print(line, flush=True)
        if self._bar is not None:
            self._bar.refresh()
        if self._file is not None:
            print(line, file=self._file, flush=True)


class TensorBoardLog:
    """One run per tag (``train_inner``, ``train``, ``valid``) under a folder, as in fairseq.

    Args:
        folder: the folder; None writes nothing.

    Raises:
        ConfigError: the folder cannot be made.
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._first_update = 0
        self._writers: dict[str, Any] = {}
        if not folder:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "--tensorboard-logdir needs the package tensorboard; install it with "
                "pip install tensorboard"
            ) from error
        self._writer_class = SummaryWriter
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--tensorboard-logdir {folder}: cannot be made ({error.strerror})"
            ) from error

    @property
    def active(self) -> bool:
        """Whether anything is written."""
        return bool(self._folder)

    def begin(self, num_updates: int) -> None:
        """Hide what an earlier run wrote after ``num_updates``; comes before :meth:`add`."""
        self._first_update = num_updates + 1

    def add(self, tag: str, values: Stats) -> None:
        """Write the finite values as curves over ``num_updates``, which is one of them."""
        if not self._folder:
            return
        if tag not in self._writers:
            self._writers[tag] = self._writer_class(
                str(Path(self._folder) / tag), purge_step=self._first_update
            )
        for name, value in values.items():
            if name != "num_updates" and math.isfinite(value):
                self._writers[tag].add_scalar(name, value, int(values["num_updates"]))
        self._writers[tag].flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def _open_file(path: str) -> TextIO:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--log-file {path}: cannot be written ({error.strerror})") from error


def _default_format(config: LoggingConfig) -> str:
    return "tqdm" if sys.stderr.isatty() and not config.no_progress_bar else "simple"


def _json_values(stats: Stats) -> dict[str, float | None]:
    """Return what JSON can hold: it has no infinity and no NaN."""
    return {n: rounded(n, v) if math.isfinite(v) else None for n, v in stats.items()}


def _stamped(name: str, text: str) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} | INFO | {name} | {text}"

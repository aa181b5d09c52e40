"""The log on the screen and in ``--log-file``, in the shapes that fairseq prints."""

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from relu_nmt.errors import ConfigError
from relu_nmt.training.config import LoggingConfig
from relu_nmt.training.meters import format_value, rounded

Stats = Mapping[str, float]
TELEMETRY_DIGITS = 4
"""Significant digits: there are many numbers, and small ones among them."""


class Progress:
    """Prints log lines; in ``json`` every line is a JSON object.

    Args:
        config: form of the log and the file.
        quiet: print nothing (all processes but the first).
        stream: where to print; standard output by default.
        shown: whether to print at all, or only to write the file.

    Raises:
        ConfigError: the log file cannot be written.

    Example:
        >>> progress = Progress(LoggingConfig(log_format="json"))
        >>> progress.validation(1, "valid", {"loss": 3.14159, "num_updates": 7})
        {"epoch": 1, "valid_loss": 3.142, "valid_num_updates": 7}
    """

    def __init__(
        self,
        config: LoggingConfig,
        quiet: bool = False,
        stream: TextIO | None = None,
        shown: bool = True,
    ) -> None:
        self._quiet = quiet
        self._shown = shown
        self._stream = stream
        self._format = config.log_format or _default_format(config)
        self._bar: Any = None
        self._file: TextIO | None = None
        if config.log_file and not quiet:
            try:
                Path(config.log_file).parent.mkdir(parents=True, exist_ok=True)
                self._file = open(config.log_file, "a", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise ConfigError(
                    f"--log-file {config.log_file}: cannot be written ({error.strerror})"
                ) from error

    def message(self, text: str, name: str = "train") -> None:
        """Print a remark."""
        if self._format == "json":
            self._write(json.dumps({"message": text}, ensure_ascii=False))
        else:
            self._write(_stamped(name, text))

    def begin_epoch(self, epoch: int, done: int, total: int) -> None:
        """Begin an epoch of ``total`` updates, ``done`` of which were made before a resume."""
        if self._format == "tqdm" and self._shown and not self._quiet:
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

    @property
    def shows_telemetry(self) -> bool:
        """Whether :meth:`telemetry` prints anything."""
        printed = self._shown or self._file is not None
        return self._format == "json" and printed and not self._quiet

    def telemetry(self, epoch: int, num_updates: int, scalars: Stats) -> None:
        """Print an objective's scalars as one object of JSON; the other forms have no place."""
        if self.shows_telemetry:
            values = {
                name: float(f"{value:.{TELEMETRY_DIGITS}g}") if math.isfinite(value) else None
                for name, value in scalars.items()
            }
            self._write_json({"epoch": epoch, "num_updates": num_updates, "telemetry": values})

    def end_epoch(self, epoch: int, stats: Stats) -> None:
        """Print the averages of an epoch."""
        self.close_bar()
        self._summary(epoch, "train", "", stats)

    def validation(self, epoch: int, subset: str, stats: Stats) -> None:
        """Print the scores of a validation set."""
        self._summary(epoch, subset, f"valid on '{subset}' subset | ", stats)

    def close_bar(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def close(self) -> None:
        """Close the bar and the log file."""
        self.close_bar()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _summary(self, epoch: int, name: str, title: str, stats: Stats) -> None:
        if self._format == "json":
            values = {f"{name}_{key}": value for key, value in _json_values(stats).items()}
            self._write_json({"epoch": epoch, **values})
        elif self._format != "none":
            values = " | ".join(f"{n} {format_value(n, v)}" for n, v in stats.items())
            self._write(_stamped(name, f"epoch {epoch:03d} | {title}{values}"))

    def _write_json(self, values: Mapping[str, Any]) -> None:
        self._write(json.dumps(values))

    def _write(self, line: str) -> None:
        if self._quiet:
            return
        stream = self._stream or sys.stdout
        if self._bar is not None:
            self._bar.clear()
        if self._shown:
            print(line, file=stream, flush=True)
        if self._bar is not None:
            self._bar.refresh()
        if self._file is not None:
            print(line, file=self._file, flush=True)


def _default_format(config: LoggingConfig) -> str:
    return "tqdm" if sys.stderr.isatty() and not config.no_progress_bar else "simple"


def _json_values(stats: Stats) -> dict[str, float | None]:
    """Return what JSON can hold: it has no infinity and no NaN."""
    return {n: rounded(n, v) if math.isfinite(v) else None for n, v in stats.items()}


def _stamped(name: str, text: str) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} | INFO | {name} | {text}"

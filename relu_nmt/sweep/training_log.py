"""What the log of a training (``--log-format json``) tells about it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOT_FINITE = "not finite"
GPU_MEMORY = re.compile(r"peak GPU memory: ([\d,]+) bytes")
DONE = re.compile(r"done training in ([\d.]+) seconds")
TAIL_BYTES = 8192


@dataclass(frozen=True)
class TrainingSummary:
    """The course of a training.

    Args:
        updates: number of updates made; None if the log does not tell.
        train_loss: base 2, with smoothing and regulariser, mean since the log line before.
        valid_nll: base 2, of the last validation.
        tokens_per_second: target tokens without padding, validation and saving not counted.
        updates_per_second: likewise.
        seconds: wall time of training, validation and saving included, over all runs.
        gpu_memory: most memory that tensors took on a GPU, in bytes.
    """

    updates: int | None = None
    train_loss: float | None = None
    valid_nll: float | None = None
    tokens_per_second: float | None = None
    updates_per_second: float | None = None
    seconds: float | None = None
    gpu_memory: int | None = None


def read_training_log(path: Path) -> TrainingSummary:
    """Return what a log tells; a log that breaks off, or that of several runs, is no mistake.

    Args:
        path: file with a JSON object a line and other lines between them.
    """
    found: dict[str, Any] = {}
    stretches, epochs = _Speeds(""), _Speeds("train_")
    for line in _objects(path):
        for name, value in line.items():
            if name.endswith("num_updates"):
                found["updates"] = value
            elif name == "valid_nll_loss":
                found["valid_nll"] = value
        if "update" in line:
            found["train_loss"] = line.get("loss")
            stretches.add(line)
        elif "train_loss" in line:
            found["train_loss"] = line["train_loss"]
            epochs.add(line)
        message = str(line.get("message", ""))
        if match := DONE.match(message):
            found["seconds"] = float(match[1])
        if match := GPU_MEMORY.search(message):
            found["gpu_memory"] = int(match[1].replace(",", ""))
    return TrainingSummary(**found, **(stretches.per_second() or epochs.per_second()))


class _Speeds:
    """Sums of the updates, tokens and seconds between log lines.

    Args:
        prefix: of the names in the lines.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._last = 0
        self._parts: list[tuple[float, float, float]] = []

    def add(self, line: dict[str, Any]) -> None:
        """Take in the stretch that a line tells of."""
        names = (f"{self._prefix}{name}" for name in ("num_updates", "wpb", "wps"))
        number, wpb, wps = (line.get(name) for name in names)
        if not (number and wpb and wps):
            return
        updates, self._last = number - self._last, number
        if updates > 0:  # else a resumed training repeats some
            # Not by ups, of which the log has two decimals only.
            tokens = wpb * updates
            self._parts.append((updates, tokens, tokens / wps))

    def per_second(self) -> dict[str, float]:
        """Return the speeds; the first stretch, which pays for warm-up, counts if it is alone."""
        parts = self._parts[1:] or self._parts
        updates, tokens, seconds = (sum(part[i] for part in parts) for i in range(3))
        if not seconds:
            return {}
        return {"updates_per_second": updates / seconds, "tokens_per_second": tokens / seconds}


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("{"):
                    try:
                        value = json.loads(line)
                    except ValueError:
                        continue
                    if isinstance(value, dict):
                        yield value
    except FileNotFoundError:
        return


def last_line(path: Path) -> str:
    """Return the last line of a log that is not empty, the message of a JSON line."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().decode("utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    text = next((line.strip() for line in reversed(lines) if line.strip()), "")
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return str(value.get("message", text)) if isinstance(value, dict) else text


def has_diverged(path: Path) -> bool:
    """Say whether a command stopped because a loss, gradient or score was not finite."""
    return NOT_FINITE in last_line(path)

"""Sums and averages for the log, in fairseq's names and units."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relu_nmt.training.update import UpdateResult

# Averages whose names end so are losses: kept in nats, reported in bits as in fairseq.
LOSS_SUFFIX = "loss"
DECIMALS = {
    "ppl": 2,
    "wps": 1,
    "ups": 2,
    "wpb": 1,
    "bsz": 1,
    "clip": 1,
    "train_wall": 0,
    "wall": 0,
}
EXACT = ("lr", "loss_scale")
DEFAULT_DECIMALS = 3


@dataclass
class Meters:
    """Sums over some updates: since the last log line, or since the start of the epoch.

    Args:
        sums: (sum, count) by metric.
        tokens: tokens without padding.
        sentences: sentences (images).
        updates: number of updates.
        gradient_norms: sum of the gradient norms.
        clips: updates whose gradient was clipped.
        seconds: training time, without validation and saving.

    Example:
        >>> meters = Meters()
        >>> from relu_nmt.training.update import UpdatePlan
        >>> plan = UpdatePlan(1, epoch=1, lr=0.5, seed=1)
        >>> meters.add(UpdateResult(plan, {"loss": (6.0, 3.0)}, 3, 1, 0.25, clipped=False), 2.0)
        >>> stats = meters.stats(1, 0.5, None, 2.0)
        >>> stats["wps"], round(stats["loss"], 3)
        (1.5, 2.885)
    """

    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    tokens: float = 0.0
    sentences: float = 0.0
    updates: int = 0
    gradient_norms: float = 0.0
    clips: int = 0
    seconds: float = 0.0

    def add(self, result: UpdateResult, seconds: float) -> None:
        """Take in an update that took ``seconds``."""
        add_metrics(self.sums, result.metrics)
        self.tokens += result.num_tokens
        self.sentences += result.num_sentences
        self.updates += 1
        self.gradient_norms += result.gradient_norm
        self.clips += result.clipped
        self.seconds += seconds

    def stats(
        self, num_updates: int, lr: float, loss_scale: float | None, wall: float
    ) -> dict[str, float]:
        """Return what the log shows, in fairseq's order.

        Losses are in bits, speeds per second, sizes per update.

        Args:
            num_updates: updates made.
            lr: learning rate.
            loss_scale: for float16, None without.
            wall: seconds of running.
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
        if self.clips:
            stats["clip"] = 100.0 * self.clips / updates
        if loss_scale is not None:
            stats["loss_scale"] = loss_scale
        return {**stats, "train_wall": self.seconds, "wall": wall}

    def state(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {**vars(self), "sums": {name: list(pair) for name, pair in self.sums.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Meters":
        """Return the meters that :meth:`state` described."""
        sums = {name: (total, count) for name, (total, count) in state["sums"].items()}
        return cls(**{**state, "sums": sums})


def add_metrics(
    sums: dict[str, tuple[float, float]], more: Mapping[str, tuple[float, float]]
) -> None:
    """Add (sum, count) pairs by name, in place."""
    for name, (total, count) in more.items():
        old_total, old_count = sums.get(name, (0.0, 0.0))
        sums[name] = (old_total + total, old_count + count)


def metric_averages(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return the averages, losses in bits, and ``ppl`` = 2^nll_loss after the losses."""
    averages = {}
    for name, (total, count) in sums.items():
        average = total / count if count else math.nan
        averages[name] = average / math.log(2) if name.endswith(LOSS_SUFFIX) else average
        if name == "nll_loss":
            averages["ppl"] = perplexity(averages[name])
    return averages


def perplexity(bits: float) -> float:
    """Return 2^bits; infinity where that is too large for a number."""
    return 2.0**bits if bits < 1000 else math.inf


def rounded(name: str, value: float) -> float:
    """Return the value as the log shows it."""
    if isinstance(value, int) or name in EXACT or not math.isfinite(value):
        return value
    decimals = DECIMALS.get(name, DEFAULT_DECIMALS)
    return round(value, decimals) if decimals else round(value)


def format_value(name: str, value: float) -> str:
    """Return the value as text, for example ``3.142`` or ``1.25e-07``."""
    value = rounded(name, value)
    return str(value) if isinstance(value, int) else f"{value:g}"

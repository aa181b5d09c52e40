"""Lengths of trainings as a user types them: ``4000u``, ``3e``, ``90s``, ``15m``, ``2h``."""

import math
import re
from dataclasses import dataclass

UPDATES = "u"
EPOCHS = "e"
SECONDS = {"s": 1, "m": 60, "h": 3600}  # seconds of the units of time
TIME_EXAMPLES = "4000u (or 4000) for updates, 90s, 15m or 2h for time"
BUDGET_EXAMPLES = f"{TIME_EXAMPLES}, 3e or 0.5e for epochs"
LIMITS = (
    *("max_update", "max_epoch", "stop_time_hours"),
    *("total_num_update", "lr_period_updates"),
)
"""Settings that say when a training or its schedule ends, as a budget does."""
PACED = (
    *LIMITS,
    *("warmup_updates", "warmup_epochs", "ema_decay", "log_interval"),
    *("validate_interval", "validate_interval_updates", "save_interval"),
)
"""Settings that follow from a budget's length. A longer budget sets them anew."""


@dataclass(frozen=True)
class Budget:
    """A number of updates, epochs, seconds, minutes or hours.

    Example:
        >>> Budget.parse("1.5h").seconds, Budget.parse("4000").updates, Budget.parse("0.5e").epochs
        (5400.0, 4000, 0.5)
    """

    number: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read a text as in ``BUDGET_EXAMPLES`` (ValueError: another text)."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([usmhe]?)", text.strip().lower())
        if match is None or not 0 < float(match[1]) < math.inf:
            raise ValueError(f"'{text}': expected {BUDGET_EXAMPLES}")
        unit = match[2] or UPDATES
        if unit == UPDATES and "." in match[1]:
            raise ValueError(f"'{text}': updates are whole numbers; expected {BUDGET_EXAMPLES}")
        return cls(float(match[1]), unit)

    @property
    def seconds(self) -> float | None:
        """The budget in seconds. None if it counts updates or epochs."""
        if self.unit not in SECONDS:
            return None
        return self.number * SECONDS[self.unit]

    @property
    def updates(self) -> int | None:
        """The budget in updates. None if it counts something else."""
        return int(self.number) if self.unit == UPDATES else None

    @property
    def epochs(self) -> float | None:
        """The budget in epochs. None if it counts something else."""
        return self.number if self.unit == EPOCHS else None


def in_words(seconds: float) -> str:
    """Return a duration in words.

    Example:
        >>> in_words(42), in_words(600), in_words(9000)
        ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"

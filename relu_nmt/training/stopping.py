"""When training ends: limits, no more improvement, a signal."""

import math
import signal
import threading
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any

from relu_nmt.training.config import RunConfig

SECONDS_PER_HOUR = 3600


class SignalWatch:
    """Notes SIGINT and SIGTERM, so that the update can be finished and a checkpoint written.

    A second SIGINT interrupts at once. Only the main thread of a program can receive signals;
    elsewhere nothing is changed.

    Example:
        >>> with SignalWatch() as watch:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(watch.received)
        15
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._old: dict[int, object] = {}

    def __enter__(self) -> "SignalWatch":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.received = number


class Patience:
    """Counts validations since the best score.

    Args:
        patience: validations without a better score after which to stop; 0 or less: never.
        maximize: whether a larger score is better.

    Example:
        >>> patience = Patience(2, maximize=True)
        >>> [patience.exhausted_by(score) for score in (1.0, 3.0, 3.0, 2.0)]
        [False, False, False, True]
    """

    def __init__(self, patience: int, maximize: bool) -> None:
        self._patience = patience
        self._maximize = maximize
        self.best: float | None = None
        self.bad_validations = 0

    def exhausted_by(self, score: float) -> bool:
        """Take in the score of a validation; return whether to stop."""
        if not math.isnan(score) and (
            self.best is None or (score > self.best if self._maximize else score < self.best)
        ):
            self.best = score
            self.bad_validations = 0
        else:
            self.bad_validations += 1
        return 0 < self._patience <= self.bad_validations

    def state(self) -> dict[str, Any]:
        """Return the best score and the validations since."""
        return {"best": self.best, "bad_validations": self.bad_validations}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.best = state["best"]
        self.bad_validations = state["bad_validations"]


def limit_reached(config: RunConfig, num_updates: int, epoch: int) -> str | None:
    """Return why training must not go on, or None.

    Args:
        config: the limits.
        num_updates: updates made.
        epoch: the epoch that the next update belongs to, from 1.
    """
    if config.max_update and num_updates >= config.max_update:
        return f"{num_updates} updates are made (--max-update {config.max_update})"
    if config.max_epoch and epoch > config.max_epoch:
        return f"epoch {epoch - 1} is finished (--max-epoch {config.max_epoch})"
    return None


def time_is_up(config: RunConfig, seconds: float) -> bool:
    """Say whether ``seconds`` of running have used up ``--stop-time-hours``."""
    return 0 < config.stop_time_hours * SECONDS_PER_HOUR <= seconds

"""When training ends: limits, a signal."""

import signal
import threading
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
        self._old: dict[int, Any] = {}

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
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.received = number


def limit_reached(config: RunConfig, num_updates: int, epoch: int, out_of_time: bool) -> str | None:
    """Return why training must not go on, or None.

    Args:
        config: the limits.
        num_updates: updates made.
        epoch: the epoch that the next update belongs to, from 1.
        out_of_time: the processes have found that :func:`time_is_up`.
    """
    if config.max_update and num_updates >= config.max_update:
        return f"{num_updates} updates are made (--max-update {config.max_update})"
    if config.max_epoch and epoch > config.max_epoch:
        return f"epoch {epoch - 1} is finished (--max-epoch {config.max_epoch})"
    if out_of_time:
        return f"the time is up (--stop-time-hours {config.stop_time_hours:g})"
    return None


def time_is_up(config: RunConfig, seconds: float) -> bool:
    """Say whether ``seconds`` of running have used up ``--stop-time-hours``."""
    return 0 < config.stop_time_hours * SECONDS_PER_HOUR <= seconds

"""The progress of long work on standard error: bars on a terminal, lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from tqdm import tqdm

from relu_nmt.errors import printable

SECONDS_BETWEEN_LINES = 10.0
SECONDS_UNTIL_WAITING = 15.0  # pause after which a bar or line shows that the work still runs

_hidden: ContextVar[bool] = ContextVar("hidden", default=False)


@contextmanager
def hidden_progress(hidden: bool = True) -> Iterator[None]:
    """Hide each :func:`progress_bar` that begins inside the block, if ``hidden``."""
    token = _hidden.set(hidden or _hidden.get())
    try:
        yield
    finally:
        _hidden.reset(token)


def progress_is_hidden() -> bool:
    """Return whether this block runs inside :func:`hidden_progress`."""
    return _hidden.get()


def bars_are_drawn() -> bool:
    """Return whether standard error is a terminal, and progress is not hidden."""
    return sys.stderr.isatty() and not _hidden.get()


@dataclass
class _Progress:
    """The progress of some work: a bar, or else lines."""

    label: str
    total: int
    unit: str
    write: Callable[[str], object]
    done: int = 0
    bar: "tqdm[Any] | None" = None

    def __post_init__(self) -> None:
        self.started = self.last_line = time.monotonic()
        self.is_hidden = _hidden.get()
        self.ended = threading.Event()

    def print_line(self) -> None:
        """Print a line with the share done, unless there is a bar or progress is hidden."""
        self.last_line = time.monotonic()
        if self.bar is None and not self.is_hidden:
            unit = self.unit.removesuffix("es" if self.unit.endswith("ches") else "s")
            size = f"{self.total:,} {unit if self.total == 1 else self.unit}"
            if self.unit == "B":
                size = f"{self.total / 1e6:,.1f} MB"
            share = self.done / max(1, self.total)
            seconds = time.monotonic() - self.started
            self.write(f"{self.label}: {share:.0%} of {size}, {seconds:.1f} s")

    def advance(self, number: int) -> None:
        """Add to the amount done, up to the total."""
        number = min(number, self.total - self.done)
        self.done += number
        if self.bar is not None:
            self.bar.update(number)
        elif time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
            self.print_line()

    def show_waiting(self) -> None:
        """Refresh the bar, or print a line, whenever work has stood still."""
        while not self.ended.wait(SECONDS_UNTIL_WAITING):
            if self.bar is not None:
                self.bar.refresh()
            elif time.monotonic() - self.last_line >= SECONDS_UNTIL_WAITING:
                self.print_line()


@contextmanager
def progress_bar(
    label: str,
    total: int,
    unit: str = "B",
    *,
    shows_waiting: bool = False,
    only_if_slow: bool = False,
    say: Callable[[str], object] | None = None,
) -> Iterator[Callable[[int], object]]:
    """Draw a bar on a terminal, otherwise print a line every ten seconds and one at the end.

    With ``shows_waiting`` a thread shows during long pauses that the work still runs. A block that
    forks processes must not have such a thread. With ``only_if_slow`` there are lines only, and
    none if the work ends before the first is due. The yielded function adds a number to the amount
    done. The unit ``B`` (bytes) is shown in MB.
    """
    write = say or partial(print, file=sys.stderr, flush=True)
    progress = _Progress(printable(label), total, unit, write)
    if bars_are_drawn() and not only_if_slow:
        options = {"desc": progress.label, "unit": unit, "unit_scale": unit == "B"}
        progress.bar = tqdm(total=total, file=sys.stderr, **options)
    # Make the thread a daemon, so that it cannot keep the program alive.
    waiting = threading.Thread(target=progress.show_waiting, daemon=True)
    if shows_waiting:
        waiting.start()
    try:
        yield progress.advance
    finally:
        # Stop the thread before the bar closes, since it may draw.
        progress.ended.set()
        if shows_waiting:
            waiting.join()
        if progress.bar is not None:
            progress.bar.close()
    if not only_if_slow or progress.last_line > progress.started:
        progress.print_line()

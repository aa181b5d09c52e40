"""Progress of long passes over text or sentences, on standard error."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0
SECONDS_UNTIL_WAITING = 15.0
"""Time without progress after which a bar or a line shows that the work still runs."""

_hidden: ContextVar[bool] = ContextVar("hidden", default=False)


@contextmanager
def hidden_progress(hidden: bool = True) -> Iterator[None]:
    """Hide each :func:`progress_bar` that begins inside the block, if ``hidden``.

    Example:
        >>> with hidden_progress(), progress_bar("count", 100) as advance:
        ...     advance(100)
    """
    token = _hidden.set(hidden or _hidden.get())
    try:
        yield
    finally:
        _hidden.reset(token)


def bars_are_drawn() -> bool:
    """Return whether standard error is a terminal, and progress is not hidden."""
    return sys.stderr.isatty() and not _hidden.get()


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

    Args:
        label: name of the work.
        total: size of the work.
        unit: plural of the counted things; bytes (``B``) are shown in MB.
        shows_waiting: also show that the work runs when nothing is done for long, as at a very long
            line. A thread does that, so this is not for a block that forks processes.
        only_if_slow: print lines only, and none if the work ends before the first is due.
        say: prints these lines; by default they go to standard error.

    Yields:
        A function that adds a number to the amount done, up to the total.

    Example:
        >>> with progress_bar("count", 100) as advance:
        ...     advance(100)
    """
    is_hidden, done = _hidden.get(), 0
    started = last_line = time.monotonic()
    bar = None
    if bars_are_drawn() and not only_if_slow:
        bar = tqdm(total=total, desc=label, unit=unit, unit_scale=unit == "B", file=sys.stderr)

    def print_line() -> None:
        nonlocal last_line
        last_line = time.monotonic()
        if bar is None and not is_hidden:
            share, seconds = done / max(1, total), time.monotonic() - started
            size = f"{total:,} {unit}" if unit != "B" else f"{total / 1e6:,.1f} MB"
            text = f"{label}: {share:.0%} of {size}, {seconds:.1f} s"
            if say is None:
                print(text, file=sys.stderr, flush=True)
            else:
                say(text)

    def advance(number: int) -> None:
        nonlocal done
        number = min(number, total - done)  # work that is repeated does not count
        done += number
        if bar is not None:
            bar.update(number)
        elif time.monotonic() - last_line >= SECONDS_BETWEEN_LINES:
            print_line()

    ended = threading.Event()

    def show_waiting() -> None:
        while not ended.wait(SECONDS_UNTIL_WAITING):
            # Refresh the bar, or print a line, when work has stood still.
            if bar is not None:
                bar.refresh()
            elif time.monotonic() - last_line >= SECONDS_UNTIL_WAITING:
                print_line()

    # Make it a daemon, so that it cannot keep the program alive.
    waiting = threading.Thread(target=show_waiting, daemon=True)
    if shows_waiting:
        waiting.start()
    try:
        yield advance
    finally:
        # Stop the thread before the bar closes, since it may draw.
        ended.set()
        if shows_waiting:
            waiting.join()
        if bar is not None:
            bar.close()
    # Print the last line, unless short work should show none.
    if not only_if_slow or last_line > started:
        print_line()

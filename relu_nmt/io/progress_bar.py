"""How far a long pass over text or sentences has come, on standard error."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0

_hidden: ContextVar[bool] = ContextVar("hidden", default=False)


@contextmanager
def hidden_progress(hidden: bool = True) -> Iterator[None]:
    """Let each :class:`ProgressBar` made within show nothing, if ``hidden``.

    Example:
        >>> with hidden_progress(), ProgressBar("count", 100) as progress:
        ...     progress.advance(100)
    """
    token = _hidden.set(hidden or _hidden.get())
    try:
        yield
    finally:
        _hidden.reset(token)


def bars_are_drawn() -> bool:
    """Return whether standard error is a terminal, and progress is not hidden."""
    return sys.stderr.isatty() and not _hidden.get()


class ProgressBar:
    """A bar on a terminal, otherwise a line every ten seconds and one at the end.

    Used as a context manager.

    Args:
        label: what is being done.
        total: its size.
        unit: what is counted: bytes (``B``, shown in MB) or anything else by its plural.

    Example:
        >>> with ProgressBar("count", 100) as progress:
        ...     progress.advance(100)
    """

    def __init__(self, label: str, total: int, unit: str = "B") -> None:
        self._label = label
        self._total = total
        self._unit = unit
        self._done = 0
        self._is_hidden = _hidden.get()
        self._started = self._last_line = time.monotonic()
        self._bar = (
            tqdm(total=total, desc=label, unit=unit, unit_scale=unit == "B", file=sys.stderr)
            if bars_are_drawn()
            else None
        )

    def __enter__(self) -> "ProgressBar":
        return self

    def advance(self, number: int) -> None:
        """Add ``number`` to what is done; what is done again beyond the total does not count."""
        number = min(number, self._total - self._done)
        self._done += number
        if self._bar is not None:
            self._bar.update(number)
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._print_line()

    def _print_line(self) -> None:
        if self._is_hidden:
            return
        seconds = time.monotonic() - self._started
        share = self._done / max(1, self._total)
        size = (
            f"{self._total:,} {self._unit}" if self._unit != "B" else f"{self._total / 1e6:,.1f} MB"
        )
        print(f"{self._label}: {share:.0%} of {size}, {seconds:.1f} s", file=sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif kind is None:
            self._print_line()

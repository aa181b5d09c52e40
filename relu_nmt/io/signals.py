"""The signals at which a program is to save its work and stop."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
STOP_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""What Ctrl-C, a shell, a terminal that is closed and a cluster's queue send."""


def handle_stop_signals(handler: Callable[[int, FrameType | None], Any]) -> dict[int, Any]:
    """Let ``handler`` receive STOP_SIGNALS; what the user had ignored (nohup) stays so.

    SIGINT is heard even so: a shell ignores it for whatever a script starts with ``&``, which
    is about its terminal's Ctrl-C and not about ``kill -INT``.

    Returns:
        The handlers before, by signal, for ``signal.signal``.
    """
    heard = [
        number
        for number in STOP_SIGNALS
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
    ]
    return {number: signal.signal(number, handler) for number in heard}

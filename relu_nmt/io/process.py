"""This process: its streams, signals, cores and threads."""

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from relu_nmt.errors import DataError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""The signals of Ctrl-C, a shell, a closed terminal and a cluster's queue."""
SIGNAL_EXIT_CODE = 128  # the exit code after a signal is this plus its number, as in a shell
THREADS = "OMP_NUM_THREADS"
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
SPIN_COUNT_IDLE = "4000"
SPIN_COUNT_BUSY = "1000"
"""OpenMP spin count before a waiting thread sleeps, on an idle and on a busy machine.

The usual 300,000 keep working threads from cores that other processes share."""
LOAD_FILE = Path("/proc/loadavg")
TASKS_FOLDER = Path("/proc/self/task")
QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
LOOKS = 5  # number of looks at the load of a crowded machine
BETWEEN_LOOKS = 0.02  # in seconds


@contextmanager
def utf8_streams() -> Iterator[None]:
    """Make standard output and standard error UTF-8, and flush the output at the end.

    Bytes of file names that are not UTF-8 come out as they are.

    Raises:
        DataError: standard output is closed.
        OSError: standard output cannot be written. Later output is dropped.
    """
    # Python sets a stream that is closed to None.
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise DataError("standard output is closed; lead it to a file, or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        yield
        sys.stdout.flush()
    except OSError:
        discard_output()
        raise


def discard_output() -> None:
    """Lead standard output to the null device, so that Python's flush at exit cannot fail again."""
    with suppress(OSError, ValueError):  # in tests it may not be a file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def standard_input() -> Any:
    """Return standard input as bytes (DataError: standard input is closed)."""
    if sys.stdin is None:
        raise DataError("standard input is closed; give a text there, or a file")
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # a program has replaced it by something without a file
        return sys.stdin.buffer


@contextmanager
def noting_signals(second_interrupts: bool = True) -> Iterator[list[int]]:
    """Yield a list that records STOP_SIGNALS, except those that the user ignores (nohup).

    SIGINT is recorded even if it is ignored: a shell ignores it for every command that a script
    starts with ``&``. That is about the terminal's Ctrl-C, not about ``kill -INT``. Only the main
    thread receives signals.

    Args:
        second_interrupts: let a second SIGINT raise KeyboardInterrupt.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if second_interrupts and number == signal.SIGINT and signal.SIGINT in received[-1:]:
            raise KeyboardInterrupt
        received.append(number)

    in_main = threading.current_thread() is threading.main_thread()
    earlier_handlers: dict[signal.Signals, Any] = {}
    try:
        for number in STOP_SIGNALS if in_main else ():
            if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                earlier_handlers[number] = signal.signal(number, note)
        yield received
    finally:
        for number, handler in earlier_handlers.items():
            signal.signal(number, handler)


def available_cores() -> int:
    """Return the number of cores that this process may use, the quota of its container included."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    try:
        quota, period = map(int, QUOTA_FILE.read_text("ascii").split())
    except (OSError, ValueError):
        return cores
    return max(1, min(cores, quota // period))


def other_threads() -> int | None:
    """Return the number of other processes' threads that run now, or None if unknown."""
    try:
        running = int(LOAD_FILE.read_text("ascii").split()[3].split("/")[0])
        # The state stands behind the command's name, which may contain spaces.
        num_threads_here = 0
        for file in TASKS_FOLDER.glob("*/stat"):
            state = file.read_text("utf-8", "replace").rpartition(")")[2].split()[0]
            num_threads_here += state == "R"
    except (OSError, ValueError, IndexError):
        return None
    # Subtract this thread at least, and NumPy's, which spin for a moment after the import.
    return max(0, running - max(1, num_threads_here))


def choose_threads() -> None:
    """Let PyTorch use all cores, and its waiting threads sleep soon, unless the user has chosen.

    Call it before PyTorch is imported.
    """
    os.environ.setdefault(THREADS, str(available_cores()))
    if not any(name in os.environ for name in WAITING):
        is_idle = other_threads() == 0
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT_IDLE if is_idle else SPIN_COUNT_BUSY


def crowding_note() -> str:
    """Return a warning if other processes stay on cores that this one needs, or an empty text."""
    try:
        threads = int(os.environ[THREADS])
    except (KeyError, ValueError):
        return ""
    cores = os.cpu_count()
    if cores is None or threads == 1:
        return ""
    num_others = other_threads() or 0
    for _ in range(1, LOOKS):
        if num_others + threads > cores:
            time.sleep(BETWEEN_LOOKS)
            num_others = min(num_others, other_threads() or 0)
    if num_others + threads <= cores:
        return ""
    who = "1 other thread runs" if num_others == 1 else f"{num_others} other threads run"
    return (
        f"NOTE: {who} on the {cores} cores of this machine, and the {threads} "
        f"of this command would wait for each other; {THREADS}={max(1, cores - num_others)} may be "
        "faster"
    )

"""How many threads compute, and how they wait for each other."""

import os
import time
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

from relu_nmt.io.worker_pool import available_cores

THREADS = "OMP_NUM_THREADS"
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
SPIN_COUNT = "1000"
"""Turns that a thread waits for the others before it sleeps. The usual 300,000 keep the others from
their cores where these are shared: 30 products [320, 256] [256, 1024] by 4 threads on 4 cores,
beside 20 busy processes, took more than 40 s; with 10,000 turns 1.9 s or more than 40 s, and with
1,000 turns 0.7 to 1.9 s."""
LOAD_FILE = "/proc/loadavg"
OWN_TASKS = "/proc/self/task"
LOOKS = 5
BETWEEN_LOOKS = 0.02
"""Seconds; a machine that is not crowded is looked at once."""


def choose_threads(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what the user has left open, before PyTorch is imported: it is read only then.

    There are as many threads as cores that this process may use, and they wait with little effort.

    Args:
        environment: its variables.
    """
    environment.setdefault(THREADS, str(available_cores()))
    if not any(name in environment for name in WAITING):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT


def other_threads(load_file: str = LOAD_FILE, own_tasks: str = OWN_TASKS) -> int | None:
    """Return how many threads of other processes run on the machine now; None: nobody knows.

    Args:
        load_file: whose fourth word tells how many threads run.
        own_tasks: a folder for each thread of this process. Those that run do not count: NumPy's
            wait for work with full effort for a moment after it is imported.
    """
    try:
        running = int(Path(load_file).read_text("ascii").split()[3].split("/")[0])
        own = 0
        for file in Path(own_tasks).glob("*/stat"):
            _, _, after_name = file.read_text("utf-8", "replace").rpartition(")")
            own += after_name.split()[0] == "R"
    except (OSError, ValueError, IndexError):
        return None
    return max(0, running - max(1, own))


def crowding_note(
    environment: Mapping[str, str] = os.environ,
    cores: int | None = os.cpu_count(),
    look: Callable[[], int | None] = other_threads,
) -> str:
    """Return a warning if others compute on the cores that the threads need; else nothing.

    Others are those that are there in each of several looks: in one alone may be a command that is
    just ending, or the system at work.

    Args:
        environment: its variables, which tell the number of threads.
        cores: of the machine; None: nobody knows.
        look: returns how many threads of others run now; None: nobody knows.
    """
    try:
        threads = int(environment[THREADS])
    except (KeyError, ValueError):
        return ""
    if cores is None or threads == 1:
        return ""
    others = look() or 0
    for _ in range(1, LOOKS):
        if others + threads > cores:
            time.sleep(BETWEEN_LOOKS)
            others = min(others, look() or 0)
    if others + threads <= cores:
        return ""
    what = "1 other thread runs" if others == 1 else f"{others} other threads run"
    return (
        f"NOTE: {what} on the {cores} cores of this machine, and the {threads} "
        f"of this command would wait for each other; {THREADS}={max(1, cores - others)} may be "
        "faster"
    )

"""How many threads compute, and how they wait for each other."""

import os
from collections.abc import Mapping, MutableMapping
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


def choose_threads(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what the user has left open, before PyTorch is imported: it is read only then.

    There are as many threads as cores that this process may use, and they wait with little effort.

    Args:
        environment: its variables.
    """
    environment.setdefault(THREADS, str(available_cores()))
    if not any(name in environment for name in WAITING):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT


def crowding_note(
    environment: Mapping[str, str] = os.environ,
    cores: int | None = os.cpu_count(),
    load_file: str = LOAD_FILE,
) -> str:
    """Return a warning if others compute on the cores that the threads need; else nothing.

    Args:
        environment: its variables, which tell the number of threads.
        cores: of the machine; None: nobody knows.
        load_file: whose fourth word tells how many threads run on the machine, with this one.
    """
    try:
        threads = int(environment[THREADS])
        others = int(Path(load_file).read_text("ascii").split()[3].split("/")[0]) - 1
    except (OSError, KeyError, ValueError, IndexError):
        return ""
    if cores is None or threads == 1 or others + threads <= cores:
        return ""
    return (
        f"NOTE: {others} other threads run on the {cores} cores of this machine, and the {threads} "
        f"of this command would wait for each other; {THREADS}={max(1, cores - others)} may be "
        "faster"
    )

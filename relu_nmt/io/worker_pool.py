"""A function applied to many tasks by all cores, with the results in order."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from relu_nmt.errors import ReluNmtError

Task = TypeVar("Task")
Result = TypeVar("Result")

QUOTA_FILE = "/sys/fs/cgroup/cpu.max"
"""Where Linux tells a container how much processor time it may use (cgroups, version 2)."""

# Tasks handed out ahead of the one whose result is due, per worker: enough that nobody waits,
# few enough that results do not pile up in memory.
TASKS_AHEAD = 3

FORKS = sys.platform == "linux"
"""Whether workers are forked, which takes milliseconds and copies no memory. Elsewhere than on
Linux it is not safe, and each starts as a program of its own."""


def available_cores(quota_file: str = QUOTA_FILE) -> int:
    """Return the number of cores that this process may use: those of its container at most.

    Args:
        quota_file: gives microseconds of processor time and of the period in which they may be used
            up, in words; ``max`` for no bound.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    try:
        quota, period = map(int, Path(quota_file).read_text("ascii").split())
    except (OSError, ValueError):
        return cores
    return max(1, min(cores, quota // period))


def _end_with_parent() -> None:
    """End this worker when its parent is gone, even if that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _start_worker(prepare: Callable[[Any], None] | None, argument: Any) -> None:
    # Ctrl-C is the parent's to handle: it ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if prepare is not None:
        prepare(argument)


def ordered_map(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    workers: int,
    prepare: Callable[[Any], None] | None = None,
    argument: Any = None,
) -> Iterator[tuple[Task, Result]]:
    """Yield each task and ``function(task)``, in the order of the tasks.

    The memory is bounded: few results wait to be taken, whatever the number of tasks.

    Args:
        function: a function of a module (it is sent to other processes by name).
        tasks: its arguments; small, as they are sent too.
        workers: processes; with 1 everything happens in this one.
        prepare: called first in every worker, for example to set up a dictionary.
        argument: of ``prepare``.

    Raises:
        ReluNmtError: a worker was killed, or ``function`` raised it.
    """
    if workers <= 1:
        if prepare is not None:
            prepare(argument)
        for task in tasks:
            yield task, function(task)
        return
    context = multiprocessing.get_context("fork" if FORKS else "spawn")
    pool = ProcessPoolExecutor(workers, context, _start_worker, (prepare, argument))
    waiting: deque[tuple[Task, Future[Result]]] = deque()
    try:
        for task in tasks:
            waiting.append((task, pool.submit(function, task)))
            if len(waiting) > workers * TASKS_AHEAD:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    except BrokenProcessPool as error:
        raise ReluNmtError(
            "a worker process was killed, perhaps because memory ran out; try fewer --workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

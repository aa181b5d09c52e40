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
from typing import Any, TypeVar

from relu_nmt.errors import ReluNmtError

Task = TypeVar("Task")
Result = TypeVar("Result")

TASKS_AHEAD = 3
"""Tasks per worker that are handed out ahead of the one whose result is due: enough to keep every
worker busy, few enough to keep results out of memory."""

FORKS = sys.platform == "linux"
"""True where workers are forked, which takes milliseconds and copies no memory. On other systems
than Linux forking is not safe, and each worker starts as a program of its own."""


def _end_with_parent() -> None:
    """End this worker when its parent is gone, even if that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _start_worker(prepare: Callable[[Any], None] | None, argument: Any) -> None:
    """Set up a worker process."""
    # The parent handles Ctrl-C and ends the workers.
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
    """Yield each task and ``function(task)``, in the order of the tasks, in bounded memory.

    Args:
        function: a function of a module (other processes find it by name).
        tasks: its arguments, each of which is sent to a process.
        workers: number of processes; 1 does all work in this one.
        prepare: is called first in every worker, for example to set up a dictionary.
        argument: the argument of ``prepare``.

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
            # Wait for the oldest task when enough are queued, to bound memory.
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

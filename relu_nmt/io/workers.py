"""Worker processes that compute a function of many tasks, or one function aside."""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice, repeat
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from relu_nmt.errors import ReluNmtError
from relu_nmt.io.memory import require_memory
from relu_nmt.io.progress import SECONDS_BETWEEN_LINES, bars_are_drawn, progress_is_hidden
from relu_nmt.io.text_lines import Chunk, TextFile

Task = TypeVar("Task")
Key = TypeVar("Key")
Result = TypeVar("Result")

TASKS_AHEAD = 3
"""Tasks per worker that are handed out ahead of the one whose result is due: enough to keep every
worker busy, few enough to keep results out of memory."""
FORKS = sys.platform == "linux"
"""True where workers are forked, which takes milliseconds and copies no memory. On other systems
than Linux forking is not safe, and each worker starts as a new program."""
BYTES_OF_WORKER = 2**25  # least memory of a worker process that it does not share with its parent
OMP_PAUSE_SOFT = 1  # kind of pause of OpenMP 5.0 that ends idle threads and keeps all settings


def ordered_map(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Iterator[tuple[Task, Result]]:
    """Yield each task and ``function(task)``, in the order of the tasks, in bounded memory.

    1 worker is this process. Each worker gets the function once, perhaps as a ``partial`` with a
    dictionary. A forked worker gets it as it is, even if it cannot be pickled.
    """
    if workers <= 1:
        for task in tasks:
            yield task, function(task)
        return
    waiting: deque[tuple[Task, Future[Result]]] = deque()
    remaining = iter(tasks)
    with _worker_pool(workers, function) as pool:
        while True:
            for task in islice(remaining, workers * TASKS_AHEAD + 1 - len(waiting)):
                waiting.append((task, _submit(pool, task)))
            if not waiting:
                break
            first, future = waiting.popleft()
            yield first, future.result()


def map_chunks(
    function: Callable[[tuple[Key, Chunk]], Result],
    texts: Sequence[tuple[Key, TextFile]],
    workers: int,
) -> Iterator[tuple[Key, Iterator[tuple[tuple[Key, Chunk], Result]]]]:
    """Yield the key of each text, with its tasks (key and chunk) and their results in order.

    Read the results of a text to their end before the next text.
    """
    # All texts are one stream of tasks, so that no worker waits at the end of a text.
    tasks = chain.from_iterable(zip(repeat(key), text.readable_chunks()) for key, text in texts)
    results = ordered_map(function, tasks, workers)
    for key, text in texts:
        yield key, islice(results, len(text.chunks))
    next(results, None)  # lets the workers end


@contextmanager
def _worker_pool(workers: int, function: Callable[[Any], Any]) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of workers, which end with the block, at once if it raises."""
    needed = workers * BYTES_OF_WORKER
    require_memory(f"{workers:,} worker processes", needed, "try fewer --workers")
    context = multiprocessing.get_context("fork" if FORKS else "spawn")
    if FORKS:
        _end_openmp_threads()
    pool = ProcessPoolExecutor(workers, context, _start_worker, (function,))
    try:
        yield pool
    except BaseException as error:  # Ctrl-C too
        # A worker may be in the middle of a long task.
        processes = list((pool._processes or {}).values())
        for process in processes:
            process.kill()
        if isinstance(error, BrokenProcessPool):
            pool.shutdown()
            raise ReluNmtError(_why_workers_ended(processes)) from error
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, task: Any) -> Future[Any]:
    """Return the future result of the workers' function for a task.

    The pool starts its workers here. Ctrl-C is blocked until they are forked, and stays blocked in
    them. The parent receives it afterwards and ends the workers.
    """
    if not FORKS:
        return pool.submit(_call_function, task)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(_call_function, task)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _end_openmp_threads() -> None:
    """End the idle threads that OpenMP keeps for this thread.

    A forked process does not have these threads. SentencePiece, which computes with OpenMP, would
    wait for them forever in a worker, or crash. PyTorch starts new threads when it needs them.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if pause is not None:
        pause(OMP_PAUSE_SOFT)


def _why_workers_ended(processes: Iterable[BaseProcess]) -> str:
    """Return the error for processes of which one ended before its work was done."""
    # A negative exit code is a signal. The pool itself terminates the other workers.
    signals = {-(process.exitcode or 0) for process in processes}
    crashes = signals & {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL}
    if crashes:
        return f"a worker process crashed ({signal.Signals(crashes.pop()).name})"
    return "a worker process was killed, perhaps because memory ran out; try fewer --workers"


def call_aside(function: Callable[[], Result], label: str) -> Result:
    """Return ``function()``, computed in another process so that Ctrl-C ends it at once.

    It is for libraries that compute for long without returning to Python. A line every ten seconds
    shows that the work runs. Where a process cannot be forked, the function runs here.
    """
    if not FORKS or multiprocessing.current_process().daemon:
        return function()
    started = time.monotonic()
    # On a terminal, show the time in one line, which a bar of the function may replace.
    end = "\r" if bars_are_drawn() else "\n"
    line = ""
    with _worker_pool(1, lambda _: function()) as pool:
        future = _submit(pool, None)
        while not wait([future], SECONDS_BETWEEN_LINES).done:
            if not progress_is_hidden():
                line = f"{label}: {time.monotonic() - started:.0f} s so far"
                print(line, end=end, file=sys.stderr, flush=True)
        if line and end == "\r":
            print(file=sys.stderr)
        return future.result()


# The function of this process, if it is a worker. A worker's own workers add theirs.
_functions: list[Callable[[Any], Any]] = []


def _call_function(task: Any) -> Any:
    return _functions[-1](task)


def _start_worker(function: Callable[[Any], Any]) -> None:
    # Never collect objects of the parent. Destructors of some libraries join threads that a fork
    # does not have, which ends the process.
    gc.freeze()
    if not FORKS:
        # The parent handles Ctrl-C and ends the workers.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _functions.append(function)


def _end_with_parent() -> None:
    """End this worker when its parent has ended, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

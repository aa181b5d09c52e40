"""Long work: its progress on standard error, worker processes, and jobs on a cluster."""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm import tqdm

from relu_nmt.errors import ConfigError, ReluNmtError, needing, printable
from relu_nmt.io.process import require_memory

if TYPE_CHECKING:
    from submitit import Job
    from submitit.helpers import DelayedSubmission

Task = TypeVar("Task")
Result = TypeVar("Result")
Submit = Callable[[Callable[[], Any], str], "Job[Any]"]  # submits :class:`Work` under a name

SECONDS_BETWEEN_LINES = 10.0
SECONDS_UNTIL_WAITING = 15.0  # pause after which a bar or line shows that the work still runs
TASKS_AHEAD = 3
"""Tasks per worker that are handed out ahead of the one whose result is due: enough to keep every
worker busy, few enough to keep results out of memory."""
FORKS = sys.platform == "linux"
"""True where workers are forked, which takes milliseconds and copies no memory. On other systems
than Linux forking is not safe, and each worker starts as a new program."""
BYTES_OF_WORKER = 2**25  # least memory of a worker process that it does not share with its parent
OMP_PAUSE_SOFT = 1  # kind of pause of OpenMP 5.0 that ends idle threads and keeps all settings
MINUTES_OF_A_WEEK = 7 * 24 * 60

_hidden: ContextVar[bool] = ContextVar("hidden", default=False)


@contextmanager
def hidden_progress(hidden: bool = True) -> Iterator[None]:
    """Hide each :func:`progress_bar` that begins inside the block, if ``hidden``."""
    token = _hidden.set(hidden or _hidden.get())
    try:
        yield
    finally:
        _hidden.reset(token)


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
            if not _hidden.get():
                line = f"{label}: {time.monotonic() - started:.0f} s so far"
                print(line, end=end, file=sys.stderr, flush=True)
        if line and end == "\r":
            print(file=sys.stderr)
        return future.result()


# The function of a worker.
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


@dataclass(frozen=True)
class Work:
    """A function with its argument, as a job that a cluster may interrupt and start again."""

    function: Callable[[Any], Any]
    argument: Any

    def __call__(self) -> Any:
        """Return the function's result, or the error that it raised for the user."""
        try:
            return self.function(self.argument)
        except ReluNmtError as error:
            return error

    def checkpoint(self) -> "DelayedSubmission":
        """Return the job to queue again. submitit calls this at the cluster's signal."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def cluster_queue(name: str, parameters: Mapping[str, Any], folder: Path) -> Submit:
    """Return the function that submits jobs, by submitit, to ``slurm`` or this machine."""
    with needing("--cluster: submitit is not installed; pip install 'relu-nmt[cluster]'"):
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError
    try:
        folder.mkdir(parents=True, exist_ok=True)
        executor = submitit.AutoExecutor(folder, cluster=name)
        executor.update_parameters(**{"timeout_min": MINUTES_OF_A_WEEK, **parameters})
    except (AssertionError, RuntimeError, NameError, TypeError, ValueError, OSError) as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"--cluster {name}, --cluster-parameters: {line}") from error

    def submit(work: Callable[[], Any], job_name: str) -> "Job[Any]":
        try:
            executor.update_parameters(name=job_name)
            return executor.submit(work)
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            raise ReluNmtError(f"--cluster: {job_name} cannot be submitted: {error}") from error

    return submit


def result_of(job: "Job[Any]") -> Any:
    """Wait for a job and return its result (ReluNmtError: its own error, or it has no result)."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        result = job.result()
    except (FailedJobError, UncompletedJobError) as error:
        # Take the last line of a traceback, which names the error.
        last = str(error).strip().splitlines()[-1]
        raise ReluNmtError(f"job {job.job_id}: {last} (see {job.paths.stderr})") from error
    # Raise errors for the user, which jobs return as results.
    if isinstance(result, ReluNmtError):
        raise result
    return result

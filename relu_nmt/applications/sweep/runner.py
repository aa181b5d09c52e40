"""Run the steps of a sweep, each of them once and several at a time, even if some steps fail.

A step runs as a process of this machine, or as a job of a cluster. A job runs a sweep of one step.
"""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

from relu_nmt.applications.sweep import steps
from relu_nmt.applications.sweep.settings import JobsConfig
from relu_nmt.applications.sweep.steps import Command, Step, gpu_names, shown_command
from relu_nmt.config.budgets import in_words
from relu_nmt.errors import DataError, ReluNmtError, reporting
from relu_nmt.io.process import (
    MAXRSS_UNIT,
    SIGNAL_EXIT_CODE,
    describe_environment,
    handle_stop_signals,
)
from relu_nmt.io.safe_write import acquire_lock
from relu_nmt.io.work import Submit, cluster_queue, result_of
from relu_nmt.training.save_dir import TrainingResult

if TYPE_CHECKING:
    from submitit import Job
    from submitit.helpers import DelayedSubmission

POLL_SECONDS = 0.2
RETRY_LOCK_SECONDS = 3.0
LEFT_OUT = "left out"
JOBS_FOLDER = "jobs"


@dataclass(eq=False)
class Task:
    """A step in a run of the sweep."""

    step: Step  # pending until it has ended, then as it is stored
    not_before: float = 0.0  # monotonic time before which a locked step is not tried again
    begun: float | None = None  # monotonic time of its beginning, while it runs
    index: int = 0  # index among the running processes, see :meth:`JobsConfig.environment`
    process: subprocess.Popen[bytes] | None = None  # process of the present command
    job: "Job[int | None] | None" = None  # the job, on a cluster
    is_ending: bool = False  # whether it was asked to end

    def ask_to_end(self) -> None:
        """Ask a running step once to end, so that its training saves a checkpoint."""
        if self.is_ending:
            return
        self.is_ending = True
        if self.process is not None:
            # Popen.terminate would reap a command that has just ended, and lose its exit code.
            os.kill(self.process.pid, signal.SIGTERM)
        elif self.job is not None:
            self.job.cancel()


class StepRunner:
    """A runner of steps. The training of a model runs before its evaluations.

    On a cluster, the jobs hold the locks and write logs and states, so that sweeps on and off the
    cluster may share a folder. ``signal`` is the number of the signal that stopped the run, if any.
    A runner of one step is the work of a job, see :mod:`relu_nmt.io.work`.
    """

    def __init__(
        self,
        planned: Sequence[Step],
        config: JobsConfig,
        environment: dict[str, Any],
        folder: Path = Path(),
        training_seconds: float | None = None,
        progress: bool = True,
    ) -> None:
        self.tasks = list(map(Task, planned))
        self.signal: int | None = None
        self._kill = False
        # The remaining work of each running step. It yields while the step waits.
        self._running: dict[Task, Iterator[None]] = {}
        self._config = config
        self._progress = progress
        self._environment = environment
        self._training_seconds = training_seconds
        for task in self.tasks:
            self._is_done(task)
        self._submit: Submit | None = None
        if config.cluster is not None:
            self._submit = cluster_queue(config.cluster, config.asked_for, folder / JOBS_FOLDER)

    @property
    def failed(self) -> int:
        """Number of steps that crashed. Diverged trainings are not failures."""
        return sum(task.step.status == steps.FAILED for task in self.tasks)

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0, 1 if a step failed, or 128 plus the signal number."""
        if self.signal is not None:
            return SIGNAL_EXIT_CODE + self.signal
        return int(self.failed > 0)

    def run(self, after_step: Callable[[], object]) -> None:
        """Run all steps that are not done. Call ``after_step`` when the results have changed."""
        self._after_step = after_step
        # Catch signals, so that trainings can save a checkpoint.
        before = handle_stop_signals(self._note_signal)
        try:
            left = len(self._open())
            done = sum(task.step.status in steps.FINAL for task in self.tasks)
            self.say(f"{left} steps to do, {done} done before, {self._config.jobs} at once")
            has_reported_waiting = False
            while self._running or (self._open() and self.signal is None):
                for work in list(self._running.values()):
                    next(work, None)
                for task in self._ready():
                    # The training of this model may just have diverged.
                    is_pending = task.step.status == steps.PENDING and self.signal is None
                    if is_pending and len(self._running) < self._config.jobs:
                        self._start(task)
                waiting = [task for task in self._open() if task.not_before]
                if waiting and not self._running and not has_reported_waiting:
                    has_reported_waiting = True
                    self.say(f"{waiting[0].step}: another sweep is at it; waiting (Ctrl-C stops)")
                time.sleep(POLL_SECONDS)
        finally:
            for task in self._running:  # after an error of the sweep itself
                task.ask_to_end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def __call__(self) -> int | None:
        """Run the step as a job of a cluster. Return the number of the signal that stopped it."""
        self._environment = describe_environment(gpu_names())
        self.run(lambda: None)
        return self.signal

    def checkpoint(self) -> "DelayedSubmission":
        """Save a checkpoint for submitit. Return the work that continues in another job."""
        from submitit.helpers import DelayedSubmission

        for task in self._running:
            task.ask_to_end()
            if task.process is not None:
                os.waitid(os.P_PID, task.process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(StepRunner([task.step for task in self.tasks], self._config, {}))

    def say(self, text: str) -> None:
        """Print an event, with the time left."""
        if not self._progress:
            return
        ended = sum(task.step.status != steps.PENDING for task in self.tasks)
        counts = f"{ended}/{len(self.tasks)}"
        print(f"{time.strftime('%H:%M:%S')} | {counts} | {self._time_left()} | {text}", flush=True)

    def _time_left(self) -> str:
        # Seconds of finished steps: trainings (True) and evaluations (False).
        seconds: dict[bool, list[float]] = {True: [], False: []}
        pending = []
        for task in self.tasks:
            if task.step.status == steps.DONE:
                seconds[task.step.is_training].append(task.step.seconds)
            elif task.step.status == steps.PENDING:
                pending.append(task)
        if not pending:
            return "nothing left"
        # Before the first training is done, use the budget.
        if self._training_seconds is not None and not seconds[True]:
            seconds[True] = [self._training_seconds]
        total = 0.0
        word = "about"
        for task in pending:
            if not seconds[task.step.is_training]:
                word = "over"
                continue
            expected = fmean(seconds[task.step.is_training])
            if task.begun is not None:
                expected -= time.monotonic() - task.begun
            total += max(0.0, expected)
        if not total:
            return "time left unknown"
        return f"{word} {in_words(total / min(self._config.jobs, len(pending)))} left"

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        # Let the main loop act on the signal, since a command may be starting or ending here.
        self._kill = self.signal is not None
        self.signal = number

    # ------------------------------------------------------------------- which step is next

    def _open(self) -> list[Task]:
        return [t for t in self.tasks if t.step.status == steps.PENDING and t not in self._running]

    def _ready(self) -> list[Task]:
        """Return the steps that may begin now. Evaluations come first, as they give results."""
        # An evaluation waits for the training of its model, a locked step for its time.
        untrained = set()
        for task in self.tasks:
            if task.step.is_training and task.step.status != steps.DONE:
                untrained.add(task.step.model)
        present = time.monotonic()
        ready = []
        for task in self._open():
            is_trained = task.step.is_training or task.step.model not in untrained
            if is_trained and task.not_before <= present:
                ready.append(task)
        return sorted(ready, key=lambda task: task.step.is_training)

    def _is_done(self, task: Task) -> bool:
        finished = task.step.finished()
        if finished is not None:
            self._note_end(task, finished)
        return finished is not None

    def _note_end(self, task: Task, step: Step) -> None:
        task.step = step
        # Without its training, a model has no evaluations.
        if step.is_training and step.status != steps.DONE:
            status = steps.DIVERGED if step.status == steps.DIVERGED else LEFT_OUT
            for other in self.tasks:
                if other.step.model == step.model and other.step.status == steps.PENDING:
                    other.step = replace(other.step, status=status)

    # ------------------------------------------------------------------- running one step

    def _start(self, task: Task) -> None:
        """Start a step, unless another sweep runs it or has finished it."""
        # On a cluster, the job takes the lock itself.
        lock = None
        if self._submit is None:
            lock = acquire_lock(task.step.path(".lock"))
            if lock is None:
                task.not_before = time.monotonic() + RETRY_LOCK_SECONDS
                return
        if self._is_done(task):
            if lock is not None:
                os.close(lock)
            self.say(f"{task.step}: done by another sweep")
            self._delete_checkpoints(task.step)
            return
        task.begun = time.monotonic()
        task.is_ending = False
        work = self._run_job(task) if lock is None else self._run_here(task, lock)
        self._running[task] = work
        next(work, None)  # until it waits for the first time

    def _run_here(self, task: Task, lock: int) -> Iterator[None]:
        """Run the commands of a step on this machine. Yield while a command runs."""
        try:
            step = self._begin(task)
            exit_code = 0
            status = steps.DONE
            log_file = step.path(".log")
            with reporting(f"{log_file}: cannot be written"):
                # A training that continues appends to its log.
                log = open(log_file, "ab" if step.is_training else "wb")  # noqa: SIM115
            with log:
                self.say(f"{step}: begins")
                for number, command in enumerate(step.commands):
                    if number and self.signal is not None:
                        status = steps.STARTED
                        break
                    exit_code, memory = yield from self._execute(task, command, lock, log)
                    step = replace(step, peak_memory=max(step.peak_memory, memory))
                    if exit_code != 0:
                        status = steps.STARTED if self.signal is not None else steps.FAILED
                        break
            seconds = self._leave(task)
            # A stopped step stays open. A failed step gets the reason.
            if status == steps.FAILED:
                step = replace(step, note=last_line(log_file))
                with suppress(DataError):  # a crash before the first results
                    if step.is_training and TrainingResult.load(step.checkpoints).diverged:
                        status = steps.DIVERGED
            if status != steps.STARTED:
                step = replace(step, status=status, seconds=seconds, exit_code=exit_code)
            step.write()
        finally:
            # Another sweep may take the lock now that the end is stored.
            os.close(lock)
        if status == steps.STARTED:
            self.say(f"{step}: stopped after {in_words(seconds)}")
        else:
            self._conclude(task, step)

    def _begin(self, task: Task) -> Step:
        """Give a step the lowest free index. Store the step as begun, and return it."""
        step = task.step
        earlier = task.step.stored()
        taken_indices = {other.index for other in self._running if other is not task}
        task.index = min(set(range(self._config.jobs)) - taken_indices)
        variables = self._config.environment(task.index)
        environment = dict(self._environment)
        for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
            if name in variables:
                environment[name] = variables[name]
        # A training that continues keeps its peak memory.
        continues = step.is_training and earlier.commands == step.commands
        step = replace(
            step,
            status=steps.STARTED,
            started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            peak_memory=earlier.peak_memory if continues else 0,
            environment=environment,
        )
        step.write()
        return step

    def _execute(
        self, task: Task, command: Command, lock: int, log: BinaryIO
    ) -> Generator[None, None, tuple[int, int]]:
        """Yield until a command has ended. Return its exit code and its peak memory in bytes."""
        log.write(f"$ {shlex.join(shown_command(command))}\n".encode())
        log.flush()
        task.process = process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._config.environment(task.index),
            # Ctrl-C reaches only the sweep, and the sweep passes it on once.
            start_new_session=True,
            # The command also holds the lock, since it may outlive a sweep that is killed.
            pass_fds=[lock],
        )
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid != 0:
                task.process = None
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode, usage.ru_maxrss * MAXRSS_UNIT
            # Pass the first signal on, so that trainings save a checkpoint. A second one kills.
            if self._kill:
                os.kill(process.pid, signal.SIGKILL)
            elif self.signal is not None:
                task.ask_to_end()
            yield

    def _run_job(self, task: Task) -> Iterator[None]:
        """Run a step as a job, which writes its state. Yield while the job waits or runs."""
        assert self._submit is not None
        step = task.step
        # Only the sweep deletes checkpoints, since other steps may need them.
        config = replace(
            self._config, jobs=1, cluster=None, cluster_parameters=None, delete_checkpoints=False
        )
        job = task.job = self._submit(StepRunner([step], config, {}), str(step))
        self.say(f"{step}: job {job.job_id}")
        while True:
            yield
            if self.signal is not None:
                task.ask_to_end()
            if job.done():
                break
        seconds = self._leave(task)
        # Fetch the result. A job that the cluster ended has none.
        note = f"job {job.job_id} ended without a result"
        stopped = None
        try:
            stopped = result_of(job)
        except ReluNmtError as error:
            note = str(error)
        # Use the state that the job wrote at its end, if there is one.
        stored = step.stored()
        if stored.status not in (steps.PENDING, steps.STARTED):
            self._conclude(task, stored)
        elif self.signal is not None or stopped is not None:
            # A step stopped by a signal stays open, and is submitted again.
            self.say(f"{step}: stopped")
        else:
            step = replace(step, status=steps.FAILED, note=note, seconds=seconds)
            step.write()
            self._conclude(task, step)

    def _leave(self, task: Task) -> float:
        """Remove a step from the running ones. Return the seconds since its beginning."""
        assert task.begun is not None
        seconds = time.monotonic() - task.begun
        del self._running[task]
        task.begun = None
        task.job = None
        return seconds

    def _conclude(self, task: Task, step: Step) -> None:
        """Note the end of a step, report it, and update the report."""
        self._note_end(task, step)
        outcome = step.status
        if step.note:
            outcome += f" (exit code {step.exit_code}): {step.note}"
        self.say(f"{step}: {outcome} after {in_words(step.seconds)}")
        self._delete_checkpoints(step)
        try:
            self._after_step()
        except ReluNmtError as error:  # the steps go on, and the last report raises the error
            self.say(f"no report: {error}")

    def _delete_checkpoints(self, step: Step) -> None:
        """Delete the unused checkpoints of a model when all its steps are done."""
        if not self._config.delete_checkpoints:
            return
        # Keep the checkpoints that a command names, which evaluates them.
        words: set[str] = set()
        for task in self.tasks:
            if task.step.model == step.model:
                if task.step.status not in steps.FINAL:
                    return
                words.update(task.step.words)
        for path in step.checkpoints.glob("*.safetensors"):
            if str(path) not in words:
                path.unlink(missing_ok=True)


def last_line(path: Path) -> str:
    """Return the last line of a log that is not empty, the error of a failed command."""
    try:
        return path.read_text("utf-8", errors="replace").strip().split("\n")[-1].strip()
    except OSError:
        return ""

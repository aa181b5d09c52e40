"""Run the steps of a sweep, each of them once and several at a time, even if some steps fail.

A step is a :class:`StepJob`. It runs in a thread of the sweep, or as a job of a cluster. submitit's
executor for this machine kills a job one second after Ctrl-C, before a training is saved.
"""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, BinaryIO

from relu_nmt.applications.environment import describe_environment
from relu_nmt.applications.sweep import steps
from relu_nmt.applications.sweep.settings import JobsConfig
from relu_nmt.applications.sweep.steps import Command, Step, gpu_names, shown_command
from relu_nmt.errors import DataError, ReluNmtError, reporting
from relu_nmt.io.cluster import Submit, cluster_queue, result_of
from relu_nmt.io.memory import MAXRSS_UNIT
from relu_nmt.io.process import SIGNAL_EXIT_CODE, noting_signals
from relu_nmt.io.safe_write import acquire_lock
from relu_nmt.training.budgets import in_words
from relu_nmt.training.save_dir import TrainingResult

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

POLL_SECONDS = 0.2
RETRY_LOCK_SECONDS = 3.0
LEFT_OUT = "left out"
JOBS_FOLDER = "jobs"


@dataclass(eq=False)
class StepJob:
    """The work of a step: its commands in order, with a log and a state."""

    step: Step
    config: JobsConfig
    environment: dict[str, Any]  # machine and versions, stored with the step
    signals: list[int] = field(default_factory=list)  # stop signals received so far
    index: int = 0  # index among the running steps, see :meth:`JobsConfig.environment`
    process: subprocess.Popen[bytes] | None = None  # process of the present command

    def run(self, lock: int) -> None:
        """Run the commands, store the end of the step, and give its lock back."""
        try:
            begun = time.monotonic()
            step = self._begin()
            exit_code = 0
            status = steps.DONE
            log_file = step.path(".log")
            with reporting(f"{log_file}: cannot be written"):
                # A training that continues appends to its log.
                log = open(log_file, "ab" if step.is_training else "wb")  # noqa: SIM115
            with log:
                for command in step.commands:
                    if self.signals:
                        status = steps.STARTED
                        break
                    exit_code, memory = self._execute(command, lock, log)
                    step = replace(step, peak_memory=max(step.peak_memory, memory))
                    if exit_code != 0:
                        status = steps.STARTED if self.signals else steps.FAILED
                        break
            # A stopped step stays open. A failed step gets the reason.
            if status == steps.FAILED:
                step = replace(step, note=last_line(log_file))
                with suppress(DataError):  # a crash before the first results
                    if step.is_training and TrainingResult.load(step.checkpoints).diverged:
                        status = steps.DIVERGED
            if status != steps.STARTED:
                seconds = time.monotonic() - begun
                step = replace(step, status=status, seconds=seconds, exit_code=exit_code)
            step.write()
        finally:
            # Another sweep may take the lock now that the end is stored.
            os.close(lock)

    def _begin(self) -> Step:
        """Store the step as begun, and return it."""
        earlier = self.step.stored()
        variables = self.config.environment(self.index)
        environment = dict(self.environment)
        for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
            if name in variables:
                environment[name] = variables[name]
        # A training that continues keeps its peak memory.
        continues = self.step.is_training and earlier.commands == self.step.commands
        step = replace(
            self.step,
            status=steps.STARTED,
            started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            peak_memory=earlier.peak_memory if continues else 0,
            environment=environment,
        )
        step.write()
        return step

    def _execute(self, command: Command, lock: int, log: BinaryIO) -> tuple[int, int]:
        """Run a command. Return its exit code and its peak memory in bytes."""
        log.write(f"$ {shlex.join(shown_command(command))}\n".encode())
        log.flush()
        self.process = process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.config.environment(self.index),
            # Ctrl-C reaches only the sweep, and the sweep passes it on once.
            start_new_session=True,
            # The command also holds the lock, since it may outlive a sweep that is killed.
            pass_fds=[lock],
        )
        num_passed_on = 0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid != 0:
                self.process = None
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode, usage.ru_maxrss * MAXRSS_UNIT
            if len(self.signals) > num_passed_on:
                num_passed_on = len(self.signals)
                # The first signal lets a training save a checkpoint. A second one kills.
                number = signal.SIGTERM if num_passed_on == 1 else signal.SIGKILL
                # Popen.send_signal might reap the command, and lose its exit code and memory.
                os.kill(process.pid, number)
            time.sleep(POLL_SECONDS)

    def __call__(self) -> None:
        """Run as a job of a cluster, as soon as the lock is free, unless the step is finished."""
        self.environment = describe_environment(gpu_names())
        self.config = replace(self.config, jobs=1)  # all cores of the job are for this step
        with noting_signals(second_interrupts=False) as self.signals:
            while not self.signals:
                lock = acquire_lock(self.step.path(".lock"))
                if lock is not None:
                    if self.step.finished() is None:
                        self.run(lock)
                    break
                time.sleep(RETRY_LOCK_SECONDS)

    def checkpoint(self) -> "DelayedSubmission":
        """Save a checkpoint for submitit. Return the work that continues in another job."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            os.kill(self.process.pid, signal.SIGTERM)
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(StepJob(self.step, self.config, {}))


@dataclass(eq=False)
class Task:
    """A step in a run of the sweep."""

    step: Step  # pending until it has ended, then as it is stored
    not_before: float = 0.0  # monotonic time before which a locked step is not tried again
    begun: float | None = None  # monotonic time of its beginning, while it runs
    index: int = 0  # index among the running steps
    job: Any = None  # while it runs: the Future of a thread, or a job of a cluster


class StepRunner:
    """A runner of steps. The training of a model runs before its evaluations.

    On a cluster, the jobs hold the locks and write logs and states, so that sweeps on and off the
    cluster may share a folder.
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
        self.signals: list[int] = []  # stop signals received so far
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
        if self.signals:
            return SIGNAL_EXIT_CODE + self.signals[-1]
        return int(self.failed > 0)

    def run(self, after_step: Callable[[], object]) -> None:
        """Run all steps that are not done. Call ``after_step`` when the results have changed."""
        self._after_step = after_step
        left = len(self._open())
        done = sum(task.step.status in steps.FINAL for task in self.tasks)
        # Catch signals, so that trainings can save a checkpoint.
        with (
            noting_signals(second_interrupts=False) as self.signals,
            ThreadPoolExecutor(self._config.jobs) as self._threads,
        ):
            self.say(f"{left} steps to do, {done} done before, {self._config.jobs} at once")
            try:
                self._run_until_signal()
            except BaseException:  # an error of the sweep itself
                self.signals.append(signal.SIGTERM)
                raise
            finally:
                if self._submit is not None:  # threads look at the signals themselves
                    for task in self._running():
                        task.job.cancel()
            while self._running():
                self._finish_ended()
                time.sleep(POLL_SECONDS)

    def _run_until_signal(self) -> None:
        has_reported_waiting = False
        while not self.signals and (self._running() or self._open()):
            self._finish_ended()
            for task in self._ready():
                # The training of this model may just have diverged.
                is_pending = task.step.status == steps.PENDING and not self.signals
                if is_pending and len(self._running()) < self._config.jobs:
                    self._start(task)
            waiting = [task for task in self._open() if task.not_before]
            if waiting and not self._running() and not has_reported_waiting:
                has_reported_waiting = True
                self.say(f"{waiting[0].step}: another sweep is at it; waiting (Ctrl-C stops)")
            time.sleep(POLL_SECONDS)

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

    # ------------------------------------------------------------------- which step is next

    def _running(self) -> list[Task]:
        return [task for task in self.tasks if task.job is not None]

    def _open(self) -> list[Task]:
        return [t for t in self.tasks if t.step.status == steps.PENDING and t.job is None]

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
        step = task.step
        lock = acquire_lock(step.path(".lock"))
        if lock is None:
            task.not_before = time.monotonic() + RETRY_LOCK_SECONDS
            return
        if self._is_done(task):
            os.close(lock)
            self.say(f"{step}: done by another sweep")
            self._delete_checkpoints(step)
            return
        task.begun = time.monotonic()
        task.index = min(set(range(self._config.jobs)) - {t.index for t in self._running()})
        work = StepJob(step, self._config, self._environment, self.signals, task.index)
        if self._submit is None:
            task.job = self._threads.submit(work.run, lock)
            self.say(f"{step}: begins")
        else:
            os.close(lock)  # the job takes it
            task.job = self._submit(work, str(step))
            self.say(f"{step}: job {task.job.job_id}")

    def _finish_ended(self) -> None:
        for task in self._running():
            if task.job.done():
                self._finish(task)

    def _finish(self, task: Task) -> None:
        """Note the end of a step, report it, and update the report."""
        assert task.begun is not None
        seconds = time.monotonic() - task.begun
        job = task.job
        task.job = None
        task.begun = None
        note = ""
        if self._submit is None:
            job.result()  # raises an error of the thread
        else:
            try:
                result_of(job)
            except ReluNmtError as error:
                note = str(error)
        step = task.step.stored()
        if step.status in (steps.PENDING, steps.STARTED):
            # A step that a signal has stopped stays open. Without a note, the signal was its job's.
            if self.signals or not note:
                self.say(f"{step}: stopped after {in_words(seconds)}")
                return
            step = replace(step, status=steps.FAILED, note=note, seconds=seconds)
            step.write()
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

"""Run the steps of a sweep: several at once, each of them once, even if some steps fail.

A step runs as a process of this machine, or as a job of a cluster, which runs a sweep of one step.
"""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

from relu_nmt.applications.sweep.settings import JobsConfig
from relu_nmt.applications.sweep.steps import (
    DIVERGED,
    DONE,
    FAILED,
    FINAL,
    STARTED,
    Command,
    Step,
    StepState,
    check_same_commands,
    in_words,
    last_line,
    probe,
    shown_command,
    time_left,
)
from relu_nmt.errors import DataError, ReluNmtError
from relu_nmt.io.process import describe_environment, handle_stop_signals
from relu_nmt.io.safe_write import acquire_lock
from relu_nmt.io.work import Cluster, result_of
from relu_nmt.training.results import MAXRSS_UNIT, TrainingResult

if TYPE_CHECKING:
    from submitit import Job
    from submitit.helpers import DelayedSubmission

POLL_SECONDS = 0.2
RETRY_LOCK_SECONDS = 3.0
LEFT_OUT = "left out"
JOBS_FOLDER = "jobs"


@dataclass
class RunningProcess:
    """A step that runs as a process of this machine."""

    index: int  # index of the process among those at once, see :meth:`JobsConfig.environment`
    lock: int  # descriptor that holds the step's lock until the step ends
    log: BinaryIO  # open file to which all its commands write
    state: StepState  # the state stored at the beginning
    process: subprocess.Popen[bytes]  # process of the present command
    command: int = 0  # index of the present command


@dataclass
class StepWork:
    """The work of a job: run one step with its lock, log and state, like a local sweep."""

    step: Step
    config: JobsConfig
    runner: "StepRunner | None" = field(default=None, init=False)

    def __call__(self) -> int | None:
        """Run the step; return the number of the signal that stopped it, if any."""
        environment = describe_environment(probe([], [])["gpus"])
        self.runner = StepRunner([self.step], self.config, environment)
        self.runner.run(lambda: None)
        return self.runner.signal

    def checkpoint(self) -> "DelayedSubmission":
        """Let the training save a checkpoint; return the work that continues in another job.

        submitit calls this before the cluster takes the machine away.
        """
        from submitit.helpers import DelayedSubmission

        if self.runner is not None:
            self.runner.end()
        return DelayedSubmission(StepWork(self.step, self.config))


class StepRunner:
    """A runner of steps, each training before the evaluations of its model.

    On a cluster, the jobs hold the locks and write logs and states. So sweeps on a cluster and
    others may share a folder. Every step stores the environment, machine and versions. Only a
    cluster needs the folder of the sweep; ``training_seconds`` is the budget, if it is a time.

    Attributes:
        signal: number of the signal that stopped the run, if any.

    Raises:
        ConfigError: a step was run with another command, or this machine has no such cluster.
        DataError: a state file is damaged.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        config: JobsConfig,
        environment: dict[str, Any],
        folder: Path = Path(),
        training_seconds: float | None = None,
        progress: bool = True,
    ) -> None:
        self._steps = list(steps)
        self._config = config
        self._progress = progress
        self._environment = environment
        self._ended: dict[Step, str] = {}
        # Seconds of the finished trainings (True) and evaluations (False).
        self._seconds: dict[bool, list[float]] = {True: [], False: []}
        self._training_seconds = training_seconds
        # Steps that run now, their monotonic times of beginning, and those that are asked to end.
        self._running: dict[Step, RunningProcess | Job[int | None]] = {}
        self._begun: dict[Step, float] = {}
        self._ending: set[Step] = set()
        # Times before which locked steps are not tried again.
        self._not_before: dict[Step, float] = {}
        self.signal: int | None = None
        self._kill = False
        # Note the steps that earlier runs have finished.
        for step in self._steps:
            self._is_done(step)
        # The sweep deletes checkpoints, not its jobs: other steps may need them.
        self._cluster: Cluster | None = None
        self._job_config = config
        if config.cluster is not None:
            self._cluster = Cluster(config.cluster, config.asked_for, folder / JOBS_FOLDER)
            self._job_config = replace(
                config, jobs=1, cluster=None, cluster_parameters=None, delete_checkpoints=False
            )

    @property
    def failed(self) -> int:
        """Number of steps that crashed; those that diverged are results."""
        return sum(status == FAILED for status in self._ended.values())

    def run(self, after_step: Callable[[], object]) -> None:
        """Run all steps that are not done; call ``after_step`` when the results have changed."""
        self._after_step = after_step
        # Catch signals, so that trainings can save a checkpoint.
        before = handle_stop_signals(self._note_signal)
        try:
            left, done = len(self._open_steps()), sum(s in FINAL for s in self._ended.values())
            self.say(f"{left} steps to do, {done} done before, {self._config.jobs} at once")
            has_reported_waiting = False
            # Poll until all steps have ended, or a signal stops the run.
            while self._running or (self._open_steps() and self.signal is None):
                self._reap()
                for step in self._ready_steps() if self.signal is None else ():
                    # Its training may just have diverged.
                    if len(self._running) < self._config.jobs and step not in self._ended:
                        self._start(step)
                # Report once that the next step waits for another sweep.
                waiting = [step for step in self._open_steps() if step in self._not_before]
                if waiting and not self._running and not has_reported_waiting:
                    has_reported_waiting = True
                    self.say(f"{waiting[0]}: another sweep is at it; waiting (Ctrl-C stops)")
                time.sleep(POLL_SECONDS)
        finally:
            for step in self._running:  # after an error of the sweep itself
                self._ask_to_end(step)
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self) -> None:
        """Ask the running steps to save their state, and wait for them; they stay unfinished.

        For a signal handler in the middle of :meth:`run`, after which the program ends.
        """
        for step, running in self._running.items():
            self._ask_to_end(step)
            if isinstance(running, RunningProcess):
                os.waitid(os.P_PID, running.process.pid, os.WEXITED | os.WNOWAIT)

    def _ask_to_end(self, step: Step) -> None:
        """Ask a running step once to end, so that its training saves a checkpoint."""
        if step in self._ending:
            return
        self._ending.add(step)
        running = self._running[step]
        if isinstance(running, RunningProcess):
            # Popen.terminate would reap a command that has just ended, and lose its exit code.
            os.kill(running.process.pid, signal.SIGTERM)
        else:
            running.cancel()

    # ------------------------------------------------------------------- which step is next

    def _is_done(self, step: Step) -> bool:
        """Return whether this or another sweep has finished the step, and note its end."""
        state = step.state
        check_same_commands(step, state)
        if state is None or state.status not in FINAL:
            return False
        self._end(step, state)
        return True

    def _end(self, step: Step, state: StepState) -> None:
        status = self._ended[step] = state.status
        if status == DONE:
            self._seconds[step.is_training].append(state.seconds)
        # Without its training, a model has no evaluations.
        if step.is_training and status != DONE:
            for other in self._steps:
                if other.model == step.model and other not in self._ended:
                    self._ended[other] = status if status == DIVERGED else LEFT_OUT

    def _open_steps(self) -> list[Step]:
        begun = self._ended.keys() | self._running.keys()
        return [step for step in self._steps if step not in begun]

    def _ready_steps(self) -> list[Step]:
        """Return the steps that may begin now; evaluations come first, as they give results."""
        # Evaluations wait for the training of their model, locked steps for their time.
        trainings = [step for step in self._steps if step.is_training]
        untrained = {step.model for step in trainings if self._ended.get(step) != DONE}
        now = time.monotonic()
        ready = [
            step
            for step in self._open_steps()
            if (step.is_training or step.model not in untrained)
            and self._not_before.get(step, 0.0) <= now
        ]
        return sorted(ready, key=lambda step: step.is_training)

    # ------------------------------------------------------------------- running one step

    def _start(self, step: Step) -> None:
        """Start a step, unless another sweep runs it or has finished it."""
        # A job takes the lock itself.
        lock = None if self._cluster is not None else acquire_lock(step.path(".lock"))
        if lock is None and self._cluster is None:
            self._not_before[step] = time.monotonic() + RETRY_LOCK_SECONDS
        elif self._is_done(step):
            if lock is not None:
                os.close(lock)
            self.say(f"{step}: done by another sweep")
            self._delete_checkpoints(step)
        elif self._cluster is not None:
            job = self._cluster.submit(StepWork(step, self._job_config), str(step))
            self._running[step], self._begun[step] = job, time.monotonic()
            self.say(f"{step}: job {job.job_id}")
        elif lock is not None:
            self._start_process(step, lock)

    def _start_process(self, step: Step, lock: int) -> None:
        # Take the lowest index that no running step has.
        taken = {one.index for one in self._running.values() if isinstance(one, RunningProcess)}
        index = min(set(range(self._config.jobs)) - taken)
        variables, earlier = self._config.environment(index), step.state
        # Store that the step has begun; a training that continues keeps its peak memory.
        shown = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
        environment = {**self._environment, **{n: variables[n] for n in shown if n in variables}}
        continues = step.is_training and earlier is not None and earlier.commands == step.commands
        state = StepState(
            STARTED,
            step.commands,
            step.model,
            started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            peak_memory=earlier.peak_memory if earlier is not None and continues else 0,
            environment=environment,
        )
        state.write(step)
        try:
            # A training that continues appends to its log.
            log = open(step.path(".log"), "ab" if step.is_training else "wb")  # noqa: SIM115
        except OSError as error:
            raise DataError(f"{step.path('.log')}: cannot be written: {error.strerror}") from error
        process = self._spawn(step.commands[0], index, lock, log)
        self._running[step] = RunningProcess(index, lock, log, state, process)
        self._begun[step] = time.monotonic()
        self.say(f"{step}: begins")

    def _spawn(
        self, command: Command, index: int, lock: int, log: BinaryIO
    ) -> subprocess.Popen[bytes]:
        log.write(f"$ {shlex.join(shown_command(command))}\n".encode())
        log.flush()
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._config.environment(index),
            # Ctrl-C reaches the sweep alone, and the sweep passes it on once.
            start_new_session=True,
            # The command holds the lock too: it may outlive a sweep that is killed.
            pass_fds=[lock],
        )

    def _reap(self) -> None:
        """Process the commands and jobs that have ended."""
        for step, running in list(self._running.items()):
            if isinstance(running, RunningProcess):
                self._reap_process(step, running)
                continue
            if self.signal is not None:
                self._ask_to_end(step)
            if running.done():
                self._finish_job(step, running)

    def _reap_process(self, step: Step, running: RunningProcess) -> None:
        # Ask for the exit code and the peak memory.
        process = running.process
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid == 0:
            # Pass the first signal on, so that trainings save a checkpoint; a second one kills.
            if self._kill:
                os.kill(process.pid, signal.SIGKILL)
            elif self.signal is not None:
                self._ask_to_end(step)
            return
        process.returncode = os.waitstatus_to_exitcode(status)
        memory = max(running.state.peak_memory, usage.ru_maxrss * MAXRSS_UNIT)
        running.state = replace(running.state, peak_memory=memory)
        # Start the next command of the step, or finish the step.
        running.command += 1
        more = running.command < len(step.commands)
        if process.returncode == 0 and more and self.signal is None:
            command = step.commands[running.command]
            running.process = self._spawn(command, running.index, running.lock, running.log)
        else:
            self._finish_process(step, running, process.returncode, complete=not more)

    def _finish_process(
        self, step: Step, running: RunningProcess, exit_code: int, complete: bool
    ) -> None:
        running.log.close()
        seconds = self._leave(step)
        status, note = DONE, ""
        # A stopped step stays open; a failed one gets the reason.
        if exit_code != 0 or not complete:
            if self.signal is not None:
                running.state.write(step)
                os.close(running.lock)
                self.say(f"{step}: stopped after {in_words(seconds)}")
                return
            status, note = FAILED, last_line(step.path(".log"))
            with suppress(DataError):  # a crash before the first results
                if step.is_training and TrainingResult.load(step.checkpoints).diverged:
                    status = DIVERGED
        # Store the end before another sweep can take the lock.
        state = replace(
            running.state, status=status, note=note, seconds=seconds, exit_code=exit_code
        )
        state.write(step)
        os.close(running.lock)
        self._conclude(step, state)

    def _finish_job(self, step: Step, job: "Job[int | None]") -> None:
        """Note the end of a job from the state that it wrote."""
        seconds = self._leave(step)
        # Fetch the result; a job that the cluster ended has none.
        note, stopped = "", None
        try:
            stopped = result_of(job)
        except ReluNmtError as error:
            note = str(error)
        state = step.state
        # Trust the state that the job wrote at its end.
        if state is not None and state.status != STARTED:
            self._conclude(step, state)
        elif self.signal is not None or stopped is not None:
            # A step stopped by a signal stays open, and is submitted again.
            self.say(f"{step}: stopped")
        else:
            note = note or f"job {job.job_id} ended without a result"
            state = StepState(FAILED, step.commands, step.model, note, seconds=seconds)
            state.write(step)
            self._conclude(step, state)

    def _leave(self, step: Step) -> float:
        """Remove a step from the running ones; return the seconds since its beginning."""
        del self._running[step]
        self._ending.discard(step)
        return time.monotonic() - self._begun.pop(step)

    def _conclude(self, step: Step, state: StepState) -> None:
        """Note the end of a step, report it, and update the report."""
        self._end(step, state)
        code = f"{state.status} (exit code {state.exit_code}): {state.note}"
        self.say(f"{step}: {code if state.note else state.status} after {in_words(state.seconds)}")
        self._delete_checkpoints(step)
        try:
            self._after_step()
        except ReluNmtError as error:  # the other steps continue; the last report raises it again
            self.say(f"no report: {error}")

    def _delete_checkpoints(self, step: Step) -> None:
        """Delete the unused checkpoints of a model when all its steps are done."""
        own = [other for other in self._steps if other.model == step.model]
        is_done = all(self._ended.get(other) in FINAL for other in own)
        if self._config.delete_checkpoints and is_done:
            kept = {other.checkpoint_of("--path") for other in own}
            for path in step.checkpoints.glob("*.safetensors"):
                if path not in kept:
                    path.unlink(missing_ok=True)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        # The main loop acts on it: here a command may be starting or ending.
        self._kill = self.signal is not None
        self.signal = number

    def say(self, text: str) -> None:
        """Print an event, with the time left."""
        if not self._progress:
            return
        # Estimate the time left; before the first training the budget counts.
        left = [step for step in self._steps if step not in self._ended]
        known = dict(self._seconds)
        if not known[True] and self._training_seconds is not None:
            known[True] = [self._training_seconds]
        now = time.monotonic()
        spent = {step: now - begun for step, begun in self._begun.items()}
        estimate = time_left(left, known, spent, self._config.jobs)
        clock, done = time.strftime("%H:%M:%S"), len(self._ended)
        print(f"{clock} | {done}/{len(self._steps)} | {estimate} | {text}", flush=True)

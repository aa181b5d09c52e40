"""Run the steps of a sweep: several at once, each of them once, even if some steps fail."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

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
    shown_command,
)
from relu_nmt.errors import DataError, ReluNmtError
from relu_nmt.io.process import handle_stop_signals
from relu_nmt.io.safe_write import acquire_lock
from relu_nmt.training.results import MAXRSS_UNIT, TrainingResult

POLL_SECONDS = 0.2
RETRY_LOCK_SECONDS = 3.0
LEFT_OUT = "left out"


@dataclass
class RunningStep:
    """A running step.

    Args:
        index: index of the process among those at once, see :meth:`JobsConfig.environment`.
        lock: descriptor that holds the step's lock until the step ends.
        log: open file to which all its commands write.
        state: the state stored at the beginning.
        process: process of the present command.
        command: index of the present command.
        begun: monotonic time in seconds.
        is_ending: whether it was asked to end.
    """

    step: Step
    index: int
    lock: int
    log: BinaryIO
    state: StepState
    process: subprocess.Popen[bytes]
    command: int = 0
    begun: float = field(default_factory=time.monotonic)
    is_ending: bool = False

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return time.monotonic() - self.begun

    def end(self) -> None:
        """Ask the step to save its state and end."""
        if not self.is_ending:
            self.is_ending = True
            # Popen.terminate would reap a command that has just ended, and lose its exit code.
            os.kill(self.process.pid, signal.SIGTERM)


class StepRunner:
    """A runner of steps as processes of this machine; a subclass may run them elsewhere.

    A training stands before the evaluations of its model. Every step stores ``environment``, the
    machine and the versions. ``training_seconds`` is the budget of a training, if it is a time.

    Attributes:
        signal: number of the signal that stopped the run, if any.

    Raises:
        ConfigError: a step was run with another command.
        DataError: a state file is damaged.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        config: JobsConfig,
        environment: dict[str, Any],
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
        # Steps that run now, and times before which locked steps are not tried again.
        self._running: list[Any] = []  # RunningStep, or a subclass's own class
        self._not_before: dict[Step, float] = {}
        self.signal: int | None = None
        self._kill = False
        # Note the steps that earlier runs have finished.
        for step in self._steps:
            self._is_done(step, first=True)

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
                if self.signal is None:
                    self._start_what_fits()
                # Report once that the next step waits for another sweep.
                waiting = [step for step in self._open_steps() if step in self._not_before]
                if waiting and not self._running and not has_reported_waiting:
                    has_reported_waiting = True
                    self.say(f"{waiting[0]}: another sweep is at it; waiting (Ctrl-C stops)")
                time.sleep(POLL_SECONDS)
        finally:
            for running in self._running:  # after an error of the sweep itself
                running.end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self) -> None:
        """Ask the running steps to save their state, and wait for them; they stay unfinished.

        For a signal handler in the middle of :meth:`run`, after which the program ends.
        """
        for running in self._running:
            running.end()
            os.waitid(os.P_PID, running.process.pid, os.WEXITED | os.WNOWAIT)

    # ------------------------------------------------------------------- which step is next

    def _is_done(self, step: Step, first: bool = False) -> bool:
        """Return whether this or another sweep has finished the step, and note its end."""
        state = step.state
        check_same_commands(step, state)
        if state is None or state.status not in FINAL:
            return False
        self._end(step, state.status, state.seconds if first else None)
        return True

    def _end(self, step: Step, status: str, seconds: float | None) -> None:
        self._ended[step] = status
        # Without its training, a model has no evaluations.
        if status == DONE and seconds is not None:
            self._seconds[step.is_training].append(seconds)
        if step.is_training and status != DONE:
            for other in self._steps:
                if other.model == step.model and other not in self._ended:
                    self._ended[other] = status if status == DIVERGED else LEFT_OUT

    def _open_steps(self) -> list[Step]:
        running = {running.step for running in self._running}
        return [step for step in self._steps if step not in self._ended and step not in running]

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

    def _start_what_fits(self) -> None:
        for step in self._ready_steps():
            if len(self._running) >= self._config.jobs:
                return
            if step not in self._ended:  # its training may just have diverged
                self._start(step)

    # ------------------------------------------------------------------- running one step

    def _start(self, step: Step) -> None:
        """Start a step, unless another sweep runs it or has finished it."""
        lock = acquire_lock(step.path(".lock"))
        if lock is None:
            self._not_before[step] = time.monotonic() + RETRY_LOCK_SECONDS
        elif self._is_done(step):
            os.close(lock)
            self.say(f"{step}: done by another sweep")
            self._delete_checkpoints(step)
        else:
            self._start_locked(step, lock)

    def _start_locked(self, step: Step, lock: int) -> None:
        # Take the lowest index that no running step has.
        index = min(set(range(self._config.jobs)) - {running.index for running in self._running})
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
        self._running.append(RunningStep(step, index, lock, log, state, process))
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
        """Process the commands that have ended."""
        for running in list(self._running):
            process = running.process
            # Ask for the exit code and the peak memory.
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid == 0:
                self._pass_signal_on(running)
                continue
            process.returncode = os.waitstatus_to_exitcode(status)
            memory = max(running.state.peak_memory, usage.ru_maxrss * MAXRSS_UNIT)
            running.state = replace(running.state, peak_memory=memory)
            # Start the next command of the step, or finish the step.
            running.command += 1
            more = running.command < len(running.step.commands)
            if process.returncode == 0 and more and self.signal is None:
                command = running.step.commands[running.command]
                running.process = self._spawn(command, running.index, running.lock, running.log)
            else:
                self._finish(running, process.returncode, complete=not more)

    def _finish(self, running: RunningStep, exit_code: int, complete: bool) -> None:
        step, log = running.step, running.step.path(".log")
        running.log.close()
        self._running.remove(running)
        seconds = running.seconds
        status, note = DONE, ""
        # A stopped step stays open; a failed one gets the reason.
        if exit_code != 0 or not complete:
            if self.signal is not None:
                running.state.write(step)
                os.close(running.lock)
                self.say(f"{step}: stopped after {in_words(seconds)}")
                return
            status, note = FAILED, last_line(log)
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

    def _conclude(self, step: Step, state: StepState) -> None:
        """Note the end of a step, report it, and update the report."""
        self._end(step, state.status, state.seconds)
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

    # ------------------------------------------------------------------- signals and messages

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        """Store the signal for the main loop: here a command may be starting or ending."""
        self._kill = self.signal is not None
        self.signal = number

    def _pass_signal_on(self, running: RunningStep) -> None:
        """Pass the first signal on, so that trainings save a checkpoint; a second one kills."""
        if self._kill:
            os.kill(running.process.pid, signal.SIGKILL)
        elif self.signal is not None:
            running.end()

    def say(self, text: str) -> None:
        """Print an event, with the time left."""
        if not self._progress:
            return
        # Estimate the time left; before the first training the budget counts.
        left = [step for step in self._steps if step not in self._ended]
        known = dict(self._seconds)
        if not known[True] and self._training_seconds is not None:
            known[True] = [self._training_seconds]
        spent = {running.step: running.seconds for running in self._running}
        estimate = time_left(left, known, spent, self._config.jobs)
        clock, done = time.strftime("%H:%M:%S"), len(self._ended)
        print(f"{clock} | {done}/{len(self._steps)} | {estimate} | {text}", flush=True)


def last_line(path: Path) -> str:
    """Return the last line of a log that is not empty: the error of a failed command."""
    try:
        lines = path.read_text("utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def time_left(
    left: Collection[Step],
    known: Mapping[bool, Sequence[float]],
    spent: Mapping[Step, float],
    jobs: int,
) -> str:
    """Return the estimated remaining time of a sweep in words.

    Args:
        left: the steps that are not done.
        known: seconds of other trainings (True) and evaluations (False); a kind without any does
            not count.
        spent: seconds since the beginning of each running step.
        jobs: number of steps at once.
    """
    if not left:
        return "nothing left"
    # Subtract the time already spent from the mean of each kind of step.
    means = {kind: sum(seconds) / len(seconds) for kind, seconds in known.items() if seconds}
    counted = [step for step in left if step.is_training in means]
    total = sum(max(0.0, means[step.is_training] - spent.get(step, 0.0)) for step in counted)
    if not total:
        return "time left unknown"
    word = "about" if len(counted) == len(left) else "over"
    return f"{word} {in_words(total / min(jobs, len(left)))} left"


def in_words(seconds: float) -> str:
    """Return a duration in words.

    Example:
        >>> in_words(42), in_words(600), in_words(9000)
        ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"

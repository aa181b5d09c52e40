"""Runs the steps of a sweep: several at once, each once, whatever happens to some of them."""

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

from relu_nmt.applications.sweep.plan import shown_command
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
    """A step under way.

    Args:
        step: what is run.
        place: which of the places for processes it has.
        lock: descriptor that holds the step's lock, until the step ends.
        log: open file that all its commands write to.
        state: as stored when it began.
        process: of the command that runs.
        command: number of that command.
        begun: monotonic time in seconds.
        is_told: whether it was asked to end.
    """

    step: Step
    place: int
    lock: int
    log: BinaryIO
    state: StepState
    process: subprocess.Popen[bytes]
    command: int = 0
    begun: float = field(default_factory=time.monotonic)
    is_told: bool = False

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self.begun

    def end(self) -> None:
        """Tell it to save its state and end."""
        if not self.is_told:
            self.is_told = True
            # Not by Popen, which takes the exit code of a command that has just ended.
            os.kill(self.process.pid, signal.SIGTERM)


class StepRunner:
    """Runs steps as processes of this machine; a subclass may run them elsewhere.

    Args:
        steps: all of them; a training comes before the evaluations of its model.
        config: how many at once, and where.
        environment: of the report, stored with every step.
        training_seconds: the budget of a training, if it is one of time.
        progress: print a line per event.

    Attributes:
        signal: number of the signal that stopped it, if one did.

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
        # Of the trainings (True) and the evaluations (False) that are done.
        self._seconds: dict[bool, list[float]] = {True: [], False: []}
        self._training_seconds = training_seconds
        self._running: list[Any] = []  # RunningStep, or what a subclass runs
        self._not_before: dict[Step, float] = {}
        self.signal: int | None = None
        self._kill = False
        for step in self._steps:
            self._look(step, first=True)

    @property
    def failed(self) -> int:
        """Number of steps that crashed; those that diverged are results."""
        return sum(status == FAILED for status in self._ended.values())

    def run(self, after_step: Callable[[], object]) -> None:
        """Run everything that is not done.

        Args:
            after_step: called when the results have changed.
        """
        self._after_step = after_step
        before = handle_stop_signals(self._note_signal)
        try:
            left, done = len(self._open_steps()), sum(s in FINAL for s in self._ended.values())
            self.say(f"{left} steps to do, {done} done before, {self._config.jobs} at once")
            told_waiting = False
            while self._running or (self._open_steps() and self.signal is None):
                self._reap()
                if self.signal is None:
                    self._start_what_fits()
                waiting = [step for step in self._open_steps() if step in self._not_before]
                if waiting and not self._running and not told_waiting:
                    told_waiting = True
                    self.say(f"{waiting[0]}: another sweep is at it; waiting (Ctrl-C stops)")
                time.sleep(POLL_SECONDS)
        finally:
            for running in self._running:  # an error of the sweep's own has ended it
                running.end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self) -> None:
        """Let what runs save its state, and wait until it has; the state of its steps stays open.

        For the handler of a signal, in the middle of :meth:`run`, after which the program ends.
        """
        for running in self._running:
            running.end()
            os.waitid(os.P_PID, running.process.pid, os.WEXITED | os.WNOWAIT)

    # ------------------------------------------------------------------- which step is next

    def _look(self, step: Step, first: bool = False) -> bool:
        """Read whether a step is done, here or by another sweep; return that."""
        state = step.state
        check_same_commands(step, state)
        if state is None or state.status not in FINAL:
            return False
        self._end(step, state.status, state.seconds if first else None)
        return True

    def _end(self, step: Step, status: str, seconds: float | None) -> None:
        self._ended[step] = status
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
        """Return the steps that may begin now, evaluations first: they give results."""
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
            if step not in self._ended:  # its training may just have turned out to diverge
                self._start(step)

    # ------------------------------------------------------------------- running one step

    def _start(self, step: Step) -> None:
        """Start a step, unless another sweep runs it, or has."""
        lock = acquire_lock(step.path(".lock"))
        if lock is None:
            self._not_before[step] = time.monotonic() + RETRY_LOCK_SECONDS
        elif self._look(step):
            os.close(lock)
            self.say(f"{step}: done by another sweep")
            self._delete_checkpoints(step)
        else:
            self._start_locked(step, lock)

    def _start_locked(self, step: Step, lock: int) -> None:
        place = min(set(range(self._config.jobs)) - {running.place for running in self._running})
        variables, earlier = self._config.environment(place), step.state
        shown = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
        environment = {**self._environment, **{n: variables[n] for n in shown if n in variables}}
        goes_on = step.is_training and earlier is not None and earlier.commands == step.commands
        state = StepState(
            STARTED,
            step.commands,
            step.model,
            started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            peak_memory=earlier.peak_memory if earlier is not None and goes_on else 0,
            environment=environment,
        )
        state.write(step)
        try:
            # A training that goes on keeps what it told before.
            log = open(step.path(".log"), "ab" if step.is_training else "wb")  # noqa: SIM115
        except OSError as error:
            raise DataError(f"{step.path('.log')}: cannot be written: {error.strerror}") from error
        process = self._spawn(step.commands[0], place, lock, log)
        self._running.append(RunningStep(step, place, lock, log, state, process))
        self.say(f"{step}: begins")

    def _spawn(
        self, command: Command, place: int, lock: int, log: BinaryIO
    ) -> subprocess.Popen[bytes]:
        log.write(f"$ {shlex.join(shown_command(command))}\n".encode())
        log.flush()
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._config.environment(place),
            # Ctrl-C reaches the sweep alone, which passes it on once.
            start_new_session=True,
            # The command holds the lock, too: it may outlive a sweep that is killed.
            pass_fds=[lock],
        )

    def _reap(self) -> None:
        """Take in the commands that have ended."""
        for running in list(self._running):
            process = running.process
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid == 0:
                self._pass_signal_on(running)
                continue
            process.returncode = os.waitstatus_to_exitcode(status)
            memory = max(running.state.peak_memory, usage.ru_maxrss * MAXRSS_UNIT)
            running.state = replace(running.state, peak_memory=memory)
            running.command += 1
            more = running.command < len(running.step.commands)
            if process.returncode == 0 and more and self.signal is None:
                command = running.step.commands[running.command]
                running.process = self._spawn(command, running.place, running.lock, running.log)
            else:
                self._finish(running, process.returncode, complete=not more)

    def _finish(self, running: RunningStep, exit_code: int, complete: bool) -> None:
        step, log = running.step, running.step.path(".log")
        running.log.close()
        self._running.remove(running)
        seconds = running.seconds
        status, note = DONE, ""
        if exit_code != 0 or not complete:
            if self.signal is not None:
                running.state.write(step)
                os.close(running.lock)
                self.say(f"{step}: stopped after {in_words(seconds)}")
                return
            status, note = FAILED, last_line(log)
            with suppress(DataError):  # it crashed before there were any results
                if step.is_training and TrainingResult.load(step.checkpoints).diverged:
                    status = DIVERGED
        state = replace(
            running.state, status=status, note=note, seconds=seconds, exit_code=exit_code
        )
        state.write(step)
        os.close(running.lock)
        self._conclude(step, state)

    def _conclude(self, step: Step, state: StepState) -> None:
        """Take in how a step has ended."""
        self._end(step, state.status, state.seconds)
        code = f"{state.status} (exit code {state.exit_code}): {state.note}"
        self.say(f"{step}: {code if state.note else state.status} after {in_words(state.seconds)}")
        self._delete_checkpoints(step)
        try:
            self._after_step()
        except ReluNmtError as error:  # what still runs is worth more; the last report tells it
            self.say(f"no report: {error}")

    def _delete_checkpoints(self, step: Step) -> None:
        """Delete the checkpoints that a model does not need when everything with it is done."""
        own = [other for other in self._steps if other.model == step.model]
        is_done = all(self._ended.get(other) in FINAL for other in own)
        if self._config.delete_checkpoints and is_done:
            kept = {other.checkpoint_of("--path") for other in own}
            for path in step.checkpoints.glob("*.safetensors"):
                if path not in kept:
                    path.unlink(missing_ok=True)

    # ------------------------------------------------------------------- words and signals

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        """Remember the signal: here a command may just be starting or ending."""
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
        left = [step for step in self._steps if step not in self._ended]
        known = dict(self._seconds)
        if not known[True] and self._training_seconds is not None:
            known[True] = [self._training_seconds]
        spent = {running.step: running.seconds for running in self._running}
        estimate = time_left(left, known, spent, self._config.jobs)
        clock, done = time.strftime("%H:%M:%S"), len(self._ended)
        print(f"{clock} | {done}/{len(self._steps)} | {estimate} | {text}", flush=True)


def last_line(path: Path) -> str:
    """Return the last line of a log that is not empty: what a command says that fails."""
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
    """Return in words how long a sweep will still take.

    Args:
        left: the steps that are not done.
        known: seconds of other trainings (True) and evaluations (False); those of a kind of which
            nothing is known are not counted.
        spent: seconds that the steps under way have run.
        jobs: how many run at once.
    """
    if not left:
        return "nothing left"
    means = {kind: sum(seconds) / len(seconds) for kind, seconds in known.items() if seconds}
    counted = [step for step in left if step.is_training in means]
    total = sum(max(0.0, means[step.is_training] - spent.get(step, 0.0)) for step in counted)
    if not total:
        return "time left unknown"
    word = "about" if len(counted) == len(left) else "over"
    return f"{word} {in_words(total / min(jobs, len(left)))} left"


def in_words(seconds: float) -> str:
    """Return a duration for people.

    Example:
        >>> in_words(42), in_words(600), in_words(9000)
        ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"

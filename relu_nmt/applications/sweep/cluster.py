"""Runs the steps of a sweep as jobs of a cluster: each is a sweep of one step where it runs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relu_nmt.applications.sweep.environment import describe_environment, probe
from relu_nmt.applications.sweep.runner import StepRunner
from relu_nmt.applications.sweep.settings import JobsConfig
from relu_nmt.applications.sweep.steps import FAILED, STARTED, Step, StepState
from relu_nmt.errors import ReluNmtError
from relu_nmt.io.cluster import Cluster, result_of

if TYPE_CHECKING:
    from submitit import Job
    from submitit.helpers import DelayedSubmission

JOBS_FOLDER = "jobs"


@dataclass
class StepWork:
    """What a job does: run one step, with its lock, its log and its state, as a local sweep does.

    Args:
        step: what is run.
        config: how.
    """

    step: Step
    config: JobsConfig
    runner: StepRunner | None = field(default=None, init=False)

    def __call__(self) -> int | None:
        """Run the step; return the number of the signal that stopped it, if one did."""
        gpus = probe([], [])["gpus"]
        self.runner = StepRunner([self.step], self.config, describe_environment(gpus))
        self.runner.run(lambda: None)
        return self.runner.signal

    def checkpoint(self) -> "DelayedSubmission":
        """Let the training save a checkpoint; return what goes on from it in another job.

        submitit calls it where the cluster is about to take the machine away.
        """
        from submitit.helpers import DelayedSubmission

        if self.runner is not None:
            self.runner.end()
        return DelayedSubmission(StepWork(self.step, self.config))


@dataclass
class RunningJob:
    """A job under way.

    Args:
        step: what it runs.
        job: submitit's.
        begun: monotonic time in seconds.
        is_told: whether it was asked to end.
    """

    step: Step
    job: "Job[int | None]"
    begun: float = field(default_factory=time.monotonic)
    is_told: bool = False

    @property
    def seconds(self) -> float:
        """How long ago it was submitted."""
        return time.monotonic() - self.begun

    def end(self) -> None:
        """Cancel it; its training saves a checkpoint."""
        if not self.is_told:
            self.is_told = True
            self.job.cancel()


class ClusterRunner(StepRunner):
    """Runs steps as jobs, on whichever machines the cluster has.

    What is done when, and what the results are, is as in its base; locks, logs and states are the
    jobs' own, so that sweeps of both kinds may share a folder.

    Raises:
        ConfigError: there is no such cluster here, or it does not know a parameter.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        config: JobsConfig,
        environment: dict[str, Any],
        training_seconds: float | None = None,
        progress: bool = True,
        folder: Path = Path(JOBS_FOLDER),
    ) -> None:
        super().__init__(steps, config, environment, training_seconds, progress)
        assert config.cluster is not None
        self._cluster = Cluster(config.cluster, config.asked_for, folder)
        # The folder of a step may hold what others need: the sweep deletes it, not the job.
        self._job_config = replace(
            config, jobs=1, cluster=None, cluster_parameters=None, delete_checkpoints=False
        )

    def _start(self, step: Step) -> None:
        if self._look(step):
            self.say(f"{step}: done by another sweep")
            self._delete_checkpoints(step)
            return
        job = self._cluster.submit(StepWork(step, self._job_config), str(step))
        self._running.append(RunningJob(step, job))
        self.say(f"{step}: job {job.job_id}")

    def _reap(self) -> None:
        for running in list(self._running):
            if self.signal is not None:
                running.end()
            if running.job.done():
                self._running.remove(running)
                self._take_in(running)

    def _take_in(self, running: RunningJob) -> None:
        """Take in how a job has ended; what it did stands in the state that it wrote."""
        step, note, stopped = running.step, "", None
        try:
            stopped = result_of(running.job)
        except ReluNmtError as error:
            note = str(error)
        state = step.state
        if state is not None and state.status != STARTED:
            self._conclude(step, state)
        elif self.signal is not None or stopped is not None:
            # A step that a signal stopped where it ran is open, and is submitted again.
            self.say(f"{step}: stopped")
        else:
            note = note or f"job {running.job.job_id} ended without a result"
            state = StepState(FAILED, step.commands, step.model, note, seconds=running.seconds)
            state.write(step)
            self._conclude(step, state)


def make_runner(
    steps: Sequence[Step],
    config: JobsConfig,
    environment: dict[str, Any],
    folder: Path,
    training_seconds: float | None = None,
    progress: bool = True,
) -> StepRunner:
    """Return what runs the steps, here or on a cluster.

    Args:
        steps: all of them; a training comes before the evaluations of its model.
        config: how many at once, and where.
        environment: of the report, stored with every step that runs here.
        folder: of the sweep.
        training_seconds: the budget of a training, if it is one of time.
        progress: print a line per event.

    Raises:
        ConfigError: a step was run with another command, or there is no such cluster.
        DataError: a state file is damaged.
    """
    if config.cluster is None:
        return StepRunner(steps, config, environment, training_seconds, progress)
    jobs = folder / JOBS_FOLDER
    return ClusterRunner(steps, config, environment, training_seconds, progress, jobs)

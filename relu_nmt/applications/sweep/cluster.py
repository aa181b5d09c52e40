"""Run the steps of a sweep as jobs of a cluster: each job runs a sweep of one step."""

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
    """The work of a job: run one step with its lock, log and state, like a local sweep."""

    step: Step
    config: JobsConfig
    runner: StepRunner | None = field(default=None, init=False)

    def __call__(self) -> int | None:
        """Run the step; return the number of the signal that stopped it, if any."""
        gpus = probe([], [])["gpus"]
        self.runner = StepRunner([self.step], self.config, describe_environment(gpus))
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


@dataclass
class RunningJob:
    """A running job of a step; ``begun`` is its monotonic time in seconds."""

    step: Step
    job: "Job[int | None]"
    begun: float = field(default_factory=time.monotonic)
    is_ending: bool = False

    @property
    def seconds(self) -> float:
        """Time since the submission."""
        return time.monotonic() - self.begun

    def end(self) -> None:
        """Cancel the job; its training saves a checkpoint."""
        if not self.is_ending:
            self.is_ending = True
            self.job.cancel()


class ClusterRunner(StepRunner):
    """A runner of steps as jobs of a cluster.

    The order of the steps and their results are those of the base class. The jobs themselves hold
    the locks and write logs and states, so that sweeps of both kinds may share a folder.

    Raises:
        ConfigError: this machine has no such cluster, or the cluster does not know a parameter.
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
        # The sweep deletes checkpoints, not the job: other steps may need them.
        self._job_config = replace(
            config, jobs=1, cluster=None, cluster_parameters=None, delete_checkpoints=False
        )

    def _start(self, step: Step) -> None:
        if self._is_done(step):
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
                self._finish_job(running)

    def _finish_job(self, running: RunningJob) -> None:
        """Note the end of a job from the state that it wrote."""
        # Fetch the result; a job that the cluster ended has none.
        step, note, stopped = running.step, "", None
        try:
            stopped = result_of(running.job)
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
    """Return the runner of the steps, for this machine or for a cluster.

    The arguments are those of :class:`StepRunner`, and the folder of the sweep.

    Raises:
        ConfigError: a step was run with another command, or the cluster is missing.
        DataError: a state file is damaged.
    """
    if config.cluster is None:
        return StepRunner(steps, config, environment, training_seconds, progress)
    jobs = folder / JOBS_FOLDER
    return ClusterRunner(steps, config, environment, training_seconds, progress, jobs)

"""Jobs in the queue of a cluster, or as processes of this machine, by submitit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relu_nmt.errors import ConfigError, ReluNmtError, needing

if TYPE_CHECKING:
    from submitit import Job
    from submitit.helpers import DelayedSubmission

# Submits a function without arguments, such as a :class:`ClusterJob`, under a name.
Submit = Callable[[Callable[[], Any], str], "Job[Any]"]
MINUTES_OF_A_WEEK = 7 * 24 * 60


@dataclass(frozen=True)
class ClusterJob:
    """A function with its argument, which a cluster may interrupt and start again."""

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

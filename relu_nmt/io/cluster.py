"""Jobs on the machines of a cluster, by submitit: the queue and the retries are the cluster's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relu_nmt.errors import ConfigError, ReluNmtError

if TYPE_CHECKING:
    from submitit import Job
    from submitit.helpers import DelayedSubmission

MINUTES_OF_A_WEEK = 7 * 24 * 60


@dataclass(frozen=True)
class Work:
    """A function with its argument, as a job that may be interrupted and started again.

    When its time is up, or others have precedence, the cluster takes the machine away and queues
    the job once more.

    Args:
        function: a function of a module; called again, it goes on where it stopped.
        argument: its argument. Both go to the job by pickle, as the result comes back.

    Example:
        >>> Work(abs, -1)()
        1
    """

    function: Callable[[Any], Any]
    argument: Any

    def __call__(self) -> Any:
        """Return the function's result, or the error that it raised for the user."""
        try:
            return self.function(self.argument)
        except ReluNmtError as error:
            return error

    def checkpoint(self) -> "DelayedSubmission":
        """Return the job to queue again; submitit calls this at the cluster's signal."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Cluster:
    """A cluster that takes jobs.

    Args:
        name: ``slurm``, or ``local``, which runs each job on this machine, at once.
        parameters: resources of a job, by submitit's names (``gpus_per_node``).
        folder: for the jobs' descriptions and output; all machines see it.

    Raises:
        ConfigError: submitit is not installed, or this machine has no such cluster, or the cluster
            no such parameter.
    """

    def __init__(self, name: str, parameters: Mapping[str, Any], folder: Path) -> None:
        try:
            import submitit
        except ImportError as error:
            raise ConfigError(
                "--cluster: submitit is not installed; pip install 'relu-nmt[cluster]'"
            ) from error
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._executor = submitit.AutoExecutor(folder, cluster=name)
            self._executor.update_parameters(**{"timeout_min": MINUTES_OF_A_WEEK, **parameters})
        except (AssertionError, RuntimeError, NameError, TypeError, ValueError, OSError) as error:
            line = " ".join(str(error).split())
            raise ConfigError(f"--cluster {name}, --cluster-parameters: {line}") from error

    def submit(self, work: Callable[[], Any], name: str) -> "Job[Any]":
        """Submit a job.

        Args:
            work: see :class:`Work`.
            name: the name in the queue.

        Raises:
            ReluNmtError: the cluster refuses the job.
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            self._executor.update_parameters(name=name)
            return self._executor.submit(work)
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            raise ReluNmtError(f"--cluster: {name} cannot be submitted: {error}") from error


def result_of(job: "Job[Any]") -> Any:
    """Wait for a job and return its result.

    Raises:
        ReluNmtError: the job's own error for the user; or the job ended without a result.
    """
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

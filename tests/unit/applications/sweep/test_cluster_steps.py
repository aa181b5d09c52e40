"""Steps as jobs of a cluster, with submitit's local mode and without any cluster."""

import dataclasses
import os
import pickle
import signal
import sys
import threading
import time

import pytest

from relu_nmt.applications.sweep.runner import StepJob, StepRunner
from relu_nmt.applications.sweep.settings import JobsConfig
from relu_nmt.applications.sweep.steps import DIVERGED, DONE, FAILED, PENDING, STARTED
from relu_nmt.errors import ConfigError, DataError, MissingExtraError
from relu_nmt.io.cluster import ClusterJob, cluster_queue, result_of
from tests.unit.applications.sweep.test_runner import make_steps, quick, runs, statuses  # noqa: F401

submitit = pytest.importorskip("submitit")

LOCAL = {"cluster": "local", "cluster_parameters": "timeout_min=10"}


def run(steps, folder, **config):
    runner = StepRunner(steps, JobsConfig(**LOCAL, **config), {}, folder)
    runner.run(lambda: None)
    return runner


@pytest.mark.slow
def test_jobs_do_what_a_local_sweep_does(tmp_path, capsys):
    steps = make_steps(tmp_path, "", "raise ValueError('a crash')", lengths=(8,), checkpoint="x")
    (steps[0].checkpoints).mkdir(parents=True)
    for name in ("x", "best.safetensors"):
        (steps[0].checkpoints / name).touch()
    runner = run(steps, tmp_path, jobs=2, delete_checkpoints=True)
    assert (runner.failed, runner.signals) == (1, [])
    assert statuses(steps) == [DONE, DONE, FAILED, PENDING]
    assert steps[2].stored().note == "ValueError: a crash"
    assert steps[0].stored().environment["cores"] >= 1
    assert sorted(runs(tmp_path)) == ["evaluate 1 8", "train 1", "train 2"]
    assert os.listdir(steps[0].checkpoints) == ["x"]
    # The same command continues: a local sweep, too, runs only failed steps.
    StepRunner(steps, JobsConfig(), {}).run(lambda: None)
    assert sorted(runs(tmp_path)) == ["evaluate 1 8", "train 1", "train 2", "train 2"]
    printed = capsys.readouterr().out
    assert "train softmax mixture 8 seed 1: job " in printed
    assert "| 4/4 | nothing left | evaluate softmax mixture 8 seed 1 at 8: done" in printed


class FakeJob:
    """A job with a given result."""

    job_id = "7"

    def __init__(self, work, result):
        self._work = work
        self._result = result
        self.cancelled = False

    def done(self):
        return True

    def cancel(self):
        self.cancelled = True

    def result(self):
        if isinstance(self._result, Exception):
            raise self._result
        return self._result(self._work) if callable(self._result) else self._result

    class paths:
        stderr = "7_log.err"


@pytest.fixture
def cluster(monkeypatch):
    """A cluster whose jobs have the results in a list, one after the other."""
    ends = []
    submitted = []

    def submit(work, name):
        submitted.append(FakeJob(pickle.loads(pickle.dumps(work)), ends.pop(0)))
        return submitted[-1]

    monkeypatch.setattr("relu_nmt.applications.sweep.runner.cluster_queue", lambda *_: submit)
    return ends, submitted


def finish(status):
    return lambda work: dataclasses.replace(work.step, status=status).write()


def test_a_step_whose_machine_was_taken_away_is_submitted_again(tmp_path, cluster, capsys):
    ends, submitted = cluster
    steps = make_steps(tmp_path, "", lengths=(8,))

    ends += [finish(STARTED), finish(DONE), finish(DONE)]
    assert run(steps, tmp_path).failed == 0
    assert statuses(steps) == [DONE, DONE]
    assert [job._work.step for job in submitted] == [steps[0], *steps]
    assert "train softmax mixture 8 seed 1: stopped" in capsys.readouterr().out


def test_the_failure_of_a_dead_job_names_its_log(tmp_path, cluster):
    ends, _ = cluster
    ends += [submitit.core.utils.UncompletedJobError("Job 7\nhas no output")]
    steps = make_steps(tmp_path, "", lengths=(8,))
    assert run(steps, tmp_path).failed == 1
    assert steps[0].stored().note == "job 7: has no output (see 7_log.err)"


def test_a_job_that_diverged_is_a_result(tmp_path, cluster):
    ends, _ = cluster
    ends += [finish(DIVERGED)]
    steps = make_steps(tmp_path, "", lengths=(8,))
    assert run(steps, tmp_path).failed == 0
    assert statuses(steps) == [DIVERGED, PENDING]


def test_a_signal_cancels_the_jobs(tmp_path, cluster):
    ends, submitted = cluster

    def interrupted(work):
        assert submitted[0].cancelled
        finish(STARTED)(work)

    ends += [interrupted]
    steps = make_steps(tmp_path, "", lengths=(8,))
    runner = StepRunner(steps, JobsConfig(**LOCAL), {}, tmp_path)
    start = runner._start

    def start_and_interrupt(task):
        start(task)
        os.kill(os.getpid(), signal.SIGINT)

    runner._start = start_and_interrupt
    runner.run(lambda: None)
    assert (runner.signals, statuses(steps)) == ([signal.SIGINT], [STARTED, PENDING])


def test_a_training_saves_and_continues_elsewhere_when_the_cluster_takes_the_machine(tmp_path):
    save = (
        "import signal, time\n"
        "def stop(*_): open('saved', 'w'); sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "open('ready', 'w')\n"
        "time.sleep(0 if os.path.exists('saved') else 60)"
    )
    steps = make_steps(tmp_path, save, lengths=())
    work = StepJob(steps[0], JobsConfig(), {})
    again = []

    def take_away(*_):
        again.append(work.checkpoint())
        assert (tmp_path / "saved").exists()  # it has been waited for
        sys.exit(3)

    def send():
        while not (tmp_path / "ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, take_away)
    threading.Thread(target=send).start()
    try:
        with pytest.raises(SystemExit):
            work()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert statuses(steps) == [STARTED]
    assert pickle.loads(pickle.dumps(again[0])).function() is None
    assert statuses(steps) == [DONE]


def fail(text):
    raise DataError(f"{text}: no such file")


def test_an_error_for_the_user_comes_back(tmp_path):
    executor = submitit.AutoExecutor(tmp_path, cluster="debug")
    with pytest.raises(DataError, match=r"^train\.de: no such file"):
        result_of(executor.submit(ClusterJob(fail, "train.de")))
    assert result_of(executor.submit(ClusterJob(abs, -2))) == 2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"gpus": 4}, "--cluster local, --cluster-parameters: .*gpus"),
        ({"timeout_min": "long"}, "--cluster local, --cluster-parameters: "),
    ],
)
def test_an_unknown_parameter_of_submitit_is_an_error(tmp_path, parameters, message):
    with pytest.raises(ConfigError, match=message):
        cluster_queue("local", parameters, tmp_path)


def test_without_submitit_there_is_a_hint(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'relu-nmt\[cluster\]'"):
        cluster_queue("local", {}, tmp_path)


def test_parameters_are_numbers_and_names():
    config = JobsConfig(cluster="slurm", cluster_parameters="timeout_min=60,slurm_partition=long")
    assert config.asked_for == {"timeout_min": 60, "slurm_partition": "long"}
    assert JobsConfig().asked_for == {}
    with pytest.raises(ConfigError, match="--cluster-parameters: 'long': expected NAME=VALUE"):
        JobsConfig(cluster="slurm", cluster_parameters="long")
    with pytest.raises(ConfigError, match="--gpus"):
        JobsConfig(cluster="slurm", gpus=("0",))

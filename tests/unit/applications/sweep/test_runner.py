"""Steps run once each and several at a time, even if some fail."""

import dataclasses
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from relu_nmt.applications.sweep.runner import StepJob, StepRunner, last_line
from relu_nmt.applications.sweep.settings import JobsConfig
from relu_nmt.applications.sweep.steps import (
    DIVERGED,
    DONE,
    FAILED,
    PENDING,
    STARTED,
    Step,
    SweepModel,
    trainings_in,
)
from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import acquire_lock
from relu_nmt.training.budgets import in_words
from relu_nmt.training.config import RESULTS_FILE
from relu_nmt.training.save_dir import TrainingResult

NOTE_RUN = "import os, sys; open('ran', 'a').write(sys.argv[1] + chr(10)); "


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr("relu_nmt.applications.sweep.runner.POLL_SECONDS", 0.02)
    monkeypatch.setattr("relu_nmt.applications.sweep.runner.RETRY_LOCK_SECONDS", 0.1)
    monkeypatch.chdir(tmp_path)


def make_steps(folder, *codes, lengths=(8, 16), checkpoint=None):
    """Return the steps of a model for each code, which its training runs."""
    steps = []
    for seed, code in enumerate(codes, 1):
        model = SweepModel("softmax", seed, (8,), is_mixture=True)
        home = folder / model.name
        command = (sys.executable, "-c", NOTE_RUN + code, f"train {seed}")
        steps.append(Step(model, None, home, (command,)))
        for length in lengths:
            command = (sys.executable, "-c", NOTE_RUN, f"evaluate {seed} {length}")
            if checkpoint:
                command += ("--path", str(home / "checkpoints" / checkpoint))
            steps.append(Step(model, length, home, (command,)))
    return steps


def run(steps, reports=None, **config):
    config = JobsConfig(**config)
    after_step = (lambda: None) if reports is None else (lambda: reports.append(1))
    runner = StepRunner(steps, config, {"torch": "x"})
    runner.run(after_step)
    return runner


def runs(folder):
    path = folder / "ran"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def noted(step):
    """Return the words that the command of a step notes."""
    return " ".join(step.commands[0][3:])


def statuses(steps):
    return [step.stored().status for step in steps]


def test_everything_runs_once_and_is_not_repeated(tmp_path, capsys):
    steps = make_steps(tmp_path, "", "")
    reports = []
    runner = run(steps, reports, jobs=2)
    assert (runner.failed, runner.signals) == (0, [])
    assert statuses(steps) == [DONE] * 6
    assert len(reports) == 6
    assert sorted(runs(tmp_path)) == sorted(map(noted, steps))
    assert runs(tmp_path).index("train 1") < runs(tmp_path).index("evaluate 1 8")
    assert run(steps, jobs=2).failed == 0
    assert len(runs(tmp_path)) == 6
    printed = capsys.readouterr().out
    assert "| 6/6 | nothing left |" in printed
    assert "0 steps to do, 6 done before" in printed


def test_the_state_has_time_memory_and_environment(tmp_path):
    steps = make_steps(tmp_path, "x = bytes(50_000_000); print(len(x))", lengths=())
    run(steps)
    state = steps[0].stored()
    assert state.peak_memory > 50_000_000
    assert state.seconds > 0
    assert state.environment["torch"] == "x"
    assert int(state.environment["OMP_NUM_THREADS"]) >= 1
    log = steps[0].path(".log").read_text()
    assert log.startswith("$ ")
    assert log.endswith("\n50000000\n")
    assert trainings_in(tmp_path.parent) == []


def test_a_continued_training_keeps_its_peak_memory(tmp_path):
    # The first run needs much memory and is stopped. The second one needs little.
    code = (
        "import time\nif not os.path.exists('large'):\n"
        "    x = b'x' * 90_000_000; open('large', 'w'); time.sleep(60)"
    )
    steps = make_steps(tmp_path, code, lengths=())

    def stop():
        while not (tmp_path / "large").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    run(steps)
    thread.join()
    assert statuses(steps) == [STARTED]
    assert run(steps).failed == 0
    assert steps[0].stored().peak_memory > 90_000_000


def test_a_crash_and_a_divergence_stop_nothing_else(tmp_path, capsys):
    home = tmp_path / SweepModel("softmax", 2, (8,), is_mixture=True).name
    TrainingResult(tmp_path / "diverged", diverged=True).write()
    diverge = (
        f"import shutil; os.makedirs('{home}/checkpoints')\n"
        f"shutil.copy('diverged/{RESULTS_FILE}', '{home}/checkpoints')\n"
        "sys.exit('error: update 3: loss became not finite')"
    )
    steps = make_steps(tmp_path, "raise ValueError('a crash')", diverge, "", lengths=(8,))
    assert run(steps).failed == 1
    assert statuses(steps) == [FAILED, PENDING, DIVERGED, PENDING, DONE, DONE]
    assert steps[0].stored().note == "ValueError: a crash"
    assert steps[2].stored().exit_code == 1
    assert "diverged (exit code 1): error: update 3" in capsys.readouterr().out
    # A failed step runs again. A diverged one does not.
    assert run(steps).failed == 1
    assert runs(tmp_path) == ["train 1", "train 2", "train 3", "evaluate 3 8", "train 1"]


def test_a_process_killed_from_outside_is_a_failure(tmp_path):
    steps = make_steps(tmp_path, "os.kill(os.getpid(), 9)", lengths=())
    assert run(steps).failed == 1
    assert steps[0].stored().exit_code == -signal.SIGKILL


def test_processes_run_side_by_side(tmp_path):
    # Each waits until the other has begun.
    wait = (
        "import time; open(f'here{sys.argv[1][-1]}', 'w'); t = time.time()\n"
        "while len([n for n in os.listdir() if n.startswith('here')]) < 2:\n"
        "    time.sleep(0.02)\n"
        "    assert time.time() - t < 60\n"
    )
    steps = make_steps(tmp_path, wait, wait, lengths=())
    assert run(steps, jobs=2).failed == 0


def test_a_signal_ends_the_processes_and_the_next_run_continues(tmp_path, capsys):
    code = "import time; time.sleep(0 if os.path.exists('again') else 60)"
    steps = make_steps(tmp_path, code, lengths=(8,))

    def stop():
        while "train 1" not in runs(tmp_path):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    runner = run(steps)
    thread.join()
    assert runner.signals == [signal.SIGTERM]
    assert statuses(steps) == [STARTED, PENDING]
    assert "stopped after" in capsys.readouterr().out
    (tmp_path / "again").touch()
    assert run(steps).failed == 0
    assert statuses(steps) == [DONE, DONE]


def test_a_signal_does_not_lose_a_step_that_has_just_ended(tmp_path, monkeypatch):
    [step] = make_steps(tmp_path, "", lengths=())
    work = StepJob(step, JobsConfig(), {})

    def sleep(_):
        # The command exits before the job looks again.
        os.waitid(os.P_PID, work.process.pid, os.WEXITED | os.WNOWAIT)
        work.signals.append(signal.SIGTERM)

    monkeypatch.setattr("relu_nmt.applications.sweep.runner.time.sleep", sleep)
    work.run(acquire_lock(step.path(".lock")))
    assert statuses([step]) == [DONE]


def test_a_second_signal_kills_a_command_that_ignores_the_first(tmp_path, monkeypatch):
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); open('on', 'w'); time.sleep(60)"
    [step] = make_steps(tmp_path, code, lengths=())
    work = StepJob(step, JobsConfig(), {})

    def sleep(_):
        if (tmp_path / "on").exists():
            work.signals.append(signal.SIGTERM)

    monkeypatch.setattr("relu_nmt.applications.sweep.runner.time.sleep", sleep)
    work.run(acquire_lock(step.path(".lock")))
    assert statuses([step]) == [STARTED]


def test_a_report_that_fails_stops_nothing(tmp_path, capsys):
    steps = make_steps(tmp_path, "", lengths=(8,))

    def after_step():
        raise DataError("report.html: cannot be written")

    runner = StepRunner(steps, JobsConfig(), {})
    runner.run(after_step)
    assert runner.failed == 0
    assert statuses(steps) == [DONE, DONE]
    assert "no report: report.html: cannot be written" in capsys.readouterr().out


def test_a_step_that_another_sweep_runs_is_waited_for(tmp_path, monkeypatch):
    steps = make_steps(tmp_path, "", lengths=(8,))
    lock = acquire_lock(steps[0].path(".lock"))

    def other_sweep():
        while "waiting" not in printed.getvalue():
            time.sleep(0.02)
        os.close(lock)

    printed = io.StringIO()
    monkeypatch.setattr("sys.stdout", printed)
    thread = threading.Thread(target=other_sweep)
    thread.start()
    run(steps)
    thread.join()
    assert runs(tmp_path) == ["train 1", "evaluate 1 8"]


def test_two_sweeps_at_once_share_the_work(tmp_path, quick_python):
    steps = make_steps(tmp_path, *["import time; time.sleep(0.1)"] * 4, lengths=(8,))
    code = (
        "import sys; sys.executable = sys.argv[2]; sys.path.insert(0, sys.argv[1]); "
        "from test_runner import make_steps, run; from pathlib import Path; "
        "import relu_nmt.applications.sweep.runner as r; "
        "r.POLL_SECONDS = 0.02; r.RETRY_LOCK_SECONDS = 0.1; "
        "run(make_steps(Path.cwd(), *['import time; time.sleep(0.1)'] * 4, lengths=(8,)))"
    )
    command = [quick_python, "-c", code, str(Path(__file__).parent), sys.executable]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    run(steps)
    assert other.wait() == 0
    other.stdout.close()
    assert sorted(runs(tmp_path)) == sorted(map(noted, steps))


def test_several_commands_of_a_step_stop_at_the_first_that_fails(tmp_path):
    model = SweepModel("softmax", 1, (8,))
    good = (sys.executable, "-c", NOTE_RUN, "")
    bad = (sys.executable, "-c", NOTE_RUN + "sys.exit(3)", "sys.exit(3)")
    step = Step(model, None, tmp_path / "m", (good, bad, good))
    assert run([step]).failed == 1
    assert step.stored().exit_code == 3
    assert runs(tmp_path) == ["", "sys.exit(3)"]


def test_only_the_evaluated_checkpoint_stays_when_all_is_done(tmp_path):
    steps = make_steps(tmp_path, "", "sys.exit(1)", lengths=(8,), checkpoint="best.safetensors")
    names = ["best.safetensors", "document_lengths.json", "last.safetensors"]
    for step in steps:
        step.checkpoints.mkdir(parents=True, exist_ok=True)
        for name in names:
            (step.checkpoints / name).touch()
    run(steps, delete_checkpoints=True)
    assert sorted(os.listdir(steps[0].checkpoints)) == names[:2]
    assert sorted(os.listdir(steps[2].checkpoints)) == names


def test_a_checkpoint_that_a_later_command_evaluates_stays(tmp_path):
    model = SweepModel("softmax", 1, ())
    last = tmp_path / "checkpoints" / "last.safetensors"
    last.parent.mkdir()
    for path in (last, last.with_name("best.safetensors")):
        path.touch()
    train = (sys.executable, "-c", NOTE_RUN, "train")
    evaluate = (sys.executable, "-c", NOTE_RUN, str(last))
    run([Step(model, None, tmp_path, (train, evaluate))], delete_checkpoints=True)
    assert list(last.parent.iterdir()) == [last]


def test_the_sweep_that_sees_the_last_step_done_deletes_the_checkpoints(tmp_path):
    steps = make_steps(tmp_path, "", lengths=(8, 16), checkpoint="best.safetensors")
    steps[0].checkpoints.mkdir(parents=True)
    for name in ("best.safetensors", "last.safetensors"):
        (steps[0].checkpoints / name).touch()
    run(steps[:1])
    lock = acquire_lock(steps[1].path(".lock"))

    def other_sweep():
        while len(runs(tmp_path)) < 2:
            time.sleep(0.02)
        dataclasses.replace(steps[1], status=DONE).write()
        os.close(lock)

    thread = threading.Thread(target=other_sweep)
    thread.start()
    run(steps, delete_checkpoints=True)
    thread.join()
    assert os.listdir(steps[0].checkpoints) == ["best.safetensors"]


def test_the_last_line_of_a_log_is_the_last_that_is_not_blank(tmp_path):
    path = tmp_path / "log"
    assert last_line(path) == ""
    path.write_text("x" * 20_000 + "\nerror: update 3\n\n \n")
    assert last_line(path) == "error: update 3"


@pytest.mark.parametrize(
    ("trained", "evaluated", "begun", "jobs", "expected"),
    [
        ([None] * 4, [None] * 4, {}, 2, "time left unknown"),
        # Three trainings of 600 s by two processes, and evaluations of unknown time.
        ([600.0, None, None, None], [None] * 4, {}, 2, "over 15 min left"),
        ([600.0, None, None, None], [60.0, None, None, None], {1: 300.0}, 2, "about 14 min left"),
        # A process takes longer than expected: the time left is not negative.
        ([600.0, 600.0, None, None], [60.0] * 4, {2: 5000.0}, 1, "about 10 min left"),
        ([600.0] * 4, [60.0] * 4, {}, 2, "nothing left"),
    ],
)
def test_the_time_left_comes_from_the_steps_that_are_done(
    tmp_path, capsys, trained, evaluated, begun, jobs, expected
):
    models = [SweepModel("softmax", seed, (8,)) for seed in range(4)]
    steps = [Step(model, None, tmp_path) for model in models]
    steps += [Step(model, 8, tmp_path) for model in models]
    runner = StepRunner(steps, JobsConfig(jobs=jobs), {})
    for number, (task, seconds) in enumerate(zip(runner.tasks, trained + evaluated, strict=True)):
        if seconds is not None:
            task.step = dataclasses.replace(task.step, status=DONE, seconds=seconds)
        if number in begun:
            task.begun = time.monotonic() - begun[number]
    runner.say("an event")
    assert capsys.readouterr().out.split(" | ")[2] == expected


def test_a_budget_of_time_gives_the_first_estimate(tmp_path, capsys):
    steps = [step for step in make_steps(tmp_path, "", "") if step.is_training]
    StepRunner(steps, JobsConfig(), {}, training_seconds=900.0).say("an event")
    expected = ["0/2", "about 30 min left", "an event\n"]
    assert capsys.readouterr().out.split(" | ")[1:] == expected


def test_a_quiet_sweep_prints_nothing(capsys):
    StepRunner([], JobsConfig(), {}, progress=False).say("an event")
    assert capsys.readouterr().out == ""


def test_durations_are_given_in_at_most_two_units():
    assert list(map(in_words, (99.4, 100, 5999, 86_400))) == [
        "99 s",
        "2 min",
        "1 h 40 min",
        "24 h 0 min",
    ]

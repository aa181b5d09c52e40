import faulthandler
import functools
import gc
import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from relu_nmt.errors import DataError, ReluNmtError
from relu_nmt.io import workers
from relu_nmt.io.workers import ordered_map

main_pid = os.getpid()


def fail_at_three(number):
    if number == 3:
        raise DataError("file:3: bad")
    return number


def die_at_three(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def crash():
    faulthandler.disable()  # prints nothing
    signal.raise_signal(signal.SIGSEGV)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_have_the_order_of_the_tasks(workers):
    results = list(ordered_map(functools.partial(operator.add, 100), range(50), workers))
    assert results == list(zip(range(50), range(100, 150), strict=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_worker_reaches_the_caller(workers):
    with pytest.raises(DataError, match="file:3: bad"):
        list(ordered_map(fail_at_three, range(10), workers))


def test_killed_worker_is_reported():
    with pytest.raises(ReluNmtError, match="a worker process was killed"):
        list(ordered_map(die_at_three, range(10), 2))


def test_tasks_are_taken_only_when_needed():
    started = []

    def tasks():
        for i in range(1000):
            started.append(i)
            yield i

    results = ordered_map(abs, tasks(), 2)
    next(results)
    assert len(started) < 20
    results.close()


def report_and_wait(path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(60)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_when_the_parent_is_killed(tmp_path):
    path = tmp_path / "pids"
    path.touch()
    # A fork would wait forever for threads of OpenMP that earlier tests left here.
    workers._end_openmp_threads()
    parent = multiprocessing.get_context("fork").Process(
        target=lambda: list(ordered_map(report_and_wait, [str(path)] * 2, 2))
    )
    parent.start()
    wait_for(lambda: len(path.read_text().splitlines()) == 2)
    parent.kill()
    parent.join()
    for pid in map(int, path.read_text().split()):
        wait_for(lambda pid=pid: not is_running(pid))


HANGS = """
import ctypes, functools, os, sys
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.io import workers

workers.SECONDS_BETWEEN_LINES = 0.2

def hang(milliseconds):
    print(os.getpid(), flush=True)
    ctypes.PyDLL(None).poll(None, ctypes.c_ulong(0), milliseconds)  # holds the interpreter's lock

hang_aside = functools.partial(workers.call_aside, lambda: hang(99_000), "learning")
hang_in_workers = functools.partial(workers.ordered_map, hang, [99_000] * 2, 2)
WAYS = {"aside": lambda _: hang_aside(), "workers": lambda _: list(hang_in_workers())}
sys.exit(run_command(make_parser("test", None), WAYS[sys.argv[1]], []))
"""


@pytest.mark.skipif(not workers.FORKS, reason="needs processes that fork")
@pytest.mark.parametrize("way", ["aside", "workers"])
def test_an_interrupt_ends_a_call_that_does_not_return(way):
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS, way],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Programs that a shell starts in the background ignore Ctrl-C, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    pid = int(process.stdout.readline())
    lines = [process.stderr.readline()] if way == "aside" else []
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=300)
    lines += error.splitlines(keepends=True)
    assert process.returncode == 130
    assert lines[-1] == "test: interrupted\n"
    assert all(line.startswith("learning: ") for line in lines[:-1])
    wait_for(lambda: not is_running(pid))


INTERRUPTED_WHILE_FORKED = """
import os, signal
from relu_nmt.io import workers

os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGINT))
print(list(workers.ordered_map(abs, [-1, -2], 2)), workers.call_aside(lambda: 3, "x"))
"""


@pytest.mark.skipif(not workers.FORKS, reason="needs processes that fork")
def test_an_interrupt_does_not_reach_a_worker_that_has_just_been_forked():
    program = [sys.executable, "-c", INTERRUPTED_WHILE_FORKED]
    process = subprocess.run(
        program, capture_output=True, text=True, check=False, start_new_session=True
    )
    assert process.stdout == "[(-1, 1), (-2, 2)] 3\n"
    assert process.stderr == ""


def test_a_call_aside_returns_or_raises_as_the_function_does():
    lock = threading.Lock()  # cannot be pickled
    locked, pid = workers.call_aside(lambda: (lock.locked(), os.getpid()), "x")
    assert not locked and pid != main_pid
    with pytest.raises(DataError, match="file:3: bad"):
        workers.call_aside(lambda: fail_at_three(3), "x")
    with pytest.raises(ReluNmtError, match="was killed"):
        workers.call_aside(lambda: die_at_three(3), "x")
    with pytest.raises(ReluNmtError, match=r"crashed \(SIGSEGV\)"):
        workers.call_aside(crash, "x")


LEARNS_AFTER_TORCH = """
import io, torch, sentencepiece  # which share a library of OpenMP in this order
from relu_nmt.io.workers import call_aside

def learn():
    model = io.BytesIO()
    lines = [f"word{number} another{number % 7}" for number in range(500)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=60, num_threads=4,
        hard_vocab_limit=False, minloglevel=2,
    )
    return len(model.getvalue())

torch.set_num_threads(2)
torch.randn(999, 999) @ torch.randn(999, 999)
torch.randn(10**6).exp()
assert call_aside(learn, "learning") > 1000
"""


@pytest.mark.skipif(not workers.FORKS, reason="needs processes that fork")
def test_sentencepiece_learns_aside_after_pytorch_used_threads():
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", LEARNS_AFTER_TORCH]
    subprocess.run(command, env=environment, check=True, timeout=300)


class OfTheParent:
    """An object in a circle, like a library's whose threads no fork has."""

    def __init__(self):
        self.circle = self

    def __del__(self):
        if os.getpid() != main_pid:
            os._exit(1)


@pytest.mark.skipif(not workers.FORKS, reason="needs processes that fork")
def test_workers_do_not_collect_objects_of_the_parent():
    OfTheParent()
    assert workers.call_aside(lambda: gc.collect() >= 0, "x")
    gc.collect()


def is_running(pid):
    try:
        # A zombie has ended. Who adopted it has not looked yet.
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)

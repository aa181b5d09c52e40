"""Trainings, and their folders, after a signal, a closed pipe, a full disk or a killed process."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relu_nmt.io.safe_write import acquire_lock
from relu_nmt.training.checkpoint import read_metadata
from tests.commands import assert_refused, command_line, run_here, wait_for
from tests.tiny import digit_lines, preprocessed, write_lines

ROOT = Path(__file__).parents[2]
FLAGS = "--arch transformer_tiny --cpu --max-tokens 100 --log-interval 1 --no-epoch-checkpoints"
LAST = "checkpoint_last.safetensors"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    rng = random.Random(0)
    for split, count in (("train", 60), ("valid", 8)):
        write_lines(folder, split, digit_lines(rng, count))
    return preprocessed(folder)


def start(data, save_dir, *flags, python=sys.executable, command=(), **streams):
    program = [*command, python, "-m", "relu_nmt.cli.train"]
    words = command_line([program, data, FLAGS.split(), flags, "--save-dir", save_dir])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, **streams)


def updates(folder):
    return read_metadata(folder / LAST)["training_state"]["num_updates"]


def test_a_reader_that_leaves_does_not_end_it_and_it_is_no_success(data, tmp_path, quick_python):
    flags = ("--max-update", "8")
    process = start(data, tmp_path, flags, python=quick_python, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    error = process.stderr.read().decode()
    assert process.wait(timeout=300) == 128 + signal.SIGPIPE
    assert updates(tmp_path) == 8
    assert error.count("\n") == 1 and "standard output cannot be written (Broken pipe)" in error


def test_a_full_disk_under_standard_output_does_not_end_it(data, tmp_path, quick_python):
    with open("/dev/full", "w") as full:
        process = start(data, tmp_path, "--max-update", "3", python=quick_python, stdout=full)
    error = process.stderr.read().decode()
    assert process.wait(timeout=300) == 2
    assert updates(tmp_path) == 3
    assert error.count("\n") == 1 and "No space left" in error


def test_a_log_file_that_cannot_be_written_does_not_end_it(data, tmp_path):
    flags = [*FLAGS.split(), "--max-update", "3", "--save-dir", tmp_path, "--log-file", "/dev/full"]
    done = run_here("train", data, flags, check=False)
    assert done.returncode == 2 and "num_updates=3" in done.stdout
    assert updates(tmp_path) == 3
    assert done.stderr.count("\n") == 1 and "the log file cannot be written" in done.stderr


def test_curves_that_cannot_be_written_do_not_end_it(data, tmp_path, monkeypatch):
    from torch.utils.tensorboard import SummaryWriter

    def fail(self):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(SummaryWriter, "flush", fail)
    flags = [*FLAGS.split(), "--max-update", "3", "--save-dir", tmp_path / "run"]
    flags += ["--tensorboard-logdir", tmp_path / "curves"]
    done = run_here("train", data, flags, check=False)
    assert done.returncode == 2 and "num_updates=3" in done.stdout
    assert "TensorBoard's files cannot be written (No space left" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_closed_terminal_and_a_queue_let_it_save(data, tmp_path, number, quick_python):
    process = start(data, tmp_path, python=quick_python, stdout=subprocess.PIPE, text=True)
    wait_for(process, "num_updates=3")
    process.send_signal(number)
    out, error = process.communicate(timeout=300)
    assert (process.returncode, error) == (128 + number, "")
    assert "interrupted" in out and updates(tmp_path) >= 3


def test_what_nohup_ignores_stays_ignored(data, tmp_path, quick_python):
    streams = {"stdout": subprocess.PIPE, "text": True}
    flags = ("--max-update", "30")
    process = start(data, tmp_path, flags, python=quick_python, command=["nohup"], **streams)
    wait_for(process, "num_updates=3")
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=300)
    assert process.returncode == 0 and updates(tmp_path) == 30


def test_two_trainings_in_one_folder_are_refused(data, tmp_path):
    flags = [*FLAGS.split(), "--max-update", "1", "--save-dir", tmp_path]
    run_here("train", data, flags)
    run_here("train", data, flags)  # the first has let go of it
    lock = acquire_lock(tmp_path / ".lock")
    done = run_here("train", data, flags, check=False)
    os.close(lock)
    assert_refused(done, f"--save-dir {tmp_path}: another training is writing to it")


def test_a_training_that_writes_nothing_leaves_no_folder(data, tmp_path):
    folder = tmp_path / "checkpoints"
    for save_dir, data_folder in ((folder, tmp_path / "none"), (tmp_path, data)):
        flags = [data_folder, *FLAGS.split(), "--source-lang", "none", "--save-dir", save_dir]
        assert run_here("train", flags, check=False).returncode == 2
    assert not folder.exists() and tmp_path.exists()


def test_a_killed_training_lets_go_of_its_folder(data, tmp_path, quick_python):
    process = start(data, tmp_path, python=quick_python, stdout=subprocess.PIPE, text=True)
    wait_for(process, "num_updates=2")
    flags = [*FLAGS.split(), "--max-update", "1", "--save-dir", tmp_path]
    assert run_here("train", data, flags, check=False).returncode == 2
    process.kill()
    process.communicate()
    run_here("train", data, flags)

"""Processes that train together. Each is a fork of one that has imported PyTorch, not of the tests:
a fork of the tests would find their threads gone, with the locks that these held."""

import contextlib
import faulthandler
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import cloudpickle

from relu_nmt.training.distributed import join_processes

ROOT = Path(__file__).parents[1]
SECONDS = 300  # until a process that hangs is ended

_ports = itertools.count(64 * os.getpid())


def free_port():
    """Return the number of a free port, which the system gives to no other program."""
    for number in _ports:
        port = 10_000 + number % 20_000  # Linux gives those from 32,768.
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port


def run_ranks(python, work, count, folder, joined=True):
    """Call ``work(process)`` in so many processes on the CPU and return their exit codes.

    What a process raises is written to ``folder/rank.N``, as is the place where it hangs. Unless
    they are ``joined`` here, it is ``work()``, which joins them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "work.pickle").write_bytes(cloudpickle.dumps((work, joined)))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
    }
    command = [python, "-m", "tests.ranks", str(folder)]
    ranks = []
    for rank in range(count):
        ranks.append(subprocess.Popen(command, env={**environment, "RANK": str(rank)}))
    return [rank.wait() for rank in ranks]


def errors_of(folder):
    """Return what the processes have raised."""
    return list(map(Path.read_text, folder.glob("rank.*")))


def main(folder):
    """Do the work of one process, and end it without waiting for anything."""
    code = 1
    with (folder / f"rank.{os.environ['RANK']}").open("w") as errors:
        faulthandler.register(signal.SIGALRM, errors, chain=True)
        signal.alarm(SECONDS)
        try:
            work, joined = pickle.loads((folder / "work.pickle").read_bytes())
            if joined:
                process = join_processes(cpu=True)
                work(process)
                process.close()
            else:
                work()
            code = 0
        except BaseException as error:
            errors.write(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

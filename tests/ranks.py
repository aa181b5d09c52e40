"""Processes that train together, forked from the tests': each spares the seconds of an import."""

import contextlib
import importlib
import itertools
import os
import socket
import traceback

from relu_nmt.training.distributed import join_processes
from tests.commands import fork

_ports = itertools.count(64 * os.getpid())


def free_port():
    """Return the number of a free port, which the system gives to no other program."""
    for number in _ports:
        port = 10_000 + number % 20_000  # Linux gives those from 32,768.
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port


def run_ranks(work, count, folder, seconds=300, joined=True):
    """Call ``work(process)`` in so many processes on the CPU and return their exit codes.

    What a process raises is written to ``folder/rank.N``. Unless they are ``joined`` here, it is
    ``work()``, which joins them.
    """
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    # Two seconds that each process would take, since DistributedDataParallel imports it.
    importlib.import_module("torch._dynamo")
    numbers = []
    for rank in range(count):
        number = fork()
        if number == 0:
            os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
            _work(work, folder / f"rank.{rank}", seconds, joined)
        numbers.append(number)
    return [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers]


def _work(work, errors, seconds, joined):
    import signal

    signal.alarm(seconds)  # ends it, however it hangs
    code = 1
    try:
        if joined:
            process = join_processes(cpu=True)
            work(process)
            process.close()
        else:
            work()
        code = 0
    except BaseException as error:
        errors.write_text(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    finally:
        os._exit(code)

"""A Python that has imported PyTorch and relu_nmt already, for tests that start processes.

Each import takes seconds. ``start()`` writes a program that takes the words of ``python``. It asks
a server for a fork, lends it its streams, folder, environment and ignored signals, passes signals
on, and ends as the fork does. Tests of imports, memory and closed streams start ``sys.executable``
instead.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
PASSED_ON = {getattr(signal, name) for name in NAMES if hasattr(signal, name)}
SIZE = 4  # bytes of a number on the wire


@contextlib.contextmanager
def start(folder):
    """Yield the path of the program, which works until the context ends.

    Where there are no forks, it is ``sys.executable``.
    """
    if not hasattr(os, "fork"):
        yield sys.executable
        return
    address, program = str(folder / "socket"), folder / "python"
    words = f'"{sys.executable}" -I -S "{__file__}" ask "{address}"'
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)
    command = [sys.executable, __file__, "serve", address, str(program)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(command, env=environment, start_new_session=True, cwd=folder)
    while not os.path.exists(address):
        assert server.poll() is None, "the server did not start"
        time.sleep(0.05)
    try:
        yield program
    finally:
        server.terminate()
        server.wait()


# ------------------------------------------------------------------- the program


def ask(address, words):
    """Let the server run Python with these words, and end with its exit code or signal."""
    ignored = [number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        request = json.dumps([words, os.getcwd(), dict(os.environ), ignored]).encode()
        size = len(request).to_bytes(SIZE, "little")
        socket.send_fds(connection, [size], [0, 1, 2])
        connection.sendall(request)
        number = _receive(connection)
        for name in PASSED_ON:
            signal.signal(name, lambda received, _: _send_signal(number, received))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        code = _receive(connection)
    if code >= 0:
        os._exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def _send_signal(number, name):
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, name)


def _receive(connection):
    data = connection.recv(SIZE, socket.MSG_WAITALL)
    assert len(data) == SIZE, "the server of Python processes has ended"
    return int.from_bytes(data, "little", signed=True)


# ------------------------------------------------------------------- the server


def serve(address, program):
    """Answer requests, each in a separate process, until the tests end."""
    _import_all()
    sys.executable = program  # what a fork starts is a fork, too
    tests = os.getppid()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{address}.new")
        listening.listen(64)
        listening.settimeout(1)
        os.rename(f"{address}.new", address)
        while os.getppid() == tests:
            with contextlib.suppress(TimeoutError):
                connection, _ = listening.accept()
                if os.fork() == 0:
                    listening.close()
                    _answer(connection)
                connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _import_all():
    """Import what the commands import, those in functions included."""
    import gc
    import importlib
    import pkgutil

    import relu_nmt
    from relu_nmt.errors import MissingExtraError

    names = ["torch._dynamo", "torch.distributed.run", "torch.utils.data", "sacrebleu"]
    names += ["relu_nmt.applications.serving.app", "uvicorn.protocols.http.auto"]
    for package in ("cli", "jobs"):
        folder = f"{relu_nmt.__path__[0]}/{package}"
        modules = pkgutil.walk_packages([folder], f"relu_nmt.{package}.")
        names += [module.name for module in modules]
    for name in names:
        with contextlib.suppress(ImportError, MissingExtraError):  # an extra may be missing
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _answer(connection):
    """Run the request in another fork, tell its number and its end. Kill it with who asked."""
    size, streams, _, _ = socket.recv_fds(connection, SIZE, 3)
    data = connection.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)
    number = os.fork()
    if number == 0:
        connection.close()
        _run(*json.loads(data), streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(number.to_bytes(SIZE, "little"))
    connection.settimeout(0.01)
    while True:
        ended, status = os.waitpid(number, os.WNOHANG)
        if ended:
            break
        with contextlib.suppress(TimeoutError, ConnectionError):
            if not connection.recv(1):
                os.kill(number, signal.SIGKILL)
                connection.setblocking(True)
                _, status = os.waitpid(number, 0)
                break
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        connection.sendall(code.to_bytes(SIZE, "little", signed=True))
    os._exit(0)


def _run(words, folder, environment, ignored, streams):
    """Be Python with these words, and end the process."""
    import atexit
    import threading
    import traceback

    code, ended_by = 1, None
    try:
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        _run_words(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        ended_by = signal.SIGINT if isinstance(error, KeyboardInterrupt) else None
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        if ended_by:
            signal.signal(ended_by, signal.SIG_DFL)
            os.kill(os.getpid(), ended_by)
        os._exit(code & 255)


def _run_words(words):
    """Run a module, a file, a text or the standard input, as ``python`` with these words does."""
    import runpy

    if words[0] == "-u":
        sys.stdout.reconfigure(write_through=True)
        del words[0]
    first, *words = words
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [path for path in paths if path]
    if first == "-m":
        name, *words = words
        sys.argv = [name, *words]
        sys.path.insert(0, os.getcwd())
        sys.modules.pop(name, None)
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif first in ("-c", "-"):
        text, *words = words if first == "-c" else (sys.stdin.read(), *words)
        sys.argv = [first, *words]
        sys.path.insert(0, "")
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [first, *words]
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    {"ask": lambda address, *words: ask(address, list(words)), "serve": serve}[sys.argv[1]](
        *sys.argv[2:]
    )

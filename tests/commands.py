"""Run commands in the process of the tests, to save each the seconds of importing PyTorch.

Tests of signals, pipes and the cost of an import start a process instead.
"""

import contextlib
import gc
import importlib
import io
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from relu_nmt.io.workers import _end_openmp_threads

ROOT = Path(__file__).parents[1]
SCRIPT_FOLDERS = ("examples", "data_prep", "benchmarks")


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


def command_line(arguments):
    """Return a command line as text. Its arguments are words, paths, numbers and lists of them."""
    words = []
    for argument in arguments:
        words += command_line(argument) if isinstance(argument, list | tuple) else [str(argument)]
    return words


def run_here(name, *arguments, stdin="", check=True):
    """Run ``relu_nmt.cli.NAME`` with these words.

    Args:
        name: name of the command's module.
        arguments: words, paths, numbers, and lists of them.
        stdin: text on standard input.
        check: assert that the exit code is 0.
    """
    main = importlib.import_module(f"relu_nmt.cli.{name}").main
    out, error = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    before = sys.stdin
    with tempfile.TemporaryFile() as file, io.TextIOWrapper(file, "utf-8") as sys.stdin:
        file.write(stdin.encode())
        file.seek(0)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
                code = main(command_line(arguments))
        finally:
            sys.stdin = before
    done = Done(code, written_to(out), written_to(error))
    assert not check or code == 0, done.stderr
    return done


def written_to(stream):
    """Return the text that was written to a stream in memory."""
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8")


def assert_refused(done, *parts):
    """Assert that a command ended with exit code 2 and one line, which has these parts."""
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert re.match(r"relu-nmt-[a-z-]+: error: ", done.stderr), done.stderr
    for part in command_line(parts):
        assert part in done.stderr


def fork():
    """Fork the tests' process, as ``os.fork`` does, for a child that computes.

    The child has none of its threads. It would wait for those of OpenMP forever, or crash, as it
    would if it collected objects that end threads.
    """
    _end_openmp_threads()
    number = os.fork()
    if number == 0:
        gc.freeze()
    return number


def run_forked(work, cwd, environment=os.environ, seconds=300):
    """Call ``work()`` in a fork of the tests' process, which has imported PyTorch already.

    Modules of scripts that other tests imported are forgotten there.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        number = fork()
        if number == 0:
            signal.alarm(seconds)
            _end_with(work, cwd, dict(environment), files)
        code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        for file in files:
            file.seek(0)
        return Done(code, *(file.read().decode("utf-8") for file in files[1:]))


def wait_for(process, text):
    """Read the output of a process up to a line with this text."""
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(process.stderr.read())


def seconds_of_children():
    """Return the processor time of all processes that ended. A busy machine takes no more."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class ForkedCommand:
    """A command of a sweep's step as a fork of the tests' process, instead of a ``Popen``."""

    def __init__(self, command, *, stdin, stdout, env, **options):
        _, _, module, *words = command

        def work():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            sys.argv = [module, *words]
            sys.exit(importlib.import_module(module).main(words))

        self.pid = fork()
        if self.pid == 0:
            with open(os.devnull) as nothing:
                _end_with(work, Path.cwd(), env, (nothing, stdout, stdout))


def run_steps_in_forks(monkeypatch):
    """Let sweeps run their steps as forks, on a machine without GPUs."""
    module = SimpleNamespace(Popen=ForkedCommand, DEVNULL=None, STDOUT=None)
    monkeypatch.setattr("relu_nmt.applications.sweep.runner.subprocess", module)
    monkeypatch.setattr("relu_nmt.jobs.sweep.job.gpu_names", lambda: [])


def _end_with(work, cwd, environment, files):
    """Call ``work()`` with these files as standard streams, and end the process."""
    code = 1
    try:
        for target, file in enumerate(files):
            os.dup2(file.fileno(), target)
        streams = (open(n, "r" if n == 0 else "w") for n in range(3))  # noqa: SIM115
        sys.stdin, sys.stdout, sys.stderr = streams
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        sys.dont_write_bytecode = True
        folders = tuple(f"{ROOT}/{name}/" for name in SCRIPT_FOLDERS)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(folders):
                del sys.modules[name]
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def with_commands(folder, python=sys.executable):
    """Write all commands to a folder and return a shell's environment with them and one thread."""
    modules = [path.stem for path in (ROOT / "relu_nmt/cli").glob("[a-z]*.py")]
    programs = {f"relu-nmt-{name.replace('_', '-')}": f"-m relu_nmt.cli.{name}" for name in modules}
    folder.mkdir(exist_ok=True)
    for name, words in {**programs, "python": ""}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{python}" {words} "$@"\n')
        (folder / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }

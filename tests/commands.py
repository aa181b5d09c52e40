"""Run commands in the process of the tests, to save each the seconds of importing PyTorch.

Tests of signals, pipes and the cost of an import start a process instead.
"""

import contextlib
import importlib
import io
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


def run_here(name, *arguments, stdin="", check=True):
    """Run ``relu_nmt.cli.NAME`` with these words.

    Args:
        name: name of the command's module.
        arguments: words; paths and numbers become text.
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
                code = main([*map(str, arguments)])
        finally:
            sys.stdin = before
    texts = []
    for stream in (out, error):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8"))
    assert not check or code == 0, texts[1]
    return Done(code, *texts)


def with_commands(folder):
    """Write all commands to a folder; return a shell's environment with them and one thread."""
    modules = [path.stem for path in (ROOT / "relu_nmt/cli").glob("[a-z]*.py")]
    programs = {f"relu-nmt-{name.replace('_', '-')}": f"-m relu_nmt.cli.{name}" for name in modules}
    folder.mkdir(exist_ok=True)
    for name, words in {**programs, "python": ""}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (folder / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }

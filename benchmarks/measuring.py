"""Run a command and measure it: its lines with their times, processor time, memory."""

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECONDS_BETWEEN_SAMPLES = 0.1
SHARE_OF_SAMPLES = 0.01
"""Largest share of a command's time for reading its memory, since a reading visits all pages."""


def benchmark_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows the description as it is written."""
    formatter = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=description, formatter_class=formatter)


class FailedCommand(Exception):
    """An error of a command. The message has the command and its last line."""


@dataclass
class Run:
    """The result of a command.

    Args:
        lines: printed lines with their seconds since the start.
        seconds: wall time.
        cpu_seconds: user and system time of all its processes.
        peak_bytes: largest proportional set size of all its processes together, or ``None`` on
            systems other than Linux.
    """

    lines: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int | None = None

    @property
    def text(self) -> str:
        """The whole output."""
        return "\n".join(line for _, line in self.lines)


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    stdin: Path | None = None,
    folder: Path | None = None,
    interrupt_after: float | None = None,
) -> Run:
    """Run a command to its end.

    Args:
        command: program and arguments.
        environment: additional environment variables.
        stdin: input file. By default the input is empty.
        folder: working directory.
        interrupt_after: seconds after which the command gets the signal of Ctrl-C.

    Raises:
        FailedCommand: the command cannot start, or ended with an error.
    """
    if interrupt_after is not None:
        # Commands of a shell's background job would ignore the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    done = Run()
    ended = threading.Event()
    with open(stdin or os.devnull, "rb") as source:
        started = time.perf_counter()
        try:
            process = subprocess.Popen(
                command,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, **(environment or {})},
                cwd=folder,
            )
        except OSError as error:
            raise FailedCommand(f"{command[0]}: {error.strerror}") from error

        watcher = threading.Thread(target=_watch, args=(process.pid, done, ended))
        watcher.start()
        timer = threading.Timer(
            interrupt_after or threading.TIMEOUT_MAX, process.send_signal, [signal.SIGINT]
        )
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            done.lines.append((time.perf_counter() - started, line.rstrip("\n")))
        timer.cancel()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        done.seconds = time.perf_counter() - started
        done.cpu_seconds = usage.ru_utime + usage.ru_stime
        ended.set()
        watcher.join()
    if process.returncode:
        printed = [line.strip() for _, line in done.lines if line.strip()] or ["no word why"]
        program = Path(command[0]).name
        raise FailedCommand(f"{program} ended with {process.returncode}: {printed[-1]}")
    return done


def _watch(process: int, done: Run, ended: threading.Event) -> None:
    """Note the peak memory of a process and its descendants until the command has ended."""
    pause = SECONDS_BETWEEN_SAMPLES
    while not ended.wait(pause):
        began = time.perf_counter()
        done.peak_bytes = max(done.peak_bytes or 0, _memory_of_tree(process)) or None
        took = time.perf_counter() - began
        pause = max(SECONDS_BETWEEN_SAMPLES, took / SHARE_OF_SAMPLES)


def output_of(name: str, words: Sequence[str], stdin: bytes = b"") -> str:
    """Run a command of this toolkit and return its standard output. Stop if it fails."""
    call = [sys.executable, "-m", f"relu_nmt.cli.{name}", *words]
    process = subprocess.run(call, capture_output=True, check=False, input=stdin)
    if process.returncode:
        sys.exit(f"{' '.join(call)}: {process.stderr.decode()}")
    return process.stdout.decode()


def peak_resident() -> int:
    """Return the peak resident set of this program in bytes (Linux only).

    ru_maxrss would include the peak of the parent process.
    """
    status = Path("/proc/self/status").read_text("ascii")
    match = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert match is not None, "Linux writes it"
    return int(match[1]) * 1024


def _memory_of_tree(root: int) -> int:
    """Return the proportional set size of a process and all its descendants, in bytes."""
    total = 0
    todo = [root]
    while todo:
        process = todo.pop()
        try:
            for task in os.listdir(f"/proc/{process}/task"):
                children = Path(f"/proc/{process}/task/{task}/children").read_text("ascii")
                todo += map(int, children.split())
            for line in Path(f"/proc/{process}/smaps_rollup").read_text("ascii").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except (OSError, ValueError):
            continue  # the process has ended
    return total

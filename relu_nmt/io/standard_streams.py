"""Standard input and output: UTF-8 whatever the locale, and what to do when one is gone."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from relu_nmt.errors import DataError


@contextmanager
def utf8_streams() -> Iterator[None]:
    """Let standard output and standard error be UTF-8, and see that all is written at the end.

    Bytes of file names that are no UTF-8 come out as they are. What is told on a standard error
    that is closed goes nowhere.

    Raises:
        DataError: standard output is closed.
        OSError: it cannot be written; nothing more is then.
    """
    if sys.stderr is None:  # Python's word for a closed one
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise DataError("standard output is closed; lead it to a file, or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        yield
        sys.stdout.flush()
    except OSError:
        discard_output()
        raise


def discard_output() -> None:
    """Lead standard output nowhere: Python would complain once more when it flushes at exit."""
    with suppress(OSError, ValueError):  # of tests, it may be no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def standard_input() -> Any:
    """Return standard input as bytes.

    Raises:
        DataError: it is closed.
    """
    if sys.stdin is None:  # Python's word for a closed one
        raise DataError("standard input is closed; give a text there, or a file")
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # a program's that is no file
        return sys.stdin.buffer

"""What every command shares: its parser, and turning errors into one line and an exit code."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from relu_nmt.errors import ReluNmtError

USER_ERROR = 2
INTERRUPTED = 130


def make_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every command has."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--debug", action="store_true", help="show the trace of an error, not only its message"
    )
    return parser


def run_command(
    parser: argparse.ArgumentParser,
    body: Callable[[argparse.Namespace], int | None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse ``argv``, run ``body`` and return the exit code.

    Exit codes: 0 done, 2 a mistake that the user can mend (one line on standard error), 130
    interrupted from the keyboard.
    """
    arguments = parser.parse_args(argv)
    try:
        return body(arguments) or 0
    except ReluNmtError as error:
        if arguments.debug:
            raise
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has left: the rest of the output has nowhere to go, and Python
        # would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0

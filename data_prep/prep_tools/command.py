"""Errors of the corpus scripts, and how a script reports them."""

import argparse
import sys
from collections.abc import Callable, Sequence

from relu_nmt.errors import ReluNmtError

USER_ERROR = 2
INTERRUPTED = 130


class PrepError(ReluNmtError):
    """A mistake that the user can mend. The message is one line and says how."""


def script_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows the description as it is written."""
    return argparse.ArgumentParser(
        prog=name,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run_script(
    parser: argparse.ArgumentParser,
    body: Callable[[argparse.Namespace], None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse ``argv``, run ``body`` and return the exit code (0, 2 for a mistake, 130 for Ctrl-C).

    Every script gets ``--debug``, which shows the trace of an error.
    """
    parser.add_argument("--debug", action="store_true", help="show the trace of an error")
    arguments = parser.parse_args(argv)
    try:
        body(arguments)
    except ReluNmtError as error:
        if arguments.debug:
            raise
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return USER_ERROR
    except OSError as error:  # a full disk, a folder that cannot be written
        if arguments.debug:
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"{parser.prog}: error: {where}{error.strerror or error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted; run it again to go on", file=sys.stderr)
        return INTERRUPTED
    return 0


def say(message: str) -> None:
    """Print a line of progress at once, even into a pipe."""
    print(message, flush=True)

"""The frame of all commands: common options, errors as one line, and exit codes."""

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import relu_nmt
from relu_nmt.config import add_settings, flag_of, read_settings
from relu_nmt.config.command_line import HelpFormatter, Parser
from relu_nmt.config.registry import FLAG, import_user_module
from relu_nmt.errors import ConfigError, ReluNmtError, is_out_of_memory, printable, reporting
from relu_nmt.io.process import choose_threads, crowding_note, utf8_streams

KERNEL_CACHE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
"""Variable that limits oneDNN's cache of matrix products (bfloat16 on a CPU), compiled by shape.

Batches of text rarely repeat a shape, so that oneDNN's own limit of 1,024 mainly costs memory."""

MOST_SHOWN = 30  # most characters before the first wrong one of a name, in an error message
USER_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as in a shell
READER_LEFT = 141  # 128 + SIGPIPE


def make_parser(
    prog: str, description: str | None, user_modules: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with the options that every command has."""
    parser = Parser(prog=prog, description=description, formatter_class=HelpFormatter)
    parser.add_argument(
        "--debug", action="store_true", help="show the trace of an error, not only its message"
    )
    parser.add_argument("--version", action="version", version=f"relu_nmt {relu_nmt.__version__}")
    # Import the files while parsing, so that later flags can name their attentions.
    if user_modules:
        parser.add_argument(
            FLAG,
            "--user-dir",
            action="append",
            default=[],
            type=import_user_module,
            metavar="FILE",
            help="Python file or package folder with parts of your own; repeatable",
        )
    return parser


@dataclass(frozen=True)
class Command:
    """The ``main`` of a command that runs a job and returns the exit code."""

    prog: str
    description: str | None  # first text of ``--help``, most often the module's docstring
    settings_class: type[Any]  # settings whose flags the command has
    # The function that does the work, called with the settings. Its result may have an
    # ``exit_code``. ``module:function`` is imported when the flags are read and right.
    job: str | Callable[[Any], Any]
    user_modules: bool = True  # let the user add parts of their own
    computes: bool = True  # warn if other processes use the same cores
    most_used: str = ""  # the settings with which ``--help`` begins, with spaces between them
    usage: str = ""  # first line of ``--help``, if another than the usual one

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser of the command's flags."""
        parser = make_parser(self.prog, self.description, self.user_modules)
        parser.usage = self.usage or None
        add_settings(parser, self.settings_class, self.most_used.split())
        return parser

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run the command with these arguments, by default the command line's."""
        if isinstance(self.job, str):
            choose_threads()
        return run_command(self.parser(), self._run, argv)

    def _run(self, arguments: argparse.Namespace) -> int:
        return self.run_job(read_settings(self.settings_class, arguments))

    def run_job(self, settings: Any) -> int:
        """Run the job with settings. Return its exit code."""
        job = self.job
        if isinstance(job, str):
            note = crowding_note() if self.computes else ""
            if note:
                print(note, file=sys.stderr)
            # Import the job now: until here nothing has imported PyTorch.
            module, _, function = job.partition(":")
            job = getattr(importlib.import_module(module), function)
        return getattr(job(settings), "exit_code", 0)


def run_command(
    parser: argparse.ArgumentParser,
    body: Callable[[argparse.Namespace], int | None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse ``argv``, run ``body`` and return the exit code.

    Exit codes: 0 success, 2 an error that the user can fix (one line on standard error), 130
    interrupted from the keyboard, 141 the reader of standard output has left.
    """
    # Bound the cache of compiled kernels, since text rarely repeats a shape.
    os.environ.setdefault(KERNEL_CACHE, "256")
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    try:
        # PyTorch cannot be imported in a folder that was removed.
        with reporting("the working folder is gone; change to another one", ConfigError):
            os.getcwd()
        with utf8_streams():
            # Allow flags between positional arguments, too.
            return body(parser.parse_intermixed_args(argv)) or 0
    except BrokenPipeError:  # print nothing, like a shell, when head or less end
        return READER_LEFT
    except KeyboardInterrupt:
        _print_error(f"{parser.prog}: interrupted")
        return INTERRUPTED
    except Exception as error:
        message = _user_message(error)
        if debug or message is None:
            raise
        _print_error(f"{parser.prog}: error: {message}")
        return USER_ERROR


def _user_message(error: Exception) -> str | None:
    """Return the message of an error that the user can mend. None: the error is a bug."""
    if isinstance(error, ReluNmtError | OSError):
        return str(error)
    if is_out_of_memory(error):
        reason = " ".join(str(error).split())
        if reason:
            reason = f" ({reason})"
        return f"out of memory{reason}; take a smaller model, batch or input"
    if isinstance(error, UnicodeEncodeError):
        # Python keeps bytes of a file's name that are not UTF-8 as surrogates, which cannot be
        # written into checkpoints and manifests.
        name = ascii(error.object[max(0, error.start - MOST_SHOWN) : error.end])
        return f"{name}: a name that is not UTF-8; give another"
    return None


def _print_error(text: str) -> None:
    """Print on standard error. Ignore an error there, as the exit code reports it too."""
    with suppress(OSError):
        print(printable(text), file=sys.stderr)


@dataclass(frozen=True)
class StartingCommand(Command):
    """A command that starts processes, and takes their flags behind ``--``.

    Its settings have ``command``, which gets all words, and ``user_modules``, which gets the files
    of ``--user-module``.
    """

    remainder: str = ""  # the setting that takes the words behind ``--``

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run the command, leaving the threads to the processes that it starts."""
        words = list(sys.argv[1:] if argv is None else argv)
        arguments = words
        if "--" in words:
            end = words.index("--")
            flags = shlex.join(words[end + 1 :])
            arguments = [*words[:end], f"{flag_of(self.remainder)}={flags}"]
        return run_command(self.parser(), partial(self._run_with, words), arguments)

    def _run_with(self, words: list[str], arguments: argparse.Namespace) -> int:
        settings = read_settings(self.settings_class, arguments)
        modules = tuple(arguments.user_module)
        return self.run_job(replace(settings, user_modules=modules, command=tuple(words)))

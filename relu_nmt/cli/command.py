"""What every command shares: its parser, and turning errors into one line and an exit code."""

import argparse
import importlib
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import relu_nmt.cli
from relu_nmt.cli.fairseq_flags import ELSEWHERE, NEAREST
from relu_nmt.config import add_settings, read_settings
from relu_nmt.config.registry import FLAG, close_names, import_user_module
from relu_nmt.errors import ConfigError, ReluNmtError, is_out_of_memory
from relu_nmt.io.process import choose_threads, crowding_note, utf8_streams

KERNEL_CACHE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
"""How many compiled matrix products oneDNN keeps, PyTorch's library for bfloat16 on a CPU; read at
the first of them. Each is for one shape, and batches of text rarely have the same twice: oneDNN's
own 1,024 make up a third of the memory of a small training."""

MOST_NAMED = 3
"""Commands that a refusal names."""
USER_ERROR = 2
INTERRUPTED = 130
READER_LEFT = 141
"""As in a shell: 128 + SIGPIPE."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all others."""

    def error(self, message: str) -> NoReturn:
        """Raise a mistake in the flags; an unknown flag is told the right one.

        Raises:
            ConfigError: always.
        """
        _, _, words = message.partition("unrecognized arguments: ")
        unknown = re.findall(r"(?<!\S)--[^\s=]+", words)
        for flag in unknown:
            if instead := NEAREST.get(flag) or ELSEWHERE.get(flag):
                number = re.search(rf"{flag}[ =](\d[\d.]*)", words)
                instead = re.sub(r"\bN\b", number[1], instead) if number else instead
                raise ConfigError(f"{flag}: {instead}")
        for flag in unknown:
            if commands := _commands_with(flag):
                raise ConfigError(f"{flag}: it is a flag of {' and '.join(commands[:MOST_NAMED])}")
        hint = close_names(unknown[0], self._option_string_actions) if unknown else ""
        raise ConfigError(f"{message}; {hint}" if hint else f"{message}; see --help")


def _commands_with(flag: str) -> list[str]:
    """Return the names of the commands that have a flag."""
    modules = (
        importlib.import_module(f"relu_nmt.cli.{module.name}")
        for module in pkgutil.iter_modules(relu_nmt.cli.__path__)
    )
    commands = [vars(module).get("main") for module in modules]
    return [
        command.prog
        for command in commands
        if isinstance(command, RecipeCommand) and flag in command.parser()._option_string_actions
    ]


def make_parser(prog: str, description: str, user_modules: bool = False) -> argparse.ArgumentParser:
    """Return a parser with the options that every command has.

    Args:
        prog: name of the command.
        description: what ``--help`` shows first.
        user_modules: the command also takes files that register the user's own attention.
    """
    parser = Parser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--debug", action="store_true", help="show the trace of an error, not only its message"
    )
    parser.add_argument("--version", action="version", version=f"relu_nmt {relu_nmt.__version__}")
    if user_modules:
        parser.add_argument(
            FLAG,
            "--user-dir",
            action="append",
            default=[],
            type=import_user_module,
            metavar="FILE",
            help="Python file, or a package's folder, that registers an attention of your own; may "
            "be given several times",
        )
    return parser


@dataclass(frozen=True)
class RecipeCommand:
    """The ``main`` of a command that runs a recipe: called with words, it returns the exit code.

    Args:
        prog: name of the command.
        description: what ``--help`` shows first.
        settings_class: whose flags it has.
        recipe: module of ``relu_nmt.recipes`` to run with these settings, imported when the flags
            are read and right. The exit code is that of its result, if it has one.
        user_modules: as in :func:`make_parser`.
        computes: it runs a model, which cores that others need too would slow down: warn then.
    """

    prog: str
    description: str
    settings_class: type[Any]
    recipe: str
    user_modules: bool = True
    computes: bool = True

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser of its flags."""
        parser = make_parser(self.prog, self.description, self.user_modules)
        add_settings(parser, self.settings_class)
        return parser

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run it with these words, or those typed."""
        choose_threads()
        return run_command(self.parser(), self._run, argv)

    def _run(self, arguments: argparse.Namespace) -> int:
        settings = read_settings(self.settings_class, arguments)
        if self.computes and (note := crowding_note()):
            print(note, file=sys.stderr)
        result = importlib.import_module(f"relu_nmt.recipes.{self.recipe}").run(settings)
        return getattr(result, "exit_code", 0)


def run_command(
    parser: argparse.ArgumentParser,
    body: Callable[[argparse.Namespace], int | None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse ``argv``, run ``body`` and return the exit code.

    Exit codes: 0 done, 2 a mistake that the user can mend (one line on standard error), 130
    interrupted from the keyboard, 141 the reader of standard output has left.
    """
    os.environ.setdefault(KERNEL_CACHE, "256")
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    try:
        with utf8_streams():
            # Flags may stand between the arguments, too.
            return body(parser.parse_intermixed_args(argv)) or 0
    except BrokenPipeError:  # head or less have seen enough; a shell says nothing either
        return READER_LEFT
    except (ReluNmtError, OSError) as error:
        if debug:
            raise
        _tell(f"{parser.prog}: error: {error}")
        return USER_ERROR
    except (RuntimeError, MemoryError) as error:
        if debug or not is_out_of_memory(error):
            raise
        reason = f" ({' '.join(str(error).split())})" if str(error) else ""
        _tell(f"{parser.prog}: error: out of memory{reason}; take a smaller model, batch or input")
        return USER_ERROR
    except KeyboardInterrupt:
        _tell(f"{parser.prog}: interrupted")
        return INTERRUPTED


def _tell(text: str) -> None:
    """Print on standard error; where that cannot be written, the exit code has to do."""
    with suppress(OSError):
        print(text, file=sys.stderr)

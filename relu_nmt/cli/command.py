"""Shared parts of all commands: the parser, errors as one line, and advice on unknown flags."""

import argparse
import importlib
import os
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import relu_nmt.cli
from relu_nmt.config import add_settings, flag_of, read_settings
from relu_nmt.config.command_line import HelpFormatter
from relu_nmt.config.registry import FLAG, close_names, import_user_module
from relu_nmt.config.yaml_text import parse_yaml
from relu_nmt.errors import ConfigError, ReluNmtError, is_out_of_memory, printable, reporting
from relu_nmt.io.process import choose_threads, crowding_note, utf8_streams

KERNEL_CACHE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
"""Variable that limits oneDNN's cache of matrix products (bfloat16 on a CPU), compiled by shape.

Batches of text rarely repeat a shape, so that oneDNN's own limit of 1,024 mainly costs memory."""

ADVICE = Path(__file__).with_name("advice.yaml")
"""Advice on flags that a command does not have."""
MOST_NAMED = 3
"""Most commands that an error message names."""
USER_ERROR, INTERRUPTED, READER_LEFT = 2, 130, 141
"""Exit codes. After a signal: 128 + SIGINT and 128 + SIGPIPE, as in a shell."""


class Parser(argparse.ArgumentParser):
    """Argument parser that reports errors as one line."""

    def error(self, message: str) -> NoReturn:
        """Raise an error that suggests the right flag for an unknown one."""
        _, _, words = message.partition("unrecognized arguments: ")
        unknown = re.findall(r"(?<!\S)--[^\s=]+", words)
        for flag in unknown:
            if advice := advice_on(flag, words):
                raise ConfigError(f"{flag}: {advice}")
        # Without advice, name the commands that have the flag, or the nearest flag of this one.
        for flag in unknown:
            if commands := _commands_with(flag):
                raise ConfigError(f"{flag}: it is a flag of {' and '.join(commands[:MOST_NAMED])}")
        hint = close_names(unknown[0], self._option_string_actions) if unknown else ""
        raise ConfigError(f"{message}; {hint}" if hint else f"{message}; see --help")


def advice_on(flag: str, words: str = "") -> str:
    """Return the advice on a flag in :data:`ADVICE`, an empty text without any.

    The number that stands behind the flag in ``words`` replaces the letter N.
    """
    tables = parse_yaml(ADVICE.read_text("utf-8"))
    for patterns, advice in (*tables["nowhere"].items(), *tables["elsewhere"].items()):
        if any(fnmatchcase(flag, pattern) for pattern in patterns.split()):
            number = re.search(rf"{re.escape(flag)}[ =](\d[\d.]*)", words)
            return re.sub(r"\bN\b", number[1], advice) if number else advice
    return ""


def _commands_with(flag: str) -> list[str]:
    """Return the names of the commands that have a flag."""
    names = [module.name for module in pkgutil.iter_modules(relu_nmt.cli.__path__)]
    mains = [vars(importlib.import_module(f"relu_nmt.cli.{name}")).get("main") for name in names]
    commands = [main for main in mains if isinstance(main, RecipeCommand)]
    return [main.prog for main in commands if flag in main.parser()._option_string_actions]


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
class RecipeCommand:
    """The ``main`` of a command that runs a recipe and returns the exit code.

    Args:
        description: first text of ``--help``, most often the module's docstring.
        settings_class: settings whose flags the command has.
        recipe: module of ``relu_nmt.recipes`` whose ``run`` is called, or ``module.function``, or a
            function, of a script that has imported PyTorch already. The exit code is that of its
            result, if it has one.
        user_modules: let the user add parts of their own.
        computes: warn if other processes use the same cores.
        most_used: names of the settings with which ``--help`` begins, with spaces between them.
        usage: first line of ``--help``, if another than the usual one.
        rest: a setting that takes the words behind ``--``, flags of the processes that the command
            starts. The fields ``command`` and ``user_modules`` get all words, and the user's files.
    """

    prog: str
    description: str | None
    settings_class: type[Any]
    recipe: str | Callable[[Any], Any]
    user_modules: bool = True
    computes: bool = True
    most_used: str = ""
    usage: str = ""
    rest: str = ""

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser of the command's flags."""
        parser = make_parser(self.prog, self.description, self.user_modules)
        parser.usage = self.usage or None
        add_settings(parser, self.settings_class, self.most_used.split())
        return parser

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run the command with these arguments, by default the command line's."""
        is_named = isinstance(self.recipe, str)
        if is_named and self.settings_class.__module__ == "__main__":
            # Under python -m, leave to the imported module, whose classes the recipe reads.
            name = self.prog.removeprefix("relu-nmt-").replace("-", "_")
            return importlib.import_module(f"relu_nmt.cli.{name}").main(argv)
        # Leave the threads to the processes that a command starts.
        if is_named and not self.rest:
            choose_threads()
        words = list(sys.argv[1:] if argv is None else argv)
        arguments = words
        if self.rest and "--" in words:
            end = words.index("--")
            arguments = [*words[:end], f"{flag_of(self.rest)}={shlex.join(words[end + 1 :])}"]
        return run_command(self.parser(), partial(self._run, words), arguments)

    def _run(self, words: list[str], arguments: argparse.Namespace) -> int:
        settings = read_settings(self.settings_class, arguments)
        if self.rest:
            modules = tuple(arguments.user_module)
            settings = replace(settings, user_modules=modules, command=tuple(words))
        if not isinstance(self.recipe, str):
            return getattr(self.recipe(settings), "exit_code", 0)
        if self.computes and (note := crowding_note()):
            print(note, file=sys.stderr)
        # Import the recipe now: until here nothing has imported PyTorch.
        module, _, function = self.recipe.partition(".")
        recipe = importlib.import_module(f"relu_nmt.recipes.{module}")
        return getattr(getattr(recipe, function or "run")(settings), "exit_code", 0)


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
    except (ReluNmtError, OSError) as error:
        if debug:
            raise
        _print_error(f"{parser.prog}: error: {error}")
        return USER_ERROR
    except (RuntimeError, MemoryError) as error:
        # Report a lack of memory in one line. Other errors of these kinds are bugs.
        if debug or not is_out_of_memory(error):
            raise
        reason = f" ({' '.join(str(error).split())})" if str(error) else ""
        remedy = "take a smaller model, batch or input"
        _print_error(f"{parser.prog}: error: out of memory{reason}; {remedy}")
        return USER_ERROR
    except KeyboardInterrupt:
        _print_error(f"{parser.prog}: interrupted")
        return INTERRUPTED


def _print_error(text: str) -> None:
    """Print on standard error. Ignore an error there, as the exit code reports it too."""
    with suppress(OSError):
        print(printable(text), file=sys.stderr)

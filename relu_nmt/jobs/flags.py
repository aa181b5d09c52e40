"""Parser of flags whose errors are one line, with advice on unknown flags."""

import argparse
import importlib
import pkgutil
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from relu_nmt.config.registry import close_names
from relu_nmt.config.yaml_text import parse_yaml
from relu_nmt.errors import ConfigError

ADVICE = Path(__file__).with_name("advice.yaml")  # advice on flags that a command does not have
MOST_NAMED = 3  # most commands that an error message names


class Parser(argparse.ArgumentParser):
    """Argument parser that reports errors as one line."""

    def error(self, message: str) -> NoReturn:
        """Raise an error that suggests the right flag for an unknown one."""
        _, _, words = message.partition("unrecognized arguments: ")
        unknown = re.findall(r"(?<!\S)--[^\s=]+", words)
        for flag in unknown:
            if advice := advice_on(flag, words):
                raise ConfigError(f"{flag}: {advice}")
        # Without advice, name commands that have the flag, or the most similar flag of this
        # command.
        for flag in unknown:
            if commands := _commands_with(flag):
                raise ConfigError(f"{flag}: it is a flag of {' and '.join(commands[:MOST_NAMED])}")
        hint = ""
        if unknown:
            hint = close_names(unknown[0], self._option_string_actions)
        raise ConfigError(f"{message}; {hint or 'see --help'}")


def advice_on(flag: str, words: str = "") -> str:
    """Return the advice on a flag, or "". The number after the flag in ``words`` replaces N."""
    tables = parse_yaml(ADVICE.read_text("utf-8"))
    for patterns, advice in (*tables["nowhere"].items(), *tables["elsewhere"].items()):
        if any(fnmatchcase(flag, pattern) for pattern in patterns.split()):
            number = re.search(rf"{re.escape(flag)}[ =](\d[\d.]*)", words)
            if number:
                advice = re.sub(r"\bN\b", number[1], advice)
            return advice
    return ""


def _commands_with(flag: str) -> list[str]:
    package = importlib.import_module("relu_nmt.cli")
    commands: list[str] = []
    for module in pkgutil.iter_modules(package.__path__, "relu_nmt.cli."):
        main = getattr(importlib.import_module(module.name), "main", None)
        if main is not None and flag in main.parser()._option_string_actions:
            commands.append(main.prog)
    return commands

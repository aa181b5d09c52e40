"""Settings from a command line: flags, and files of ``--config`` (YAML, checkpoints, results).

:class:`Parser` gives advice on flags that a command does not have, from ``advice.yaml``.
"""

import argparse
import importlib
import os
import pkgutil
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from relu_nmt.config.classes import GivenValues, flat, merged, paths_in, to_dict
from relu_nmt.config.fields import (
    REQUIRED,
    Option,
    all_options,
    flag_of,
    groups_of,
    known_fields,
    options_of,
    shown,
)
from relu_nmt.config.files import READ, Files, refuse_shared_files
from relu_nmt.config.needs import idle_options
from relu_nmt.config.registry import Registry, close_names
from relu_nmt.config.stored import checked, parse_json
from relu_nmt.config.yaml_text import dump_value, parse_yaml
from relu_nmt.errors import ConfigError, some_of

ConfigT = TypeVar("ConfigT", bound=Any)
ADVICE = Path(__file__).with_name("advice.yaml")  # advice on flags that a command does not have
MOST_NAMED = 3  # most commands that an error message names
MOST_SHOWN_CHOICES = 6
MOST_SHOWN_TEXT = 24
HELP_WIDTH = 100
HELP_COLUMN = 32
ON = " (on by default)"
MOST_USED = "most used"
IDLE = "accepted as in fairseq, without effect"
BY_FLAG = "by flag: "  # prefix, in a namespace, of the name of an argument typed with its flag


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that lists a switch once: ``--name``, or ``--[no-]name`` if it is on by default."""

    def __init__(self, prog: str) -> None:
        width = shutil.get_terminal_size((HELP_WIDTH, 0)).columns - 2
        super().__init__(prog, max_help_position=HELP_COLUMN, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        if not isinstance(action, argparse.BooleanOptionalAction):
            # Show the value once, behind all names.
            names = list(action.option_strings)
            if action.nargs != 0:
                default = self._get_default_metavar_for_optional(action)
                names[-1] += f" {self._format_args(action, default)}"
            return ", ".join(names)
        names = [name for name in action.option_strings if not name.startswith("--no-")]
        if str(action.help).endswith(ON):
            names = [name.replace("--", "--[no-]", 1) for name in names]
        return ", ".join(names)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


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
                others = some_of(commands, MOST_NAMED)
                raise ConfigError(f"{flag}: it is a flag of {others}; --help has this command's")
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
    commands: list[str] = []
    package = importlib.import_module("relu_nmt.cli")
    for module in pkgutil.iter_modules(package.__path__, "relu_nmt.cli."):
        main = getattr(importlib.import_module(module.name), "main", None)
        if main is not None and flag in main.parser()._option_string_actions:
            commands.append(main.prog)
    return commands


def add_settings(
    parser: argparse.ArgumentParser, config_class: type, most_used: Collection[str] = ()
) -> None:
    """Add the flags of a settings class and all its groups, and the flags of settings files.

    :func:`read_settings` turns the parsed namespace into settings. Flags that the user does not
    type are absent from it, and typed values are text.
    """
    options = all_options(config_class).values()
    # Help begins with the flags that most people use, and ends with flags that do nothing here.
    titles = {entry.name: entry.heading for entry in options}
    titles |= dict.fromkeys(most_used, MOST_USED)
    titles |= {entry.name: IDLE for entry in options if _is_idle(entry)}
    groups = {}
    for title in dict.fromkeys([MOST_USED, IDLE, *titles.values()]):
        groups[title] = parser.add_argument_group(title or "settings")
    for entry in options:
        is_hidden = entry.name in getattr(config_class, "refused", ())
        _add_flags(parser, groups[titles[entry.name]], entry, is_hidden)
    files = parser.add_argument_group("settings file")
    files.add_argument(
        "--config",
        metavar="FILE",
        help="settings of a YAML file, checkpoint or results.json; flags win",
    )
    files.add_argument(
        "--dump-config",
        action="store_true",
        help="print all settings as YAML for --config, defaults as comments, and stop",
    )
    words = [entry.metavar or entry.name for entry in options if entry.positional]
    parser.usage = parser.usage or " ".join([parser.prog, *words, "[flags]"])
    # The options of every command, such as --debug, come near the end.
    ends = [parser._optionals, groups[IDLE]]
    parser._action_groups = [g for g in parser._action_groups if g not in ends] + ends


def _is_idle(entry: Option) -> bool:
    """Return True for a flag of fairseq that never does anything."""
    return bool(entry.no_effect) and not entry.needs


def _add_flags(parser: argparse.ArgumentParser, group: Any, entry: Option, is_hidden: bool) -> None:
    """Add the flags of an option to a group of arguments.

    A ``bool`` field gets ``--name`` and ``--no-name`` (only ``--no-name`` if its name starts with
    ``no_``, as in fairseq).
    """
    names = [*entry.flags, flag_of(entry.name)]
    common: Any = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    if not is_hidden:
        common["help"] = _help_text(entry)
    if entry.positional:
        # Add a word, and flags that mean the same under another name.
        count = "*" if entry.several else "?"
        parser.add_argument(entry.name, nargs=count, metavar=entry.metavar, **common)
        if entry.flags:
            common |= {"dest": BY_FLAG + entry.name, "metavar": entry.metavar}
            common["help"] = f"the same as the word {entry.metavar}"
            group.add_argument(*entry.flags, nargs="+" if entry.several else None, **common)
    elif entry.kind is bool:
        is_negative = entry.name.startswith("no_")
        action = "store_true" if is_negative else argparse.BooleanOptionalAction
        group.add_argument(*names, dest=entry.name, action=action, **common)
    else:
        metavar = entry.metavar
        choices = entry.choices
        if metavar is None and choices is not None and not isinstance(choices, Registry):
            metavar = "NAME"
            if len(choices) <= MOST_SHOWN_CHOICES:
                metavar = f"{{{','.join(choices)}}}"
        common |= {"dest": entry.name, "metavar": metavar, "const": entry.bare}
        if entry.several:
            common["nargs"] = "+"
        elif entry.bare is not None:
            common["nargs"] = "?"
        group.add_argument(*names, **common)
    for flag, value in entry.constants.items():
        common = {"dest": entry.name, "action": "store_const", "const": value}
        common["help"] = f"the same as {flag_of(entry.name)} {entry.text_of(value)}"
        group.add_argument(flag, default=argparse.SUPPRESS, **common)


def _help_text(entry: Option) -> str:
    """Return the help with default and needs, as argparse takes it."""
    text = entry.help
    default = entry.default
    if _is_idle(entry):
        return entry.no_effect.replace("%", "%%")
    # Name the options that this one needs, with short values. Skip options that must be off.
    needs = []
    for name, *values in entry.conditions:
        if values not in ([False], [None]):
            needs.append(flag_of(name))
            ways = "/".join(map(shown, values))
            if 0 < len(ways) <= MOST_SHOWN_TEXT:
                needs[-1] += f" {ways}"
    if needs:
        text += f"; needs {' and '.join(needs)}"
    if default is True:
        text += ON
    elif default not in (None, "", (), False, REQUIRED) and not entry.positional:
        text += f" (default: {entry.text_of(default)})"
    # Double the percent signs, which argparse would replace.
    return text.replace("%", "%%")


def read_settings(config_class: type[ConfigT], namespace: argparse.Namespace) -> ConfigT:
    """Return settings. Typed flags override ``--config``, which overrides presets and defaults.

    With ``--dump-config`` print the settings as YAML and end the program. Settings that were not
    given are comments.
    """
    options = all_options(config_class)
    file = namespace.config
    typed = _given(options, vars(namespace))
    base: dict[str, Any] = {}
    if file is not None:
        base = read_settings_file(config_class, file)
    config = merged(config_class, typed, base)
    read = [
        *Files(part_of=("save_dir",)).of("config", "--config", file),
        *READ.of("module", "--user-module", getattr(namespace, "user_module", ())),
    ]
    values = flat(to_dict(config))
    refuse_shared_files([*read, *paths_in(config_class, values)])
    # Print a note on fairseq's flags that do nothing here, in the first process only.
    idle = {entry.name for entry, _ in idle_options(config_class, values, typed)}
    is_first = os.environ.get("RANK", "0") == "0"
    for name in typed if is_first else ():
        entry = options[name]
        if entry.no_effect and (name in idle or not entry.needs):
            print(f"note: {entry.label} has no effect: {entry.no_effect}", file=sys.stderr)
    if namespace.dump_config:
        print(to_yaml(config, config.given), end="")
        raise SystemExit(0)
    return config


def _given(options: Mapping[str, Option], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the typed values, by the names of the options."""
    values = {name: value for name, value in typed.items() if name in options}
    several_words = ""
    for name, entry in options.items():
        if entry.positional and entry.several:
            several_words = name
    for name, entry in options.items():
        value = typed.get(BY_FLAG + name)
        if value is None:
            continue
        # The flag replaces a word. Hand the word to the argument that takes several words.
        word = values.pop(name, None)
        if word is not None:
            if several_words in ("", name):
                raise ConfigError(
                    f"{shown(word)}: {entry.flags[0]} {shown(value)} is given too; leave one out"
                )
            values[several_words] = [word, *values.get(several_words, ())]
        values[name] = value
    return values


def read_settings_file(config_class: type, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the values of a YAML file, a checkpoint or a ``results.json`` by field name.

    Fields may stand under the names of their groups or on their own. An unknown field, or one that
    does nothing, is a ConfigError.
    """
    nested, is_stored = _nested_values(Path(path))
    try:
        values = known_fields(config_class, flat(nested))
        options = all_options(config_class)
        if is_stored:
            # Do not copy values that the program chose for another value.
            for entry in options.values():
                if values.get(entry.name) is not None:
                    values = {n: x for n, x in values.items() if n not in entry.determines}
        else:
            # Refuse idle values only in files that users write. Stored files have all values.
            complete = GivenValues.of(config_class, values, {}).complete()
            for entry, text in idle_options(config_class, complete):
                if entry.name in values and not entry.no_effect:
                    raise ConfigError(text)
    except ConfigError as error:
        reason = f"{path}: {error}"
        if is_stored:
            reason += ", or another version or command of relu_nmt wrote it"
        raise ConfigError(reason) from error
    return values


def _nested_values(path: Path) -> tuple[Mapping[str, Any], bool]:
    """Return the settings in a file, and True if relu_nmt stored them beside other things."""
    try:
        if path.suffix == ".safetensors":
            return _checkpoint_settings(path), True
        parse = parse_json if path.suffix == ".json" else parse_yaml
        values = parse(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path}: cannot read it: {error}") from error
    if values is None:
        return {}, False
    if not isinstance(values, dict):
        raise ConfigError(f"--config {path}: expected lines such as 'max_tokens: 4000'")
    if path.suffix == ".json" and isinstance(values.get("settings"), dict):
        return values["settings"], True
    return values, False


def _checkpoint_settings(path: Path) -> Mapping[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return checked(dict[str, Any], parse_json(file.metadata()["args"]), "args")
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"--config {path}: not a checkpoint with settings in it") from error


def to_yaml(config: Any, given: Collection[str] | None = None) -> str:
    """Return settings as YAML for ``--config``, with help. Settings not ``given`` are comments."""
    values = to_dict(config)
    text = ""
    heading = ""
    for name, entry in options_of(type(config)).items():
        if entry.heading != heading:
            heading = entry.heading
            text += f"\n# {heading}\n"
        value = values[name]
        if isinstance(value, int) and entry.show is not None:
            value = entry.show(value)
        for line in textwrap.wrap(entry.help, 96):
            text += f"# {line}\n"
        mark = "" if given is None or name in given else "#"
        text += f"{mark}{name}: {dump_value(value)}\n"
    for name, (title, _) in groups_of(type(config)).items():
        text += f"\n# {title}\n{to_yaml(getattr(config, name), given)}"
    return text

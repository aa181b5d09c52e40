"""Flags and files of settings: every command's parser, ``--config`` and ``--dump-config``."""

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from relu_nmt.config.classes import all_values, flat, idle_options, merged, paths_in, to_dict
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
from relu_nmt.config.files import READ, Files, path_values, refuse_shared_files
from relu_nmt.config.registry import Registry
from relu_nmt.config.yaml_text import dump_value, parse_yaml
from relu_nmt.errors import ConfigError

ConfigT = TypeVar("ConfigT")
MOST_SHOWN_CHOICES = 6
MOST_SHOWN_TEXT = 24
HELP_WIDTH, HELP_COLUMN = 100, 32
BY_FLAG = "by flag: "
"""Prefix, in a parsed namespace, of the name of an argument that was typed with its flag."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that lists a switch once: ``--name``, or ``--[no-]name`` if it is on by default."""

    def __init__(self, prog: str) -> None:
        width = shutil.get_terminal_size((HELP_WIDTH, 0)).columns - 2
        super().__init__(prog, max_help_position=HELP_COLUMN, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        if not isinstance(action, _Switch):
            # Show the value once, behind all names.
            default = self._get_default_metavar_for_optional(action)
            value = "" if action.nargs == 0 else f" {self._format_args(action, default)}"
            return ", ".join(action.option_strings) + value
        names = [name for name in action.option_strings if not name.startswith("--no-")]
        if action.on_by_default:
            names = [name.replace("--", "--[no-]", 1) for name in names]
        return ", ".join(names)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


class _Switch(argparse.BooleanOptionalAction):
    """A flag ``--name`` and its opposite ``--no-name``."""

    def __init__(self, *args: Any, on_by_default: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_by_default = on_by_default


def add_settings(
    parser: argparse.ArgumentParser, config_class: type, most_used: Collection[str] = ()
) -> None:
    """Add the flags of a settings class and all its groups, and those of settings files.

    Flags that the user does not type are absent from the parsed namespace, and the values of the
    others are text. :func:`read_settings` turns the namespace into settings.
    """
    hidden = getattr(config_class, "refused", ())
    # Help begins with the flags that most people use, and ends with those that do nothing here.
    first = parser.add_argument_group("most used") if most_used else None
    groups = dict.fromkeys(most_used, first)
    options = all_options(config_class)
    idle = [
        name
        for name, entry in options.items()
        if isinstance(entry.no_effect, str) and not entry.needs
    ]
    last = parser.add_argument_group("accepted as in fairseq, without effect") if idle else None
    groups |= dict.fromkeys(idle, last)
    _add_flags(parser, config_class, "settings", hidden, groups)
    files = parser.add_argument_group("settings file")
    files.add_argument(
        "--config",
        metavar="FILE",
        help="settings of a YAML file, checkpoint or results.json; flags win",
    )
    files.add_argument(
        "--dump-config", action="store_true", help="print all settings as YAML and stop"
    )
    words = [entry.metavar or entry.name for entry in options.values() if entry.positional]
    parser.usage = parser.usage or " ".join([parser.prog, *words, "[flags]"])
    # The options of every command, such as --debug, come near the end.
    ends = [parser._optionals, *([last] if last else [])]
    parser._action_groups = [g for g in parser._action_groups if g not in ends] + ends


def _add_flags(
    parser: argparse.ArgumentParser,
    config_class: type,
    title: str,
    hidden: Collection[str],
    groups: Mapping[str, Any],
) -> None:
    """Add the flags of one class and its groups.

    ``groups`` has the argument group of options that do not stand with their class.

    A ``bool`` field gets ``--name`` and ``--no-name`` (only ``--no-name`` if its name starts with
    ``no_``, as in fairseq).
    """
    # Add a flag for each option, and one for each of its constants.
    own = parser.add_argument_group(title)
    for entry in options_of(config_class).values():
        group = groups.get(entry.name, own)
        names = [*entry.flags, flag_of(entry.name)]
        common: Any = {"default": argparse.SUPPRESS, "help": _help_text(entry)}
        if entry.name in hidden:
            common["help"] = argparse.SUPPRESS
        if entry.positional:
            # Add a word, and flags that mean the same under another name.
            count = "*" if entry.several else "?"
            parser.add_argument(entry.name, nargs=count, metavar=entry.metavar, **common)
            if entry.flags:
                common |= {"dest": BY_FLAG + entry.name, "metavar": entry.metavar}
                common["help"] = f"the same as the word {entry.metavar}"
                group.add_argument(*entry.flags, nargs="+" if entry.several else None, **common)
        elif entry.kind is bool:
            # Add one switch for a negative name, or a pair of switches.
            is_negative = entry.name.startswith("no_")
            if is_negative:
                common["action"] = "store_true"
            else:
                common |= {"action": _Switch, "on_by_default": entry.default is True}
            group.add_argument(*names, dest=entry.name, **common)
        else:
            common |= {"dest": entry.name, "metavar": _metavar(entry), "const": entry.bare}
            nargs = "+" if entry.several else None if entry.bare is None else "?"
            group.add_argument(*names, nargs=nargs, **common)
        for flag, value in entry.constants.items():
            text = f"the same as {flag_of(entry.name)} {entry.text_of(value)}"
            own.add_argument(
                flag,
                dest=entry.name,
                action="store_const",
                const=value,
                default=argparse.SUPPRESS,
                help=text,
            )
    for title, kind in groups_of(config_class).values():
        _add_flags(parser, kind, title, hidden, groups)


def _metavar(entry: Option) -> str | None:
    choices = entry.choices
    if entry.metavar or choices is None or isinstance(choices, Registry):
        return entry.metavar
    return f"{{{','.join(choices)}}}" if len(choices) <= MOST_SHOWN_CHOICES else "NAME"


def _help_text(entry: Option) -> str:
    """Return the help with default and needs, as argparse takes it."""
    text, default = entry.help, entry.default
    # Explain flags of fairseq that never do anything.
    if isinstance(entry.no_effect, str) and not entry.needs:
        return entry.no_effect.replace("%", "%%")
    # Name the options that this one needs, unless they must be off, with values if they are short.
    needs = []
    for name, *values in entry.conditions:
        if values not in ([False], [None]):
            ways = "/".join(map(shown, values))
            needs.append(f"{flag_of(name)} {ways if len(ways) <= MOST_SHOWN_TEXT else ''}".strip())
    if needs:
        text += f"; needs {' and '.join(needs)}"
    if default is True:
        text += " (on by default)"
    elif default not in (None, "", (), False, REQUIRED) and not entry.positional:
        text += f" (default: {entry.text_of(default)})"
    # Double the percent signs, which argparse would replace.
    return text.replace("%", "%%")


def read_settings(config_class: type[ConfigT], namespace: argparse.Namespace) -> ConfigT:
    """Return settings: typed flags go before ``--config``, then presets, then defaults.

    With ``--dump-config`` print them as YAML and end the program, as with ``--help``.

    Raises:
        ConfigError: a missing, unknown or wrong value, or a flag that does nothing.
    """
    options = all_options(config_class)
    given = _given(options, vars(namespace))
    base = {}
    if namespace.config is not None:
        base = read_settings_file(config_class, namespace.config)
    config = merged(config_class, given, base)
    # Refuse shared files. A training may go on with the settings in its own folder.
    read = [
        *path_values("config", "--config", Files(part_of=("save_dir",)), namespace.config),
        *path_values("module", "--user-module", READ, getattr(namespace, "user_module", ())),
    ]
    refuse_shared_files([*read, *paths_in(config)])
    _note_no_effect(config, given)
    if namespace.dump_config:
        print(to_yaml(config), end="")
        raise SystemExit(0)
    return config


def _given(options: Mapping[str, Option], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the typed values, by the names of the options.

    A positional argument that is given by its flag takes no word: argparse's word for it is then
    the first of the last argument.
    """
    given = {name: value for name, value in typed.items() if name in options}
    # Find the argument that takes several words, for those left over.
    rest = next((name for name, entry in options.items() if entry.positional and entry.several), "")
    for name, entry in options.items():
        if (value := typed.get(BY_FLAG + name)) is None:
            continue
        # Hand a word that is displaced by a flag to that argument.
        if (word := given.pop(name, None)) is not None:
            if rest in ("", name):
                raise ConfigError(
                    f"{shown(word)}: {entry.flags[0]} {shown(value)} is given too; leave one out"
                )
            given[rest] = [word, *given.get(rest, ())]
        given[name] = value
    return given


def _note_no_effect(config: Any, given: Mapping[str, Any]) -> None:
    """Print a note on fairseq's flags that do nothing here, in the first process only."""
    if os.environ.get("RANK", "0") != "0":
        return
    idle = {option.name for option, _ in idle_options(type(config), flat(to_dict(config)), given)}
    for name, entry in all_options(type(config)).items():
        if name in given and entry.no_effect and (name in idle or not entry.needs):
            reason = entry.no_effect() if callable(entry.no_effect) else entry.no_effect
            if reason:
                print(f"note: {entry.label} has no effect: {reason}", file=sys.stderr)


def read_settings_file(config_class: type, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the values of a YAML file, a checkpoint or a ``results.json`` by field name.

    Fields may stand under the names of their groups or on their own.

    Raises:
        ConfigError: the file cannot be read, holds an unknown field or one that does nothing.
    """
    nested, is_stored = _nested_values(Path(path))
    try:
        found = known_fields(config_class, flat(nested))
        # Refuse idle values only in files by hand; stored files have all values.
        if not is_stored:
            for entry, text in idle_options(config_class, all_values(config_class, found, {})):
                if entry.name in found and not entry.no_effect:
                    raise ConfigError(text)
    except ConfigError as error:
        another = ", or another version or command of relu_nmt wrote it" if is_stored else ""
        raise ConfigError(f"{path}: {error}{another}") from error
    return found


def _nested_values(path: Path) -> tuple[Mapping[str, Any], bool]:
    """Return the settings in a file, and True if relu_nmt stored them beside other things."""
    try:
        if path.suffix == ".safetensors":
            return _checkpoint_settings(path), True
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: cannot read it: {error}") from error
    try:
        values = json.loads(text) if path.suffix == ".json" else parse_yaml(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path}: cannot read it: {error}") from error
    if values is None:
        return {}, False
    if not isinstance(values, dict):
        raise ConfigError(f"--config {path}: expected lines such as 'max_tokens: 4000'")
    if path.suffix == ".json" and isinstance(values.get("settings"), dict):
        return values["settings"], True
    return values, False


def _checkpoint_settings(path: Path) -> Mapping[str, Any]:
    """Return the ``args`` of a checkpoint."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            settings = json.loads(file.metadata()["args"])
        if not isinstance(settings, dict):
            raise ValueError("args is not a table")
        return settings
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"--config {path}: not a checkpoint with settings in it") from error


def to_yaml(config: Any, indent: str = "") -> str:
    """Return settings as YAML that ``--config`` reads, with the help of each as a comment."""
    values = to_dict(config)
    text = ""
    for name, entry in options_of(type(config)).items():
        # Write tuples as lists, which YAML has.
        value = list(values[name]) if isinstance(values[name], tuple) else values[name]
        if isinstance(value, int) and entry.show is not None:
            value = entry.show(value)
        comment = textwrap.wrap(entry.help, 96 - len(indent))
        text += "".join(f"{indent}# {part}\n" for part in comment)
        text += f"{indent}{name}: {dump_value(value)}\n"
    for name, (title, _) in groups_of(type(config)).items():
        text += f"\n{indent}# {title}\n{indent}{name}:\n"
        text += to_yaml(getattr(config, name), indent + "  ")
    return text

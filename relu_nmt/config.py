"""Configuration dataclasses and the command-line flags made from them.

A component's settings live in one frozen dataclass whose fields are made with :func:`option`; the
same field is the flag (``max_tokens`` is ``--max-tokens``), the argument and the entry in the
checkpoint. Flags that were not typed are absent from the parsed namespace, so a preset may give
them another default (:func:`from_namespace`'s ``base``).
"""

import argparse
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from relu_nmt.errors import ConfigError

ConfigT = TypeVar("ConfigT")


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] | None = None,
    flags: Sequence[str] = (),
    metavar: str | None = None,
    parse: Callable[[str], Any] | None = None,
    bare: Any = None,
    constants: Mapping[str, Any] | None = None,
) -> Any:
    """Return a dataclass field that is also a command-line flag.

    Args:
        default: value when neither the flag nor a preset gives one (immutable).
        help: one line for ``--help``; the default is added to it.
        choices: the allowed strings, if they are few and fixed.
        flags: further spellings of the flag (``("-s",)``).
        metavar: name of the value in ``--help``.
        parse: turns the flag's text into the value; the field's type does by default. It raises
            ``ValueError`` or :class:`ConfigError` with what was expected.
        bare: the value if the flag is typed without one; without it the value is obligatory.
        constants: further flags, each without a value, and what they set the field to.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "flags": tuple(flags),
        "metavar": metavar,
        "parse": parse,
        "bare": bare,
        "constants": constants or {},
    }
    return dataclasses.field(default=default, metadata=metadata)


def flag_of(field_name: str) -> str:
    """Return the flag that sets the field: ``max_tokens`` gives ``--max-tokens``."""
    return "--" + field_name.replace("_", "-")


def _value_type(annotation: Any) -> Any:
    """Return the type without ``None``: ``int | None`` gives ``int``."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return next(a for a in typing.get_args(annotation) if a is not type(None))
    return annotation


def _reporting_parser(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse show what a parser of ours expected, not only that the value is invalid."""

    def parse_or_report(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, ConfigError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_or_report


def add_options(parser: argparse.ArgumentParser, config_class: type, title: str) -> None:
    """Add a group of flags for the fields of ``config_class``.

    A ``bool`` field gets ``--name`` and ``--no-name`` (only ``--no-name`` if its name starts with
    ``no_``, as in fairseq).
    """
    group = parser.add_argument_group(title)
    annotations = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        kind = _value_type(annotations[field.name])
        names = [*field.metadata["flags"], flag_of(field.name)]
        text = (field.metadata["help"] + _shown_default(field.default)).replace("%", "%%")
        if kind is bool:
            action: Any = (
                "store_true" if field.name.startswith("no_") else argparse.BooleanOptionalAction
            )
            group.add_argument(
                *names, dest=field.name, action=action, default=argparse.SUPPRESS, help=text
            )
        else:
            parse, bare = field.metadata["parse"], field.metadata["bare"]
            group.add_argument(
                *names,
                dest=field.name,
                type=_reporting_parser(parse) if parse else kind,
                choices=field.metadata["choices"],
                metavar=field.metadata["metavar"],
                nargs=None if bare is None else "?",
                const=bare,
                default=argparse.SUPPRESS,
                help=text,
            )
        for flag, value in field.metadata["constants"].items():
            group.add_argument(
                flag,
                dest=field.name,
                action="store_const",
                const=value,
                default=argparse.SUPPRESS,
                help=f"the same as {flag_of(field.name)} {value}",
            )


def _shown_default(value: Any) -> str:
    """Return what ``--help`` says of a default, spelt as the flag takes it."""
    if isinstance(value, bool):
        return " (on by default)" if value else ""
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return "" if value in (None, "") else f" (default: {value})"


def from_namespace(
    config_class: type[ConfigT],
    namespace: argparse.Namespace,
    base: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Return the config: typed flags first, then ``base`` (a preset), then the field defaults."""
    values = dict(base or {})
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        if hasattr(namespace, field.name):
            values[field.name] = getattr(namespace, field.name)
    return config_class(**values)


def to_dict(config: Any) -> dict[str, Any]:
    """Return the config as plain values that JSON can hold."""
    return dataclasses.asdict(config)


def from_dict(config_class: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Return the config that :func:`to_dict` described.

    Raises:
        ConfigError: ``values`` holds a field that ``config_class`` does not have.
    """
    known = {field.name for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ConfigError(
            f"{config_class.__name__}: unknown setting {', '.join(unknown)}; "
            "it was written by another version of relu_nmt"
        )
    # JSON has no tuples; the fields that are sequences are tuples (frozen configs are hashable).
    return config_class(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def from_strings(config_class: type[ConfigT], texts: Mapping[str, str]) -> ConfigT:
    """Return the config with some fields given as text, as in ``gamma=2,learnable=true``.

    Raises:
        ConfigError: unknown field, or a text that is not of the field's type.
    """
    annotations = typing.get_type_hints(config_class)
    values = {}
    for name, text in texts.items():
        if name not in annotations:
            known = ", ".join(annotations) or "none"
            raise ConfigError(f"unknown option '{name}' (known: {known})")
        kind = _value_type(annotations[name])
        try:
            values[name] = _parse_bool(text) if kind is bool else kind(text)
        except ValueError as error:
            raise ConfigError(f"option {name}={text}: expected {kind.__name__}") from error
    return config_class(**values)


def _parse_bool(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError as error:
        raise ValueError(text) from error

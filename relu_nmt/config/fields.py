"""The fields of settings classes, and the check that every value passes.

A field made with :func:`option` declares its type (by its annotation), choices, range and needs,
once. :meth:`Option.read` checks a value, wherever it comes from: a flag, a preset, a file, JSON, an
option such as ``gamma=2`` or a Python keyword.
"""

import dataclasses
import functools
import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, cast, get_args, get_origin, get_type_hints

from relu_nmt.config.files import Files, split_paths
from relu_nmt.config.registry import Registry, Spec, close_names
from relu_nmt.errors import ConfigError, reporting

REQUIRED: Any = MISSING  # the default of an option that must be given

Choices = Sequence[str] | Registry[Any]
Needs = str | tuple[Any, ...] | list[str | tuple[Any, ...]]
# The metavars of files and folders. An empty path would mean the working directory.
PATHS = ("FILE", "DIR", "DIRS", "DATA", "CKPT")
# The limit of a whole number that declares none. Sums of such numbers fit into 64 bits.
MOST_WHOLE = 10**15
# The limit of sizes, beyond any memory: it refuses a typing error at once.
MOST_SIZE = 1_000_000
MOST_SHOWN_NAMES = 20
EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One field of a settings class. ``max_tokens`` is the flag ``--max-tokens``.

    Numbers are finite unless ``most`` is infinity. A sequence is ``tuple[int, ...]``, and its flag
    takes ``1,2,3``. Choices and range are then of each element. A sequence may be empty only
    if its default is.
    """

    # The value.
    default: Any = dataclasses.field(kw_only=False)  # immutable, or REQUIRED
    help: str = dataclasses.field(kw_only=False)  # one line, without default and needs
    choices: Choices | None = None  # the allowed texts, or the registry whose names are allowed
    # The value may be NAME:option=value,... with a NAME of the registry ``choices``. If another
    # field has the option in its ``parts``, the option's value moves to that field.
    with_options: bool = False
    # Another field, which is ``with_options``, then the name of the option in it that means the
    # same as this field, or one name for each element: ("optimizer", "beta1", "beta2").
    parts: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    # Turns text other than the default into the value, or checks it. Raises ValueError or
    # ConfigError with the text that it expects.
    parse: Callable[[str], Any] | None = None
    show: Callable[[Any], str] | None = None  # the inverse of ``parse``, by default :func:`shown`
    files: Files | None = None  # for a path, the files that it names
    stored: bool = True  # False leaves it out of checkpoints and results

    # Other fields. The condition under which this option has an effect is "store_ema": another
    # field is on (neither off, empty, 0 nor negative), or ("lr_scheduler", "cosine", "fixed"): that
    # field has one of these values, or contains one. A list of conditions if all must hold.
    needs: Needs = ()
    # Defaults of other fields, by the value of this field. These values are its choices.
    presets: Mapping[str, Mapping[str, Any]] | None = None
    # Defaults of other fields while this one is on. Presets override them.
    brings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Fields that the program chooses for a value of this one. --config does not read its choices
    # from stored files.
    determines: Sequence[str] = ()

    # The flag. It has further spellings, ("-s",). Files may have the long ones, too.
    flags: Sequence[str] = ()
    # Flags without a value that set the field, {"--encoder-learned-pos": "learned"}. In files they
    # are true or false.
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metavar: str | None = None  # name of the value in --help, by default FILE or N
    bare: Any = None  # the value of the flag alone. None: the flag needs a value.
    positional: bool = False  # an argument, not a flag. ``flags`` name it too.
    several: bool = False  # the flag takes the elements of a sequence as words, not with commas
    # The title in --help of this option and the next ones in the class, by default the title of
    # the group.
    heading: str = ""
    # The reason why a flag of fairseq does nothing here, or nothing while its needs are not met.
    # Typing the flag then prints a note and is no error.
    no_effect: str = ""

    # Set by the settings class: the name, the type (without None, of an element in a sequence), and
    # whether messages call the option by its flag.
    name: str = ""
    kind: Any = str
    is_sequence: bool = False
    is_optional: bool = False
    as_flag: bool = True

    def __post_init__(self) -> None:
        if self.presets is not None:
            object.__setattr__(self, "choices", tuple(self.presets))
        if self.metavar is None and self.files is not None:
            object.__setattr__(self, "metavar", "FILE")
        elif self.metavar is None and self.kind is int and not self.is_sequence:
            object.__setattr__(self, "metavar", "N")

    @property
    def conditions(self) -> list[tuple[Any, ...]]:
        """The ``needs``, each as a field's name and the values that it may have."""
        conditions: list[tuple[Any, ...]] = []
        for need in self.needs if isinstance(self.needs, list) else [self.needs]:
            if isinstance(need, str):
                conditions.append((need,))
            elif need:
                conditions.append(need)
        return conditions

    @property
    def label(self) -> str:
        """The name of the field in messages."""
        if self.positional:
            return self.metavar or self.name
        if not self.as_flag:
            return self.name
        return flag_of(self.name)

    def with_value(self, value: Any) -> str:
        """Return name and value, as the user types them."""
        if not self.as_flag:
            return f"{self.label}={self.text_of(value)}"
        if self.kind is not bool or not isinstance(value, bool):
            return f"{self.label} {self.text_of(value)}"
        if not value:
            return f"--no-{self.label[2:]}"
        return self.label

    def text_of(self, value: Any) -> str:
        """Return a value as text that its flag reads."""
        return (self.show or shown)(value)

    def read(self, value: Any) -> Any:
        """Return the checked value (ConfigError: a wrong one). Text is read as the flag does."""
        if value is None and self.is_optional:
            return None
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, str) and self.parse is not None and value != self.default:
            with reporting(self.label, ConfigError, (ValueError, ConfigError)):
                value = self.parse(value)
        elements: Iterable[Any] = [value]
        if self.is_sequence:
            elements = _elements(value, has_paths=self.files is not None)
        try:
            values = tuple(map(self._read_element, elements))
            # Refuse an empty sequence where the default has elements.
            if not values and self.default:
                raise ValueError(f"expected {self._expected}")
        except ValueError as error:
            raise ConfigError(f"{self.with_value(value)}: {error}") from None
        return values if self.is_sequence else values[0]

    @property
    def choice_names(self) -> list[str]:
        """The names or values to choose among, as text. Empty if any value is allowed."""
        if isinstance(self.choices, Registry):
            return self.choices.names()
        return list(map(str, self.choices or ()))

    @property
    def _expected(self) -> str:
        text = EXPECTED.get(self.kind, f"a {getattr(self.kind, '__name__', self.kind)}")
        if self.is_sequence:
            return f"{text.removeprefix('a ')}s with commas"
        return text

    def _read_element(self, element: Any) -> Any:
        """Return the checked value, or element of a sequence (ValueError: a wrong one)."""
        try:
            value = _converted(element, self.kind)
        except (TypeError, ValueError):
            raise ValueError(f"expected {self._expected}") from None
        if value == "" and self.metavar in PATHS and "" not in (self.default, self.bare):
            raise ValueError("expected a path")
        if self.choices is not None:
            self._check_choice(value)
        if isinstance(value, (int, float)) and self.kind is not bool:
            self._check_range(value)
        return value

    def _check_choice(self, value: Any) -> None:
        if self.with_options:
            with reporting(self.label, ConfigError, ConfigError):
                value = Spec.parse(value).name
        # Presets may accept more names than they list.
        allowed: Any = self.presets or self.choices
        if isinstance(allowed, Registry):
            allowed = allowed.names()
        if value in allowed:
            return
        names = self.choice_names
        text = f"expected one of {', '.join(names)}"
        if isinstance(self.choices, Registry):
            text += ", or your own: --user-module FILE"
            hint = self.choices.hint(value)
        else:
            hint = close_names(value, names)
        if hint:
            text += f"; {hint}"
        raise ValueError(text)

    def _check_range(self, value: float) -> None:
        inside = (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )
        if not inside:
            raise ValueError(f"expected {self._range_text}")
        # Bound whole numbers, and refuse inf unless it is the limit.
        if isinstance(value, int):
            if self.most is None and abs(value) > MOST_WHOLE:
                raise ValueError(f"expected at most {MOST_WHOLE:,}")
        elif not math.isfinite(value) and not (value > 0 and self.most == math.inf):
            raise ValueError("expected a number")

    @property
    def _range_text(self) -> str:
        most = None if self.most == math.inf else self.most
        limits = (("", self.least), ("above ", self.above), ("", most), ("below ", self.below))
        texts = [f"{word}{shown(limit)}" for word, limit in limits if limit is not None]
        if len(texts) == 2:
            return " to ".join(texts)
        if self.least is not None:
            return f"{texts[0]} or more"
        if most is not None:
            return f"{texts[0]} or less"
        return texts[0].replace("above", "more than")


option: Any = Option  # declares a field: gamma: int = option(1, "the power")


def like(config_class: type, name: str, *default_and_help: Any, **changes: Any) -> Any:
    """Return the option ``name`` of another class, with the given changes of :class:`Option`."""
    changes |= dict(zip(("default", "help"), default_and_help, strict=False))
    return dataclasses.replace(options_of(config_class)[name], **changes)


def checked_by(read: Callable[[str], object]) -> Callable[[str], str]:
    """Return a ``parse`` that leaves text as it is, after ``read`` has accepted it."""

    def parse(text: str) -> str:
        read(text)
        return text

    return parse


def flag_of(field_name: str) -> str:
    """Return the flag that sets the field: ``max_tokens`` gives ``--max-tokens``."""
    return "--" + field_name.replace("_", "-")


def _elements(value: Any, has_paths: bool) -> Iterable[Any]:
    """Return the elements of a sequence, or of the texts ``1,2``, ``(1, 2)`` and ``[1, 2]``."""
    if isinstance(value, str):
        inner = value.strip().lstrip("[(").rstrip("])").strip().removesuffix(",")
        if not inner:
            return []
        if has_paths:
            return map(str.strip, split_paths(inner, ","))
        return map(str.strip, inner.split(","))
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return value
    return [value]


def _converted(value: Any, kind: Any) -> Any:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if kind is bool and isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower())
    # Refuse bools, which Python counts as numbers, and NaN, which no comparison would find.
    is_bool = isinstance(value, bool)
    number = {int: numbers.Integral, float: numbers.Real}
    # Take 5.0 as 5, which computations and JSON may write so.
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind in number and isinstance(value, (str, number[kind])) and not is_bool:
        value = kind(value)
    if not isinstance(value, kind) or is_bool != (kind is bool) or value != value:
        raise TypeError
    return value


def shown(value: Any) -> str:
    """Return a value as text that its flag reads."""
    if isinstance(value, (tuple, list)):
        return ",".join(shown(element) for element in value) or "''"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        if float(short) == value:  # otherwise six digits do not hold the number
            return short
    return str(value) or "''"


OptionsOf = Callable[[Any], dict[str, Option]]
# A type that takes classes, which mypy does not count as hashable.
cached: Callable[[OptionsOf], OptionsOf] = functools.cache


@cached
def options_of(config_class: Any) -> dict[str, Option]:
    """Return the options of a class, without its groups, by name."""
    annotations = get_type_hints(config_class)
    options = {}
    heading = ""
    for field in dataclasses.fields(config_class):
        if "option" not in field.metadata:
            continue
        heading = field.metadata["option"].heading or heading
        # Take the type apart: X | None, and tuple[X, ...].
        kind = annotations[field.name]
        is_optional = type(None) in get_args(kind)
        if is_optional:
            kind = get_args(kind)[0]
        is_sequence = get_origin(kind) is tuple
        if is_sequence:
            kind = get_args(kind)[0]
        options[field.name] = dataclasses.replace(
            field.metadata["option"],
            name=field.name,
            kind=kind,
            is_sequence=is_sequence,
            is_optional=is_optional,
            as_flag=config_class.named_by_flags,
            heading=heading,
        )
    return options


def groups_of(config_class: Any) -> dict[str, tuple[str, type]]:
    """Return title and class of each group of settings in a class, by the field's name."""
    return {
        field.name: (field.metadata["group"], cast(type, field.default_factory))
        for field in dataclasses.fields(config_class)
        if "group" in field.metadata
    }


@cached
def all_options(config_class: Any) -> dict[str, Option]:
    """Return the options of a class and of its groups, under the titles of the groups."""
    options = dict(options_of(config_class))
    for title, kind in groups_of(config_class).values():
        for name, entry in all_options(kind).items():
            options[name] = dataclasses.replace(entry, heading=entry.heading or title)
    return options


def known_fields(config_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by the fields' own names (ConfigError: a name is unknown)."""
    # The field of each spelling, and the value that the spelling of a constant sets.
    spellings: dict[str, tuple[str, Any]] = {}
    for entry in all_options(config_class).values():
        spellings[entry.name] = entry.name, None
        for flag in entry.flags:
            if flag.startswith("--"):
                spellings[flag[2:].replace("-", "_")] = entry.name, None
        for flag, constant in entry.constants.items():
            spellings[flag[2:].replace("-", "_")] = entry.name, constant
    fields = {}
    for name, value in values.items():
        key = name.replace("-", "_")
        if key not in spellings:
            advice = "see --help for all options"
            if len(spellings) <= MOST_SHOWN_NAMES:
                advice = f"known: {', '.join(spellings) or 'none'}"
            advice = close_names(key, spellings) or advice
            raise ConfigError(f"unknown option '{name}': {advice}")
        field, constant = spellings[key]
        if constant is None:
            fields[field] = value
        elif value:  # otherwise the file switches the flag off
            fields[field] = constant
    return fields

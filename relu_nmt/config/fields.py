"""The fields of settings classes: what one declares, and the check that every value passes.

A field made with :func:`option` declares its type (by its annotation), choices, range and what it
needs, once. :meth:`Entry.read` checks a value, wherever it comes from: a flag, a preset, a file,
JSON, an option as ``gamma=2`` or a Python keyword.
"""

import dataclasses
import difflib
import functools
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from relu_nmt.errors import ConfigError
from relu_nmt.registry import Registry

REQUIRED: Any = MISSING
"""The default of an option that must be given."""

Choices = Sequence[str] | Registry[Any]
Needs = str | tuple[Any, ...] | list[str | tuple[Any, ...]]
EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Declared:
    """What an option declares besides its name, type and default; see :func:`option`."""

    help: str
    choices: Choices | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    needs: tuple[tuple[Any, ...], ...] = ()
    flags: tuple[str, ...] = ()
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    bare: Any = None
    presets: Mapping[str, Mapping[str, Any]] | None = None
    no_effect: str | Callable[[], str] | None = None
    positional: bool = False
    several: bool = False


def option(
    default: Any,
    help: str,
    *,
    choices: Choices | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    needs: Needs = (),
    flags: Sequence[str] = (),
    constants: Mapping[str, Any] | None = None,
    metavar: str | None = None,
    parse: Callable[[str], Any] | None = None,
    bare: Any = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    no_effect: str | Callable[[], str] | None = None,
    positional: bool = False,
    several: bool = False,
) -> Any:
    """Return a field of a settings class; ``max_tokens`` is the flag ``--max-tokens``.

    Numbers are finite unless ``most`` is infinity. A sequence is ``tuple[int, ...]``, whose flag
    takes ``1,2,3``; choices and range are then those of each element, and it may be empty only if
    it is by default.

    Args:
        default: value if nothing gives another (immutable); ``REQUIRED`` if something must.
        help: one line for ``--help``; default and needs are added to it.
        choices: the allowed texts, or the registry whose names are allowed.
        least: smallest value.
        most: largest value.
        above: all values are above this.
        below: all values are below this.
        needs: what must be set for this to do anything: ``"store_ema"`` that another field is
            on (neither off, empty, 0 nor negative), ``("lr_scheduler", "cosine", "fixed")`` that
            it has one of these values; a list of such if all must hold.
        flags: further spellings of the flag (``("-s",)``); long ones also name the field in files.
        constants: flags without a value that set the field: ``{"--encoder-learned-pos":
            "learned"}``; also as a field of files, true or false.
        metavar: name of the value in ``--help``.
        parse: turns text into the value, or checks it. It raises ``ValueError`` or
            :class:`ConfigError` with what was expected.
        bare: the value if the flag is typed without one; without it the value is obligatory.
        presets: what each value of this field makes of the defaults of other fields; these names
            are the choices.
        no_effect: why the flag, known to fairseq, does nothing here, or does nothing where its
            needs are not met; typing it prints a note and is no error. A function may return it.
        positional: an argument of the command instead of a flag.
        several: the flag takes the elements of a sequence as words, not with commas.
    """
    declared = Declared(
        help,
        tuple(presets) if presets is not None else choices,
        least,
        most,
        above,
        below,
        _conditions(needs),
        tuple(flags),
        dict(constants or {}),
        metavar,
        parse,
        bare,
        presets,
        no_effect,
        positional,
        several,
    )
    # MISSING leaves it to a class's ``_: KW_ONLY``, which False would silently undo.
    keyword_only: Any = True if default is REQUIRED else dataclasses.MISSING
    return dataclasses.field(default=default, kw_only=keyword_only, metadata={"option": declared})


def _conditions(needs: Needs) -> tuple[tuple[Any, ...], ...]:
    conditions = needs if isinstance(needs, list) else [needs] if needs else []
    return tuple((c,) if isinstance(c, str) else c for c in conditions)


def like(
    config_class: type,
    name: str,
    default: Any,
    help: str | None = None,
    *,
    needs: Needs = (),
    no_effect: str | None = None,
) -> Any:
    """Return the option ``name`` of another class with another default, and perhaps the rest."""
    declared = entries_of(config_class)[name].declared
    declared = dataclasses.replace(
        declared,
        help=declared.help if help is None else help,
        needs=_conditions(needs) or declared.needs,
        no_effect=no_effect or declared.no_effect,
    )
    return dataclasses.field(default=default, metadata={"option": declared})


def group(title: str, config_class: type, *, stored: bool = True) -> Any:
    """Return a field that holds other settings; the title heads its flags in ``--help``.

    Args:
        title: heading, in lower case.
        config_class: a settings class; the field's name may not be that of an option's value.
        stored: False leaves it out of checkpoints and results.
    """
    return dataclasses.field(
        default_factory=config_class, metadata={"group": title, "stored": stored}
    )


def flag_of(field_name: str) -> str:
    """Return the flag that sets the field: ``max_tokens`` gives ``--max-tokens``."""
    return "--" + field_name.replace("_", "-")


@dataclass(frozen=True)
class Entry:
    """One option of a settings class.

    Args:
        name: of the field.
        default: of the field.
        kind: its type without None; of the elements, if it is a sequence.
        is_sequence: whether the value is a tuple.
        is_optional: whether it may be None.
        declared: the rest.
        as_flag: how messages call it.
    """

    name: str
    default: Any
    kind: Any
    is_sequence: bool
    is_optional: bool
    declared: Declared
    as_flag: bool

    @property
    def label(self) -> str:
        """What messages call it."""
        if self.declared.positional:
            return self.declared.metavar or self.name
        return flag_of(self.name) if self.as_flag else self.name

    def with_value(self, value: Any) -> str:
        """Return it with a value, as one would type it."""
        if self.kind is bool and self.as_flag:
            return self.label if value else f"--no-{self.label[2:]}"
        return f"{self.label}{' ' if self.as_flag else '='}{shown(value)}"

    def read(self, value: Any) -> Any:
        """Return the value, checked; text is read as the flag's.

        Raises:
            ConfigError: not of the field's type, or none of its choices, or out of its range.
        """
        if value is None and self.is_optional:
            return None
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(value, str) and self.declared.parse is not None:
            try:
                value = self.declared.parse(value)
            except (ValueError, ConfigError) as error:
                raise ConfigError(f"{self.label}: {error}") from error
        if not self.is_sequence:
            return self._read_element(value, value)
        found = tuple(self._read_element(element, value) for element in _elements(value))
        if not found and self.default:
            raise self._error(value, f"expected {self._expected}")
        return found

    @property
    def _expected(self) -> str:
        text = EXPECTED.get(self.kind, f"a {getattr(self.kind, '__name__', self.kind)}")
        return text.removeprefix("a ") + "s with commas" if self.is_sequence else text

    def _read_element(self, element: Any, whole: Any) -> Any:
        try:
            element = _converted(element, self.kind)
        except (TypeError, ValueError):
            raise self._error(whole, f"expected {self._expected}") from None
        if self.declared.choices is not None:
            self._check_choice(element, whole)
        if isinstance(element, (int, float)) and self.kind is not bool:
            self._check_range(element, whole)
        return element

    def _check_choice(self, value: str, whole: Any) -> None:
        choices = self.declared.choices
        is_registry = isinstance(choices, Registry)
        names = choices.names() if isinstance(choices, Registry) else list(choices or ())
        if value in names:
            return
        text = f"expected one of {', '.join(names)}"
        if is_registry:
            text += ", or your own: --user-module FILE"
        if hint := close_names(value, names):
            text += f"; {hint}"
        raise self._error(whole, text)

    def _check_range(self, value: float, whole: Any) -> None:
        d = self.declared
        inside = (
            (d.least is None or value >= d.least)
            and (d.most is None or value <= d.most)
            and (d.above is None or value > d.above)
            and (d.below is None or value < d.below)
        )
        if not inside:
            raise self._error(whole, f"expected {_range_text(d)}")
        if not math.isfinite(value) and not (value > 0 and d.most == math.inf):
            raise self._error(whole, "expected a number")

    def _error(self, value: Any, text: str) -> ConfigError:
        return ConfigError(f"{self.label}{' ' if self.as_flag else '='}{shown(value)}: {text}")


def _elements(value: Any) -> Iterable[Any]:
    """Return the elements of a sequence: ``1,2``, ``(1, 2)`` and ``[1, 2]`` as texts, too."""
    if isinstance(value, str):
        inner = value.strip().lstrip("[(").rstrip("])").strip().removesuffix(",")
        return [part.strip() for part in inner.split(",")] if inner else []
    return value if isinstance(value, Iterable) and not isinstance(value, Mapping) else [value]


def _converted(value: Any, kind: Any) -> Any:
    """Return the value as one of ``kind``.

    Raises:
        TypeError: it is not of this kind.
        ValueError: its text is not.
    """
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if kind is bool:
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.lower())
        if isinstance(value, bool):
            return value
    elif kind is int:
        if isinstance(value, (str, numbers.Integral)) and not isinstance(value, bool):
            return int(value)
    elif kind is float:
        if isinstance(value, (str, numbers.Real)) and not isinstance(value, bool):
            number = float(value)
            if not math.isnan(number):
                return number
    elif isinstance(value, kind):
        return value
    raise TypeError


def _range_text(d: Declared) -> str:
    low = d.least if d.above is None else d.above
    high = d.most if d.below is None else d.below
    if low is None:
        return f"below {high:g}" if d.below is not None else f"{high:g} or less"
    if high is None or high == math.inf:
        return f"more than {low:g}" if d.above is not None else f"{low:g} or more"
    from_low = f"above {low:g}" if d.above is not None else f"{low:g}"
    return f"{from_low} to {'below ' if d.below is not None else ''}{high:g}"


def shown(value: Any) -> str:
    """Return a value as its flag takes it."""
    if isinstance(value, (tuple, list)):
        return ",".join(shown(element) for element in value) or "''"
    if isinstance(value, bool):
        return str(value).lower()
    return (f"{value:g}" if isinstance(value, float) else str(value)) or "''"


def close_names(name: Any, known: Collection[str]) -> str:
    """Return ``did you mean ...?`` if known names are close to ``name``, otherwise nothing."""
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.7)
    return f"did you mean {' or '.join(close)}?" if close else ""


def entries_of(config_class: Any, as_flags: bool | None = None) -> dict[str, Entry]:
    """Return the options of a class, without those of its groups, by name."""
    return _entries_of(config_class, as_flags)


@functools.cache
def _entries_of(config_class: Any, as_flags: bool | None) -> dict[str, Entry]:
    if as_flags is None:
        as_flags = getattr(config_class, "named_by_flags", True)
    annotations = typing.get_type_hints(config_class)
    found = {}
    for field in dataclasses.fields(config_class):
        if "option" not in field.metadata:
            continue
        kind, is_optional, is_sequence = annotations[field.name], False, False
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
            is_optional = type(None) in typing.get_args(kind)
            kind = next(a for a in typing.get_args(kind) if a is not type(None))
        if typing.get_origin(kind) is tuple:
            kind, is_sequence = typing.get_args(kind)[0], True
        declared = field.metadata["option"]
        found[field.name] = Entry(
            field.name, field.default, kind, is_sequence, is_optional, declared, as_flags
        )
    return found


def groups_of(config_class: Any) -> dict[str, tuple[str, type]]:
    """Return title and class of each group of settings in a class, by the field's name."""
    return {
        field.name: (field.metadata["group"], typing.cast(type, field.default_factory))
        for field in dataclasses.fields(config_class)
        if "group" in field.metadata
    }


def all_entries(config_class: type) -> Iterator[Entry]:
    """Yield the options of a class and of all its groups."""
    yield from entries_of(config_class).values()
    for _, kind in groups_of(config_class).values():
        yield from all_entries(kind)

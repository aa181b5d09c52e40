"""Settings classes: frozen dataclasses that check their values, made from values by name, and back.

What is given goes before a file, a file before presets, presets before the defaults.
"""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

from relu_nmt.config.fields import (
    REQUIRED,
    Option,
    all_options,
    groups_of,
    options_of,
    shown,
)
from relu_nmt.config.files import PathValue, path_values, refuse_shared_files
from relu_nmt.config.registry import Registry, close_names
from relu_nmt.errors import ConfigError

ClassT = TypeVar("ClassT", bound=type)
ConfigT = TypeVar("ConfigT")
MOST_SHOWN_NAMES = 20


@dataclass_transform(frozen_default=True)
def settings(config_class: ClassT | None = None, *, flags: bool = True) -> Any:
    """Make a class of options a frozen dataclass that checks its values when it is made.

    Values may be given as the text that a flag takes. After its fields the class's own
    ``check()``, if it has one, compares them with each other. ``of(**values)`` makes an instance
    from fields of the class and its groups, presets included (:func:`from_flat`).

    Args:
        config_class: the class.
        flags: whether error messages call the fields by their flags; otherwise by their names,
            as in ``gamma=2``.

    Example:
        >>> from relu_nmt.config.fields import group, option
        >>> @settings
        ... class Averaging:
        ...     store_ema: bool = option(False, "average the weights")
        ...     ema_decay: float = option(0.9999, "decay", least=0, below=1, needs="store_ema")
        >>> Averaging(store_ema=True, ema_decay="0.5").ema_decay
        0.5
        >>> Averaging(ema_decay=0.5)
        Traceback (most recent call last):
        ...
        relu_nmt.errors.ConfigError: --ema-decay 0.5 does nothing without --store-ema; give both, \
or leave it out
    """

    def decorate(cls: Any) -> Any:
        if "__post_init__" in vars(cls):
            raise TypeError(f"{cls.__name__}: a settings class defines check(), not __post_init__")
        for name, entry in list(vars(cls).items()):
            if isinstance(entry, Option):
                # MISSING leaves it to a class's ``_: KW_ONLY``, which False would silently undo.
                keyword_only = True if entry.default is REQUIRED else MISSING
                declared = dataclasses.field(
                    default=entry.default, kw_only=keyword_only, metadata={"option": entry}
                )
                setattr(cls, name, declared)
        cls.__post_init__ = _check
        cls.named_by_flags = flags
        cls.of = classmethod(lambda made, **values: from_flat(made, values))
        cls = dataclass(frozen=True)(cls)
        names = list(options_of(cls))
        for _, kind in groups_of(cls).values():
            names += all_options(kind)
        if twice := {name for name in names if names.count(name) > 1}:
            raise TypeError(f"{cls.__name__}: two fields called {', '.join(sorted(twice))}")
        return cls

    return decorate if config_class is None else decorate(config_class)


def _check(self: Any) -> None:
    """Read every field, then compare them: what ``__post_init__`` of all settings is."""
    for name, entry in options_of(type(self)).items():
        object.__setattr__(self, name, entry.read(getattr(self, name)))
    for name, (_, kind) in groups_of(type(self)).items():
        if not isinstance(getattr(self, name), kind):
            raise ConfigError(f"{name}: expected an instance of {kind.__name__}")
    for entry, text in idle_options(type(self), flat(to_dict(self))):
        if not entry.no_effect:  # otherwise a note is enough
            raise ConfigError(text)
    refuse_shared_files(paths_in(self))
    if hasattr(self, "check"):
        self.check()


def paths_in(config: Any) -> list[PathValue]:
    """Return the paths that settings name, with the files that these stand for."""
    values = flat(to_dict(config))
    return [
        path
        for name, entry in all_options(type(config)).items()
        if entry.files is not None
        for path in path_values(name, entry.label, entry.files, values[name])
    ]


def idle_options(
    config_class: type, values: Mapping[str, Any], given: Collection[str] = ()
) -> Iterator[tuple[Option, str]]:
    """Yield the options that are set but do nothing, each with what to tell of it.

    Args:
        config_class: their class; options of its groups count.
        values: of all options, by name.
        given: fields that the user typed. Their default counts too, unless it is off or the
            option that it needs was typed with its default as well.
    """
    options = all_options(config_class)
    for name, entry in options.items():
        value = values[name]
        is_default = value == entry.default
        if is_default and (name not in given or is_off(value)):
            continue
        for needed, *allowed in entry.conditions:
            if needed in options and values[needed] is None:
                needed = options[needed].otherwise or needed
            if needed in options and not _is_met(options[needed], values[needed], allowed):
                current, is_typed = values[needed], needed in given
                if not (is_default and is_typed and current == options[needed].default):
                    yield (
                        entry,
                        _need_text(entry, value, options[needed], current, allowed, is_typed),
                    )
                break


def is_off(value: Any) -> bool:
    """Return whether a value leaves something off: nothing, or a number up to 0.

    Example:
        >>> is_off(-1), is_off(False), is_off(""), is_off(0.5)
        (True, True, True, False)
    """
    return value <= 0 if isinstance(value, (int, float)) else not value


def _is_met(needed: Option, value: Any, allowed: Sequence[Any]) -> bool:
    if isinstance(needed.choices, Registry) and not needed.choices.is_built_in(value):
        return True  # the user's own may read anything
    if allowed:
        return value in allowed
    return not is_off(value)


def _need_text(
    entry: Option, value: Any, needed: Option, current: Any, allowed: list[Any], is_typed: bool
) -> str:
    text = f"{entry.with_value(value)} does nothing "
    if is_typed and needed.kind is not bool and not allowed:
        return text + f"with {needed.with_value(current)}; change that, or leave one of them out"
    if not allowed or allowed == [True]:
        return text + f"without {needed.label}; give both, or leave it out"
    if allowed in ([False], [None]):
        return text + f"with {needed.label}; leave one of them out"
    ways = " or ".join([needed.with_value(allowed[0]), *map(shown, allowed[1:])])
    return text + f"with {needed.with_value(current)}; it needs {ways}"


def from_flat(config_class: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Return settings with these fields, of the class itself or of any of its groups.

    Args:
        config_class: a settings class.
        values: by field name; a field with presets chooses the defaults of others.

    Raises:
        ConfigError: an unknown or missing field, a wrong value, or one that does nothing.
    """
    return merged(config_class, known_fields(config_class, values))


def from_dict(config_class: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Return the settings that :func:`to_dict` described, of this version or an earlier one.

    Groups may be divided otherwise; values that did nothing, as earlier versions accepted them,
    are left out.

    Raises:
        ConfigError: a field that ``config_class`` does not have, or a wrong value.
    """
    try:
        known = known_fields(config_class, flat(values))
    except ConfigError as error:
        raise ConfigError(f"{error}; it was written by another version of relu_nmt") from error
    return merged(config_class, {}, known)


def to_dict(config: Any, *, stored_only: bool = False) -> dict[str, Any]:
    """Return settings as plain values that JSON can hold, nested as the groups are.

    Args:
        config: the settings.
        stored_only: without the groups that checkpoints do not keep.
    """
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not dataclasses.is_dataclass(value):
            found[field.name] = value
        elif field.metadata.get("stored", True) or not stored_only:
            found[field.name] = to_dict(value, stored_only=stored_only)
    return found


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values by the names of their fields alone.

    Raises:
        ConfigError: a field that stands in two places, a name that is no text, or lists in a list.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise ConfigError(f"'{name}' is no name of a setting")
        if isinstance(value, list) and any(isinstance(part, list | dict) for part in value):
            raise ConfigError(f"setting '{name}' has lists in a list, which no setting takes")
        inner = flat(value) if isinstance(value, Mapping) else {name: value}
        if twice := found.keys() & inner.keys():
            raise ConfigError(f"setting '{min(twice)}' is given twice")
        found |= inner
    return found


def known_fields(config_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by the fields' own names; they may be given by other spellings.

    Raises:
        ConfigError: a name that no field has.
    """
    names: dict[str, str] = {}
    constants: dict[str, tuple[str, Any]] = {}
    for entry in all_options(config_class).values():
        spellings = [entry.name, *(flag[2:] for flag in entry.flags if flag.startswith("--"))]
        names |= {spelling.replace("-", "_"): entry.name for spelling in spellings}
        for flag, constant in entry.constants.items():
            constants[flag[2:].replace("-", "_")] = entry.name, constant
    found = {}
    for name, value in values.items():
        key = name.replace("-", "_")
        if key in names:
            found[names[key]] = value
        elif key in constants:
            found |= dict([constants[key]]) if value else {}
        else:
            known = "see --help for what there is"
            if len(names) <= MOST_SHOWN_NAMES:
                known = f"known: {', '.join(names) or 'none'}"
            raise ConfigError(f"unknown option '{name}': {close_names(key, names) or known}")
    return found


def merged(
    config_class: type[ConfigT], given: Mapping[str, Any], base: Mapping[str, Any] | None = None
) -> ConfigT:
    """Return settings: what is given, then ``base`` (a file), then presets, then the defaults.

    A preset that is given, and is another than that of ``base``, goes before ``base``. What
    ``base`` and presets say is left out where it would do nothing beside what is given.

    Args:
        config_class: the class of the whole.
        given: values by field name, typed by the user.
        base: the same from a file.

    Raises:
        ConfigError: a missing or wrong value, or a given one that does nothing.
    """
    values = all_values(config_class, given, base or {})
    for entry, text in list(idle_options(config_class, values, given)):
        if entry.name not in given:
            values[entry.name] = entry.default
        elif not entry.no_effect:
            raise ConfigError(text)
    try:
        return _built(config_class, values)
    except ConfigError as error:
        typed = {*given, *(base or {})}
        raise ConfigError(f"{error}{_preset_note(config_class, values, typed, error)}") from error


def _preset_note(
    config_class: type, values: Mapping[str, Any], typed: Collection[str], error: ConfigError
) -> str:
    """Return which flags in a message nobody typed, and the preset that set each of them."""
    options, named = all_options(config_class), re.findall(r"--[\w-]+", str(error))
    notes = [
        f"{options[name].with_value(values[name])} is the default of {entry.with_value(preset)}"
        for entry in options.values()
        if entry.presets is not None and (preset := values[entry.name]) in entry.presets
        for name in entry.presets[preset]
        if name not in typed and options[name].label in named and values[name] is not None
        if values[name] == entry.presets[preset][name]
    ]
    return f" ({'; '.join(notes)})" if notes else ""


def all_values(
    config_class: type, given: Mapping[str, Any], base: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the value of every option by name, each checked; see :func:`merged`.

    One preset may choose another, further down.
    """
    options = all_options(config_class)
    defaults = {name: entry.default for name, entry in options.items()}
    by_preset: dict[str, Any] = {}
    by_given: dict[str, Any] = {}
    for name, entry in options.items():
        if entry.presets is None:
            continue
        value = entry.read({**defaults, **by_preset, **base, **by_given, **given}[name])
        is_new = (name in given or name in by_given) and base.get(name) != value
        (by_given if is_new else by_preset).update(entry.presets[value])
    values = {**by_preset, **base, **by_given, **given}
    return {
        name: entry.read(values[name]) if name in values else entry.default
        for name, entry in options.items()
    }


def _built(config_class: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    options = options_of(config_class)
    for name, entry in options.items():
        if values[name] is REQUIRED:
            raise ConfigError(f"{entry.label} is missing: {entry.help}")
    found: dict[str, Any] = {name: values[name] for name in options}
    for name, (_, kind) in groups_of(config_class).items():
        found[name] = _built(kind, values)
    return config_class(**found)

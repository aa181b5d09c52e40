"""Settings made from values by name, and back: presets, keywords, JSON, ``gamma=2``."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from relu_nmt.config.classes import check_needs, idle_options
from relu_nmt.config.fields import (
    REQUIRED,
    Entry,
    all_entries,
    close_names,
    entries_of,
    groups_of,
)
from relu_nmt.errors import ConfigError

ConfigT = TypeVar("ConfigT")


def from_flat(config_class: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Return settings with these fields, of the class itself or of any of its groups.

    Args:
        config_class: a settings class.
        values: by field name; a whole group may be given as an instance by the group's name. A
            field with presets chooses the defaults of others.

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
    return merged(config_class, {}, base=known)


def from_strings(config_class: type[ConfigT], texts: Mapping[str, str]) -> ConfigT:
    """Return the options of a mechanism given as text, as in ``gamma=2,learnable=true``.

    Raises:
        ConfigError: unknown option, a wrong value, or one that does nothing.
    """
    entries = entries_of(config_class, as_flags=False)
    for name in texts:
        if name not in entries:
            text = f"unknown option '{name}' (known: {', '.join(entries) or 'none'})"
            hint = close_names(name, entries)
            raise ConfigError(f"{text}; {hint}" if hint else text)
    values = {name: entries[name].read(text) for name, text in texts.items()}
    config = config_class(**values)
    check_needs(config, texts)
    return config


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
        ConfigError: a field that stands in two places.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
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
    entries = list(all_entries(config_class))
    names = {_field_name(f): e.name for e in entries for f in e.declared.flags if f[:2] == "--"}
    names |= {entry.name: entry.name for entry in entries}
    constants = {
        _field_name(f): (e.name, v) for e in entries for f, v in e.declared.constants.items()
    }
    found = {}
    for name, value in values.items():
        key = name.replace("-", "_")
        if key in constants:
            field, constant = constants[key]
            if value:
                found[field] = constant
        elif key in names or _is_group(config_class, key, value):
            found[names.get(key, key)] = value
        else:
            hint = close_names(key, names) or "see --help for what there is"
            raise ConfigError(f"unknown setting '{name}': {hint}")
    return found


def _field_name(flag: str) -> str:
    return flag[2:].replace("-", "_")


def _is_group(config_class: type, name: str, value: Any) -> bool:
    groups = groups_of(config_class)
    if name in groups:
        return isinstance(value, groups[name][1])
    return any(_is_group(kind, name, value) for _, kind in groups.values())


def merged(
    config_class: type[ConfigT],
    given: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
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
    base = base or {}
    by_preset, by_given_preset = _preset_values(config_class, given, base)
    values = {**by_preset, **base, **by_given_preset, **given}
    entries = {entry.name: entry for entry in all_entries(config_class)}
    values = {k: entries[k].read(v) if _is_entry(entries, k, v) else v for k, v in values.items()}
    whole = {name: values.get(name, entry.default) for name, entry in entries.items()}
    if not any(_is_group(config_class, name, value) for name, value in values.items()):
        for entry, _ in idle_options(entries.values(), whole):
            if entry.name not in given:
                values.pop(entry.name, None)
    config = _built(config_class, values)
    check_needs(config, given)
    return config


def _is_entry(entries: Mapping[str, Entry], name: str, value: Any) -> bool:
    """Return whether it is the value of an option, not a group of the same name."""
    return name in entries and not hasattr(value, "named_by_flags")


def _preset_values(
    config_class: type, given: Mapping[str, Any], base: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what presets say: those of ``base`` or by default, and those that are given.

    One preset may choose another, further down.
    """
    by_default: dict[str, Any] = {}
    by_given: dict[str, Any] = {}
    for entry in all_entries(config_class):
        if entry.declared.presets is None:
            continue
        name, layers = entry.name, (given, by_given, base, by_default, {entry.name: entry.default})
        value = entry.read(next(layer[name] for layer in layers if name in layer))
        if value is not None:
            is_new = (name in given or name in by_given) and base.get(name) != value
            (by_given if is_new else by_default).update(entry.declared.presets[value])
    return by_default, by_given


def _built(config_class: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    groups = groups_of(config_class)
    entries = entries_of(config_class)
    arguments: dict[str, Any] = {}
    for name, (_, kind) in groups.items():
        whole = values.get(name)
        arguments[name] = whole if isinstance(whole, kind) else _built(kind, values)
    for name, entry in entries.items():
        if name in values:
            arguments[name] = values[name]
        elif entry.default is REQUIRED:
            raise ConfigError(f"{entry.label} is missing: {entry.declared.help}")
    return config_class(**arguments)

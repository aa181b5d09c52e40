"""Options of registered parts, ``NAME:option=value,...``, and the fields that mean the same."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from relu_nmt.config.fields import Option, known_fields, options_of
from relu_nmt.config.registry import Registry, Spec
from relu_nmt.errors import ConfigError


def build_part(kind: Any, spec: Spec, flag: str, *arguments: Any) -> Any:
    """Return ``kind(settings, *arguments)``, the settings a ``kind.Config`` from a spec.

    Raises:
        ConfigError: an unknown option or a wrong value; the message names ``flag`` and spec.
    """
    try:
        return kind(kind.Config.of(**spec.options), *arguments)
    except ConfigError as error:
        raise ConfigError(f"{flag} {spec}: {error}") from error


def _fields_of_part(
    options: Mapping[str, Option], name: str
) -> Iterator[tuple[str, Option, int, str]]:
    """Yield the fields that mean the same as options of a part: its place in one, and its name."""
    for field, entry in options.items():
        if entry.parts[:1] == (name,):
            for place, part in enumerate(entry.parts[1:]):
                yield field, entry, place, part


def spread(
    options: Mapping[str, Option], values: Mapping[str, Any], before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values with the options of registered parts in the fields that mean the same.

    ``lr_scheduler="fixed:warmup=9"`` becomes ``lr_scheduler="fixed"`` and ``warmup_updates=9``.
    Other elements of a sequence are those of ``before``, or its defaults.
    """
    found = dict(values)
    for name, value in values.items():
        entry = options[name]
        if not entry.with_options:
            continue
        spec, text = Spec.parse(entry.read(value)), entry.with_value(value)
        if not spec.options:
            continue
        chosen, rest = _part_values(entry, spec, text), dict(spec.options)
        for field, other, place, part in _fields_of_part(options, name):
            rest.pop(part, None)
            if part not in chosen:
                continue
            # Replace the value, or one element of a sequence.
            new = chosen[part]
            if other.is_sequence:
                was = other.read(found.get(field, before.get(field, other.default)))
                new = (*was[:place], new, *was[place + 1 :])
            if field in values and new != other.read(values[field]):
                raise ConfigError(
                    f"{text} and {other.with_value(values[field])} differ; leave one of them out"
                )
            found[field] = new
        # Keep only options in the text that have no field.
        found[name] = str(Spec(spec.name, rest))
    return found


def _part_values(entry: Option, spec: Spec, text: str) -> dict[str, Any]:
    """Return the checked options of a registered part; ``text`` names them in errors."""
    part_class = getattr(cast(Registry[Any], entry.choices).get(spec.name), "Config", None)
    if part_class is None:
        raise ConfigError(f"{text}: {spec.name} has no options")
    try:
        options = options_of(part_class)
        known = known_fields(part_class, spec.options)
        return {name: options[name].read(value) for name, value in known.items()}
    except ConfigError as error:
        raise ConfigError(f"{text}: {error}") from error


def chosen_part(config: Any, name: str) -> tuple[Any, Any]:
    """Return the registered part that a field ``with_options`` names, and its ``Config``, if any.

    It has the options in the field's text, and those of the flags that mean the same. A part of the
    user's own ignores flags that have their defaults; its own defaults count.

    Raises:
        ConfigError: unknown name or option, or a wrong value.
    """
    options = options_of(type(config))
    entry, spec = options[name], Spec.parse(getattr(config, name))
    registry: Any = entry.choices
    part = registry.get(spec.name)
    part_class = getattr(part, "Config", None)
    if part_class is None:
        return part, None
    # Begin with the options in the text; add those of the fields that the part has.
    values: dict[str, Any] = dict(spec.options)
    for field, other, place, own in _fields_of_part(options, name):
        value = getattr(config, field)
        # Leave out defaults for the user's own parts, which have their own.
        is_set = value != other.default or (registry.is_built_in(spec.name) and value is not None)
        if is_set and own in options_of(part_class):
            values[own] = value[place] if other.is_sequence else value
    try:
        return part, part_class.of(**values)
    except ConfigError as error:
        raise ConfigError(f"{entry.with_value(str(spec))}: {error}") from error

"""Options of registered parts, as ``adam:beta1=0.8``, and fields that mean the same.

:func:`with_part_options` moves the options that a user types to such fields. :func:`chosen_part`
gathers them again for the part.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from relu_nmt.config.fields import Option, known_fields, options_of
from relu_nmt.config.registry import Registry, Spec
from relu_nmt.errors import ConfigError, reporting


def fields_of_part(
    options: Mapping[str, Option], name: str
) -> Iterator[tuple[str, Option, int, str]]:
    """Yield each field that means an option of a part, with the index in it and the option's name.

    The field is a sequence if the index counts its elements, or else has the one index 0.
    """
    for field, entry in options.items():
        if entry.parts[:1] == (name,):
            for index, part in enumerate(entry.parts[1:]):
                yield field, entry, index, part


def with_part_options(
    options: Mapping[str, Option], values: Mapping[str, Any], before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values, with options of registered parts in the fields that mean the same.

    ``optimizer`` "adam:beta1=0.8" becomes "adam", and ``adam_betas`` (0.8, 0.98). The second beta
    comes from the values, from ``before``, or from the field's default.
    """
    new_values = dict(values)
    for name, value in values.items():
        entry = options[name]
        if not entry.with_options:
            continue
        spec = Spec.parse(entry.read(value))
        text = entry.with_value(value)
        if not spec.options:
            new_values[name] = spec.name  # without a colon that has no options behind it
            continue
        part_values = _part_values(entry, spec, text)
        remaining = dict(spec.options)  # without a field
        for field, other, index, part in fields_of_part(options, name):
            remaining.pop(part, None)
            if part not in part_values:
                continue
            new_value = part_values[part]
            if other.is_sequence:
                default = before.get(field, other.default)
                elements = other.read(new_values.get(field, default))
                new_value = (*elements[:index], new_value, *elements[index + 1 :])
            if field in values and new_value != other.read(values[field]):
                raise ConfigError(
                    f"{text} and {other.with_value(values[field])} differ; leave one of them out"
                )
            new_values[field] = new_value
        new_values[name] = str(Spec(spec.name, remaining))
    return new_values


def _part_values(entry: Option, spec: Spec, text: str) -> dict[str, Any]:
    """Return the checked options of a registered part. ``text`` names them in errors."""
    part_class = getattr(cast(Registry[Any], entry.choices).get(spec.name), "Config", None)
    if part_class is None:
        raise ConfigError(f"{text}: {spec.name} has no options")
    with reporting(text, ConfigError, ConfigError):
        options = options_of(part_class)
        typed_values = known_fields(part_class, spec.options)
        return {name: options[name].read(value) for name, value in typed_values.items()}


def build_part(kind: Any, spec: Spec, flag: str, *arguments: Any) -> Any:
    """Return ``kind(settings, *arguments)``, with a ``kind.Config`` of a spec's options."""
    with reporting(f"{flag} {spec}", ConfigError, ConfigError):
        return kind(kind.Config.of(**spec.options), *arguments)


def chosen_part(config: Any, name: str) -> tuple[Any, Any]:
    """Return the registered part that a field ``with_options`` names, and its ``Config``, if any.

    The options come from the field's text and from the flags that mean the same. For a part of the
    user's own, flags that have their defaults are ignored, so that the part's defaults count.
    """
    options = options_of(type(config))
    entry = options[name]
    spec = Spec.parse(getattr(config, name))
    registry: Any = entry.choices
    part = registry.get(spec.name)
    part_class = getattr(part, "Config", None)
    if part_class is None:
        return part, None
    values: dict[str, Any] = dict(spec.options)
    for field, other, index, option_name in fields_of_part(options, name):
        value = getattr(config, field)
        # Leave out defaults of flags for the user's own parts, which have their own defaults.
        is_set = value != other.default or (registry.is_built_in(spec.name) and value is not None)
        if is_set and option_name in options_of(part_class):
            values[option_name] = value[index] if other.is_sequence else value
    with reporting(entry.with_value(str(spec)), ConfigError, ConfigError):
        return part, part_class.of(**values)

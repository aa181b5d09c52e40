"""The conditions under which options have an effect, and options that have none."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from relu_nmt.config.fields import REQUIRED, Option, all_options, options_of, shown
from relu_nmt.config.registry import Registry, Spec


def idle_options(
    config_class: type, values: Mapping[str, Any], typed: Collection[str] = ()
) -> Iterator[tuple[Option, str]]:
    """Yield the options that are set, or ``typed``, but do nothing, each with an error message."""
    options = all_options(config_class)
    for name, entry in options.items():
        value = values[name]
        is_default = value == entry.default
        if is_default and (name not in typed or is_off(value)):
            continue
        for needed, *allowed in entry.conditions:
            if needed not in options or _is_met(entry, options[needed], values[needed], allowed):
                continue
            current = values[needed]
            is_typed = needed in typed
            # Accept a default typed together with the default of the needed option.
            if not (is_default and is_typed and current == options[needed].default):
                text = _need_text(entry, value, options[needed], current, allowed, is_typed)
                yield entry, text
            break


def is_off(value: Any) -> bool:
    """Return whether a value switches its option off: an empty one, or a number up to 0.

    Example:
        >>> is_off(-1), is_off(False), is_off(""), is_off(0.5)
        (True, True, True, False)
    """
    return not value or (isinstance(value, (int, float)) and value <= 0)


def _is_met(entry: Option, needed: Option, value: Any, allowed: Sequence[Any]) -> bool:
    if isinstance(needed.choices, Registry):
        value = Spec.parse(value).name
        if not needed.choices.is_built_in(value):
            # A part of the user's own uses the flags of its options, or any flags if it has no
            # options.
            part_class = getattr(needed.choices.get(value), "Config", None)
            if part_class is None or entry.parts[:1] != (needed.name,):
                return True
            return not options_of(part_class).keys().isdisjoint(entry.parts[1:])
    if not allowed:
        return not is_off(value)
    # One allowed element of a sequence is enough.
    values = value if needed.is_sequence else [value]
    return any(element in allowed for element in values)


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
    if current is REQUIRED:
        return text + f"without {ways}; give both, or leave it out"
    if needed.is_sequence:
        return text + f"without {ways}; leave it out"
    return text + f"with {needed.with_value(current)}; it needs {ways}"

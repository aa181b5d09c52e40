"""Settings classes: frozen dataclasses whose values are checked whenever one is made."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from relu_nmt.config.fields import (
    Entry,
    all_entries,
    entries_of,
    groups_of,
    shown,
)
from relu_nmt.errors import ConfigError
from relu_nmt.registry import Registry

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """Mark a decorator for type checkers, as in Python 3.11; nothing at run time."""
        return lambda decorator: decorator


ClassT = TypeVar("ClassT", bound=type)


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
        cls.__post_init__ = _check_fields
        cls.named_by_flags = flags
        cls.of = classmethod(_from_keywords)
        cls = dataclass(frozen=True)(cls)
        names = list(_option_names(cls))
        if twice := {name for name in names if names.count(name) > 1}:
            raise TypeError(f"{cls.__name__}: two fields called {', '.join(sorted(twice))}")
        return cls

    return decorate if config_class is None else decorate(config_class)


def _option_names(cls: type) -> Iterator[str]:
    yield from (f.name for f in dataclasses.fields(cls) if "option" in f.metadata)
    for _, kind in groups_of(cls).values():
        yield from _option_names(kind)


def _from_keywords(cls: type, **values: Any) -> Any:
    from relu_nmt.config.trees import from_flat

    return from_flat(cls, values)


def _check_fields(self: Any) -> None:
    """Read every field, then compare them: what ``__post_init__`` of all settings is."""
    for entry in entries_of(type(self)).values():
        object.__setattr__(self, entry.name, entry.read(getattr(self, entry.name)))
    for name, (_, kind) in groups_of(type(self)).items():
        if not isinstance(getattr(self, name), kind):
            raise ConfigError(f"{name}: expected an instance of {kind.__name__}")
    check_needs(self)
    if hasattr(self, "check"):
        self.check()


def values_of(config: Any) -> dict[str, Any]:
    """Return all values of settings and their groups by field name."""
    values = {name: getattr(config, name) for name in entries_of(type(config))}
    for name in groups_of(type(config)):
        values |= values_of(getattr(config, name))
    return values


def idle_options(
    entries: Iterable[Entry], values: Mapping[str, Any], given: Collection[str] = ()
) -> Iterator[tuple[Entry, str]]:
    """Yield the options that are set but do nothing, each with what to tell of it.

    Args:
        entries: options of a class and its groups.
        values: of all of them, by name.
        given: fields that were given in so many words, even if with their default.
    """
    by_name = {entry.name: entry for entry in entries}
    for entry in by_name.values():
        value = values[entry.name]
        is_given = entry.name in given and value is not None and value is not False
        if value == entry.default and not is_given:
            continue
        for name, *allowed in entry.declared.needs:
            if name in by_name and not _is_met(by_name[name], values[name], allowed):
                yield entry, _need_text(entry, value, by_name[name], values[name], allowed)
                break


def _is_met(needed: Entry, value: Any, allowed: Sequence[Any]) -> bool:
    choices = needed.declared.choices
    if isinstance(choices, Registry) and not choices.is_built_in(value):
        return True  # the user's own may read anything
    if allowed:
        return value in allowed
    return value > 0 if isinstance(value, (int, float)) else bool(value)


def _need_text(entry: Entry, value: Any, needed: Entry, current: Any, allowed: list[Any]) -> str:
    text = f"{entry.with_value(value)} does nothing "
    if not allowed or allowed == [True]:
        return text + f"without {needed.label}; give both, or leave it out"
    if allowed in ([False], [None]):
        return text + f"with {needed.label}; leave one of them out"
    ways = " or ".join([needed.with_value(allowed[0]), *map(shown, allowed[1:])])
    return text + f"with {needed.with_value(current)}; it needs {ways}"


def check_needs(config: Any, given: Collection[str] = ()) -> None:
    """See that every option that is set does something.

    Raises:
        ConfigError: one does not; the message tells what it needs.
    """
    for entry, text in idle_options(all_entries(type(config)), values_of(config), given):
        if not entry.declared.no_effect:  # otherwise a note is enough
            raise ConfigError(text)

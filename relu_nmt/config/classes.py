"""Settings classes: frozen dataclasses that check their values, made from values by name, and back.

Given values override a file, a file overrides presets, and presets override the defaults.
"""

import dataclasses
import re
from collections import ChainMap, Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from typing_extensions import Self, dataclass_transform

from relu_nmt.config.fields import (
    REQUIRED,
    Option,
    all_options,
    groups_of,
    known_fields,
    options_of,
)
from relu_nmt.config.files import Files, refuse_shared_files
from relu_nmt.config.needs import idle_options, is_off
from relu_nmt.config.parts import with_part_options
from relu_nmt.errors import ConfigError

ClassT = TypeVar("ClassT", bound=type)
ConfigT = TypeVar("ConfigT")


@dataclass_transform(frozen_default=True)
def settings(config_class: ClassT | None = None, *, flags: bool = True) -> Any:
    """Make a class of options a frozen dataclass that checks the values of each new instance.

    A value may be given as the text that its flag takes. The class's own ``check()``, if it has
    one, compares the checked values with each other. A class variable ``refused`` has reasons by
    the names of options of its groups: these options must keep their defaults, and ``--help`` hides
    them. ``of(**values)`` is :func:`from_flat`. Settings from there or from a command line have two
    sets of names: ``typed``, the options with a flag or keyword, and ``given``, with the options
    of a file. Without ``flags`` error messages call the fields by their names, ``gamma=2``.

    Example:
        >>> from relu_nmt.config.fields import option
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
    if config_class is None:
        return partial(settings, flags=flags)
    cls: Any = config_class
    if "__post_init__" in vars(cls):
        raise TypeError(f"{cls.__name__}: a settings class defines check(), not __post_init__")
    for name, entry in list(vars(cls).items()):
        if isinstance(entry, Option):
            about: dict[str, Any] = {"metadata": {"option": entry, "stored": entry.stored}}
            if entry.default is REQUIRED:
                about["kw_only"] = True
            setattr(cls, name, dataclasses.field(default=entry.default, **about))
    cls.__post_init__ = _check
    cls.named_by_flags = flags
    cls.typed = cls.given = frozenset()
    cls.of = classmethod(lambda config_type, **values: from_flat(config_type, values))
    cls = dataclass(frozen=True)(cls)
    # Refuse a name that two groups share, since flags have no group names.
    names = list(options_of(cls))
    for _, kind in groups_of(cls).values():
        names += all_options(kind)
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise TypeError(f"{cls.__name__}: two fields called {', '.join(repeated)}")
    return cls


def with_own_config(cls: ClassT) -> ClassT:
    """Make options in the body of a class its settings class ``Config``.

    Options of a ``Config`` that the class has or inherits are kept. Afterwards ``Momentum.Config``
    exists, and ``Momentum.decay`` is the default of its option.

    Example:
        >>> from relu_nmt.config.fields import option
        >>> @with_own_config
        ... class Momentum:
        ...     decay: float = option(0.9, "decay rate of the average", least=0, below=1)
        >>> Momentum.decay, Momentum.Config(decay=0.5).decay
        (0.9, 0.5)
    """
    options = {name: value for name, value in vars(cls).items() if isinstance(value, Option)}
    if options or not hasattr(cls, "Config"):
        bases: tuple[type, ...] = ()
        if hasattr(cls, "Config"):
            bases = (cls.Config,)
        body = {"__doc__": cls.__doc__, "__module__": cls.__module__, **options}
        new_class = type(f"{cls.__name__}Config", bases, body)
        new_class.__annotations__ = {name: cls.__annotations__[name] for name in options}
        cls.Config = settings(new_class, flags=False)  # type: ignore[attr-defined]
        for name, value in options.items():
            setattr(cls, name, value.default)
    return cls


def group(title: str, config_class: type, *, stored: bool = True) -> Any:
    """Return a field that holds other settings, whose flags stand under a title in ``--help``.

    Settings that are not ``stored`` are left out of checkpoints and results.
    """
    metadata = {"group": title, "stored": stored}
    return dataclasses.field(default_factory=config_class, metadata=metadata)


def _check(self: Any) -> None:
    """Read every field, then compare them: ``__post_init__`` of all settings classes."""
    # The options of the class itself.
    options = options_of(type(self))
    values = {name: entry.read(getattr(self, name)) for name, entry in options.items()}
    changed = {name: x for name, x in values.items() if x != options[name].default}
    values |= with_part_options(options, changed, {})
    for name, value in values.items():
        object.__setattr__(self, name, value)
    # The groups.
    for name, (_, kind) in groups_of(type(self)).items():
        group_settings = getattr(self, name)
        if isinstance(group_settings, kind):
            continue
        # Accept an instance of a class whose defaults this field's class changes.
        if not issubclass(kind, type(group_settings)):
            raise ConfigError(f"{name}: expected an instance of {kind.__name__}")
        inner = dataclasses.fields(group_settings)
        kept = {field.name: getattr(group_settings, field.name) for field in inner}
        object.__setattr__(self, name, kind(**kept))
    # Values that do not go together.
    options = all_options(type(self))
    values = flat(to_dict(self))
    for entry, text in idle_options(type(self), values):
        if not entry.no_effect:  # read_settings prints a note for such flags
            raise ConfigError(text)
    for name, reason in getattr(self, "refused", {}).items():
        if values[name] != options[name].default:
            raise ConfigError(f"{options[name].label}: {reason}")
    refuse_shared_files(paths_in(type(self), values))
    if hasattr(self, "check"):
        self.check()


def paths_in(config_class: type, values: Mapping[str, Any]) -> list[Files]:
    """Return the paths that flat settings name, each with the files that it stands for."""
    paths: list[Files] = []
    for name, entry in all_options(config_class).items():
        if entry.files is not None and values[name]:
            paths += entry.files.of(name, entry.label, values[name])
    return paths


def refuse_given(
    config: Any, names: Collection[str], reason: str, remedy: str = "leave one of them out"
) -> None:
    """Refuse options that differ from their defaults. The reason goes on behind the option."""
    for name, entry in options_of(type(config)).items():
        value = getattr(config, name)
        if name in names and value != entry.default:
            raise ConfigError(f"{entry.with_value(value)}{reason}; {remedy}")


def from_flat(config_class: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Return settings with the given values by field name, of the class or any of its groups."""
    return merged(config_class, known_fields(config_class, values))


def from_dict(config_class: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Return the settings that :func:`to_dict` described, of this version or an earlier one.

    Groups may be divided otherwise. Values that do nothing, which earlier versions accepted, are
    left out. A field that the class does not have, or a wrong value, is a ConfigError.
    """
    try:
        values_by_field = known_fields(config_class, flat(values))
    except ConfigError as error:
        raise ConfigError(f"{error}; it was written by another version of relu_nmt") from error
    return merged(config_class, {}, values_by_field)


def to_dict(config: Any, *, stored_only: bool = False) -> dict[str, Any]:
    """Return settings as nested plain values, with ``stored_only`` those that checkpoints keep."""
    plain_values = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            value = to_dict(value, stored_only=stored_only)
        if field.metadata.get("stored", True) or not stored_only:
            plain_values[field.name] = value
    return plain_values


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values by the names of their fields, without the names of the groups."""
    flat_values: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise ConfigError(f"'{name}' is not the name of a setting")
        if isinstance(value, list) and any(isinstance(part, list | dict) for part in value):
            raise ConfigError(f"setting '{name}' has lists in a list, which no setting takes")
        inner = {name: value}
        if isinstance(value, Mapping):
            inner = flat(value)
        repeated = flat_values.keys() & inner.keys()
        if repeated:
            raise ConfigError(f"setting '{min(repeated)}' is given twice; keep one")
        flat_values |= inner
    return flat_values


@dataclass(frozen=True)
class GivenValues:
    """The values that a user types, and the values of a file, by the names of the options."""

    config_class: type
    typed: dict[str, Any]  # with the options of registered parts in their fields
    file: dict[str, Any]  # likewise

    @classmethod
    def of(cls, config_class: type, typed: Mapping[str, Any], file: Mapping[str, Any]) -> Self:
        """Return these values. A part that is typed replaces the part of the file."""
        options = all_options(config_class)
        parts = {name for name in typed if options[name].with_options}
        file = {name: value for name, value in file.items() if name not in parts}
        file = with_part_options(options, file, {})
        return cls(config_class, with_part_options(options, typed, file), file)

    @property
    def names(self) -> frozenset[str]:
        """The names of the given options."""
        return frozenset([*self.typed, *self.file])

    def complete(self) -> dict[str, Any]:
        """Return the value of every option, each checked. See :func:`merged`."""
        options = all_options(self.config_class)
        user_presets: dict[str, Any] = {}  # if the user changed the option that has them
        presets: dict[str, Any] = {}
        # Each layer overrides the next ones, and the defaults.
        layers = ChainMap(self.typed, user_presets, self.file, presets)
        for name, entry in options.items():
            value = self.typed.get(name, self.file.get(name, entry.default))
            if entry.brings and not is_off(value):
                presets |= entry.brings
        # Apply presets in the order of the fields, so that one preset may choose another.
        for name, entry in options.items():
            if entry.presets is not None:
                value = entry.read(layers.get(name, entry.default))
                by_user = name in self.typed or name in user_presets
                layer = user_presets if by_user and self.file.get(name) != value else presets
                layer.update(entry.presets[value])
        values = {}
        for name, entry in options.items():
            values[name] = entry.default
            if name in layers:
                values[name] = entry.read(layers[name])
        return values


def merged(
    config_class: type[ConfigT],
    user_values: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Return settings. Given values override ``base`` (a file), then come presets and defaults.

    A given preset that differs from the preset of ``base`` overrides ``base``. Values of files and
    presets that have no effect beside the given values, or forbid one of them, are left out.
    """
    given = GivenValues.of(config_class, user_values, base or {})
    values = given.complete()
    _leave_out_idle(given, values)
    for name, entry in all_options(config_class).items():
        if values[name] is REQUIRED:
            reason = f"{entry.label} is missing: {entry.help}"
            if entry.choice_names:
                reason += f" ({', '.join(entry.choice_names)})"
            raise ConfigError(reason)
    try:
        config = _built(config_class, values)
    except ConfigError as error:
        note = _preset_note(config_class, values, given.names, error)
        raise ConfigError(f"{error}{note}") from error
    object.__setattr__(config, "typed", frozenset(given.typed))
    object.__setattr__(config, "given", given.names)
    return config


def _leave_out_idle(given: GivenValues, values: dict[str, Any]) -> None:
    """Give values of files and presets their defaults if they do nothing. Refuse typed ones."""
    options = all_options(given.config_class)
    # Reset values of presets that forbid a value of the user.
    for entry, _ in list(idle_options(given.config_class, values, given.typed)):
        for needed, *allowed in entry.conditions:
            is_free = needed in options and needed not in given.names
            if entry.name in given.typed and is_free and options[needed].default in allowed:
                values[needed] = options[needed].default
    for entry, text in list(idle_options(given.config_class, values, given.typed)):
        if entry.name not in given.typed:
            values[entry.name] = entry.default
        elif not entry.no_effect:
            raise ConfigError(text)


def _preset_note(
    config_class: type, values: Mapping[str, Any], given: Collection[str], error: ConfigError
) -> str:
    """Return a note on flags in an error message whose values come from a preset."""
    options = all_options(config_class)
    named_flags = re.findall(r"--[\w-]+", str(error))
    notes = []
    for entry in options.values():
        preset = values[entry.name]
        defaults = (entry.presets or {}).get(preset, {})
        for name, default in defaults.items():
            is_named = options[name].label in named_flags and name not in given
            if is_named and values[name] is not None and values[name] == default:
                setting = options[name].with_value(default)
                notes.append(f"{setting} is the default of {entry.with_value(preset)}")
    if not notes:
        return ""
    return f" ({'; '.join(notes)})"


def _built(config_class: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Return an instance of a class, and of each of its groups, with these values."""
    field_values: dict[str, Any] = {name: values[name] for name in options_of(config_class)}
    for name, (_, kind) in groups_of(config_class).items():
        field_values[name] = _built(kind, values)
    return config_class(**field_values)

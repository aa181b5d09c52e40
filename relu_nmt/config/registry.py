"""Registries of named parts, their ``NAME:option=value``, and the user's files that add parts."""

import difflib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from relu_nmt.errors import ConfigError

T = TypeVar("T")
FLAG = "--user-module"
MODULE_PREFIX = "relu_nmt_user_"
"""Prefix of the name of each module that a file of the user's becomes."""


def close_names(name: Any, known: Collection[str]) -> str:
    """Return ``did you mean ...?`` if known names are close to ``name``, otherwise nothing."""
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.7)
    return f"did you mean {' or '.join(close)}?" if close else ""


@dataclass(frozen=True)
class Spec:
    """A registered part with its options, written as ``NAME:option=value,...``.

    Example:
        >>> Spec.parse("reluformer:gamma=2").options
        {'gamma': '2'}
        >>> str(Spec.parse("reluformer:gamma=2"))
        'reluformer:gamma=2'
    """

    name: str
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Spec":
        """Read ``reluformer`` or ``reluformer:gamma=2``; raise a ConfigError for another form."""
        name, _, rest = text.partition(":")
        options: dict[str, str] = {}
        for item in filter(None, rest.split(",")):
            key, equals, value = item.partition("=")
            if not (key and equals and value):
                raise ConfigError(f"'{text}': expected NAME or NAME:option=value,option=value")
            if key in options:
                raise ConfigError(f"'{text}': option '{key}' is given twice")
            options[key] = value
        return cls(name, options)

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name


class Registry(Generic[T]):
    """A table of parts of one kind, such as attention mechanisms, by name.

    Built-in entries are listed as ``name -> module``. The first :meth:`get` of a name imports its
    module, which registers the entry with :meth:`register`. So listing the names imports nothing,
    and a file of the user's registers in the same way.

    Args:
        kind: noun for error messages ("attention").
        modules: built-in names and the modules that register them.

    Example:
        >>> shapes = Registry("shape", {})
        >>> @shapes.register("square")
        ... class Square: ...
        >>> shapes.get("square").__name__
        'Square'
    """

    def __init__(self, kind: str, modules: Mapping[str, str]) -> None:
        self.kind = kind
        self._modules = dict(modules)
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that stores its argument under an unused ``name``."""

        def store(entry: T) -> T:
            known = self._entries.get(name)
            if known is not None and known is not entry:
                raise ConfigError(f"{self.kind} '{name}' is registered twice; choose another name")
            self._entries[name] = entry
            return entry

        return store

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._modules.keys() | self._entries.keys())

    def is_built_in(self, name: str) -> bool:
        """Return whether the entry comes with the package."""
        return name in self._modules

    def get(self, name: str) -> T:
        """Return the entry called ``name``; its module is imported at the first call.

        Raises:
            ConfigError: no such name; the message lists the close ones.
        """
        if name not in self._entries and name in self._modules:
            importlib.import_module(self._modules[name])
        if name not in self._entries:
            hint = close_names(name, self.names()) or "choose one of:"
            raise ConfigError(
                f"unknown {self.kind} '{name}'; {hint} ({', '.join(self.names())}); "
                "one of your own: --user-module FILE (in Python: import it before)"
            )
        return self._entries[name]

    def name_of(self, entry: T) -> str:
        """Return the name under which ``entry`` is registered; raise a KeyError if it has none."""
        for name, known in self._entries.items():
            if known is entry:
                return name
        raise KeyError(f"{entry} is not a registered {self.kind}")

    def check(self, text: str) -> None:
        """Refuse ``NAME`` or ``NAME:option=value`` of an unknown name, without importing a module.

        Raises:
            ConfigError: no such name, or an option has no value.
        """
        name = Spec.parse(text).name
        if name not in self.names():
            self.get(name)


def import_user_module(path: str) -> str:
    """Run a file of the user's, which registers parts, unless it has run already; return its path.

    The file is a ``.py`` file, or a folder with an ``__init__.py``.

    Raises:
        ConfigError: the file does not exist, or running it fails.
    """
    given = Path(path).resolve()
    file = given / "__init__.py" if given.is_dir() else given
    if file.suffix != ".py" or not file.is_file():
        raise ConfigError(
            f"{FLAG} {path}: expected a Python file (.py), or a folder with an __init__.py"
        )
    # Name the module by its path: two files may have the same name in different folders.
    name = f"{MODULE_PREFIX}{given.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return path
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module while it runs.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # Forget a module that failed, so that it can run again.
        del sys.modules[name]
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{FLAG} {path}: running it fails: {type(error).__name__}: {reason}"
        ) from error
    return path

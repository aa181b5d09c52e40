"""A typed table of named factories whose modules are imported only when used."""

import difflib
import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

from relu_nmt.errors import ConfigError

T = TypeVar("T")


def close_names(name: Any, known: Collection[str]) -> str:
    """Return ``did you mean ...?`` if known names are close to ``name``, otherwise nothing."""
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.7)
    return f"did you mean {' or '.join(close)}?" if close else ""


class Registry(Generic[T]):
    """Names mapped to things of one kind, such as attention mechanisms.

    The built-in entries are listed as ``name -> module``; a module is imported when one of its
    names is first asked for, and registers itself with :meth:`register`. So listing the names
    costs nothing, and a package outside this one registers in the same way.

    Args:
        kind: what the entries are, for error messages ("attention").
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
        """Return a decorator that stores its argument under ``name``.

        Raises:
            ConfigError: another object already has this name.
        """

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
        """Return the entry called ``name``, importing its module if need be.

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
        """Return the name under which ``entry`` is registered.

        Raises:
            KeyError: it is not.
        """
        for name, known in self._entries.items():
            if known is entry:
                return name
        raise KeyError(f"{entry} is no registered {self.kind}")

    def check(self, name: str) -> None:
        """See that there is such an entry, without importing its module.

        Raises:
            ConfigError: there is none.
        """
        if name not in self.names():
            self.get(name)

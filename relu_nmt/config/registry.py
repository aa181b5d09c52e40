"""Registered parts, which options name: ``NAME:option=value``.

:class:`Registry` holds parts of one kind, also parts in files of the user.
"""

import difflib
import hashlib
import importlib
import importlib.util
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from relu_nmt.config.yaml_text import parse_yaml
from relu_nmt.errors import ConfigError

T = TypeVar("T")
FLAG = "--user-module"
MODULE_PREFIX = "relu_nmt_user_"  # begins the module names of files of the user
OTHER_NAMES = Path(__file__).with_name("other_names.yaml")  # advice for other known names, by kind


def plain_name(name: object) -> str:
    """Return the small letters and digits of a name, without accents, "attention" and "attn".

    Example:
        >>> plain_name("ReLU²-attention"), plain_name("Nyström"), plain_name("entmax_1.5")
        ('relu2', 'nystrom', 'entmax15')
    """
    letters = unicodedata.normalize("NFKD", str(name)).lower()
    return re.sub(r"[\W_]|attention|attn", "", letters)


def close_names(name: Any, names: Collection[str]) -> str:
    """Return ``did you mean ...?`` if known names are close to ``name``, otherwise nothing."""
    close = [entry for entry in names if plain_name(entry) == plain_name(name)][-1:]
    close = close or difflib.get_close_matches(str(name), names, n=3, cutoff=0.7)
    if not close:
        return ""
    return f"did you mean {' or '.join(close)}?"


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
        """Read ``reluformer`` or ``reluformer:gamma=2``. Raise a ConfigError for another form."""
        name, _, items = text.partition(":")
        options: dict[str, str] = {}
        for item in filter(None, items.split(",")):
            key, equals, value = item.partition("=")
            if not (key and equals and value):
                raise ConfigError(f"'{text}': expected NAME or NAME:option=value,option=value")
            if key in options:
                raise ConfigError(f"'{text}': option '{key}' is given twice; keep one")
            options[key] = value
        return cls(name, options)

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{options}".removesuffix(":")


class Registry(Generic[T]):
    """A table of parts of one kind, such as attention mechanisms, by name.

    ``modules`` are the built-in names and the modules that register them: the first :meth:`get` of
    a name imports its module. So listing the names imports nothing, and a file of the user's
    registers in the same way. ``kind`` is a noun for error messages ("attention").

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
            existing = self._entries.get(name)
            if existing is not None and existing is not entry:
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
        """Return the entry called ``name``. Its module is imported at the first call."""
        if name not in self._entries and name in self._modules:
            importlib.import_module(self._modules[name])
        if name not in self._entries:
            hint = self.hint(name) or "choose one of:"
            raise ConfigError(
                f"unknown {self.kind} '{name}'; {hint} ({', '.join(self.names())}); "
                "one of your own: --user-module FILE (in Python: import it before)"
            )
        return self._entries[name]

    def hint(self, name: str) -> str:
        """Return ``did you mean ...?`` for a known or close name of the same part, or nothing."""
        advice_by_kind = parse_yaml(OTHER_NAMES.read_text("utf-8"))
        for advice, other_names in advice_by_kind.get(self.kind, {}).items():
            if plain_name(name) in other_names.split():
                return advice and f"did you mean {advice}?"
        return close_names(name, self.names())

    def name_of(self, entry: T) -> str:
        """Return the name under which ``entry`` is registered. Raise a KeyError if it has none."""
        for name, registered in self._entries.items():
            if registered is entry:
                return name
        raise KeyError(f"{entry} is not a registered {self.kind}")

    def check(self, text: str) -> None:
        """Refuse ``NAME`` or ``NAME:option=value`` of an unknown name. Import no module."""
        name = Spec.parse(text).name
        if name not in self.names():
            self.get(name)


def import_user_module(path: str) -> str:
    """Run a ``.py`` file or a package folder of the user's, unless it has run. Return its path."""
    module_path = file = Path(path).resolve()
    if module_path.is_dir():
        file = module_path / "__init__.py"
    if file.suffix != ".py" or not file.is_file():
        raise ConfigError(
            f"{FLAG} {path}: expected a Python file (.py), or a folder with an __init__.py"
        )
    # Name the module by its path: two files may have the same name in different folders.
    name = f"{MODULE_PREFIX}{module_path.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
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

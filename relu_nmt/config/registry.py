"""Names in options: registered parts, ``NAME:option=value``, and files.

:class:`Registry` holds parts of one kind, also parts in files of the user. :class:`Files`
declares the files that an option names, so that no output is one of the inputs.
"""

import difflib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import cached_property
from glob import escape, glob
from itertools import accumulate, product
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
    options: dict[str, str] = dataclass_field(default_factory=dict)

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


def split_paths(text: str, separator: str) -> list[str]:
    """Split a text into paths, whose names may contain the separator.

    A path is the longest name that exists, or that is the prefix of files, as ``train`` of
    ``train.de``. Without such a name it is the shortest one, if possible one in an existing folder
    that has the separator in its name.

    Example:
        >>> split_paths("a.safetensors:b.safetensors", ":")
        ['a.safetensors', 'b.safetensors']
    """
    parts = text.split(separator)
    paths = []
    while parts:
        names = list(accumulate(parts, lambda start, part: f"{start}{separator}{part}"))
        path = names[0]
        for name in reversed(names):
            if os.path.exists(name) or glob(f"{escape(name)}.*"):
                path = name
                break
            folder = os.path.dirname(name)
            if separator in folder and os.path.isdir(folder):
                path = name
        paths.append(path)
        del parts[: path.count(separator) + 1]
    return paths


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files that an option names. :meth:`of` returns the files of each path in the value."""

    written: bool = False  # True: the command writes them. False: it reads them
    # Regular expression of the file names if the path is a folder, or a function that returns it.
    names: str | Callable[[Path], str] = ""
    # Regular expression of the names of further files beside the path. NAME stands for the path's
    # own name, STEM for the name without its suffix.
    beside: str = ""
    separator: str = ""  # text between several paths in one value
    part_of: tuple[str, ...] = ()  # fields of written folders that these files may belong to
    field: str = ""  # the option's field, which :meth:`of` sets
    label: str = ""  # the option's name in messages
    text: str = ""  # the path, as it is given

    def of(self, field: str, label: str, value: Any) -> Iterator["Files"]:
        """Yield the files of each path in an option's value, without streams and devices."""
        texts = [value] if isinstance(value, str) else value or ()
        for text in texts:
            paths = split_paths(text, self.separator) if self.separator else [text]
            for path in paths:
                is_stream = "\0" in path or (path in ("", "-") and not self.written)
                is_special = os.path.exists(path) and not os.path.isfile(path) | os.path.isdir(path)
                if not is_stream and not is_special:
                    yield replace(self, field=field, label=label, text=path)

    def __str__(self) -> str:
        return f"{self.label} {self.text}"

    @cached_property
    def path(self) -> Path:
        """The path without links."""
        return Path(os.path.realpath(self.text))

    @property
    def is_folder(self) -> bool:
        """True if the path stands for files in it."""
        return bool(self.names) and not os.path.isfile(self.path)

    @cached_property
    def patterns(self) -> list[tuple[Path, re.Pattern[str]]]:
        """Folders, each with the pattern of its files' names."""
        patterns = []
        if self.is_folder:
            names = self.names
            if callable(names):
                names = names(self.path)
            patterns.append((self.path, re.compile(names)))
        if self.beside:
            path_names = {"NAME": re.escape(self.path.name), "STEM": re.escape(self.path.stem)}
            beside = re.sub("NAME|STEM", lambda word: path_names[word[0]], self.beside)
            patterns.append((self.path.parent, re.compile(beside)))
        return patterns

    def has(self, other: "Files") -> bool:
        """Return True if the other path is one of these files."""
        if other.is_folder:
            return False
        if other.path == self.path and not self.is_folder:
            return True
        for folder, pattern in self.patterns:
            is_inside = other.path.is_relative_to(folder)
            if is_inside and pattern.fullmatch(other.path.relative_to(folder).as_posix()):
                return True
        return False


READ = Files()
WRITTEN = Files(written=True)
CHECKPOINTS = Files(separator=":")


def refuse_shared_files(paths: Iterable[Files]) -> None:
    """Refuse a written file that is also read, or written twice, by its name or a symbolic link."""
    # Compare only written files, each with all files: a command may read very many.
    files = list(paths)
    written = [index for index, file in enumerate(files) if file.written]
    pairs = {(min(pair), max(pair)) for pair in product(written, range(len(files)))}
    for first_index, second_index in sorted(pairs):
        first = files[first_index]
        second = files[second_index]
        is_part = first.field in second.part_of or second.field in first.part_of
        if first.field == second.field or is_part:
            continue
        is_same = first.path == second.path
        for file, owner in ((second, first), (first, second)):
            if not owner.has(file):
                continue
            if is_same and owner.written:
                file = owner
            reason = f"{first.label} and {second.label} are both {file.text}; give two files"
            if first.written and second.written:
                raise ConfigError(reason)
            if not is_same:
                reason = f"it is one of the files of {owner}; give another"
            raise ConfigError(f"{file}: is a file that is read, and would be lost: {reason}")

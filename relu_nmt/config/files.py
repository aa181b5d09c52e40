"""Files that options name, so that no output of a command is one of its inputs."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from glob import escape, glob
from itertools import accumulate, product
from pathlib import Path
from typing import Any

from relu_nmt.errors import ConfigError


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

"""The files that the path options of a command name; no output may be one of its inputs."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from relu_nmt.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files that an option names.

    Args:
        written: the command writes them; otherwise it reads them.
        names: regular expression of the file names, if the path is a folder; or a function that
            returns it for the folder.
        deep: the files may also lie in folders below the folder; their names are relative paths.
        beside: regular expression of the names of further files beside the path; ``NAME`` stands
            for the path's own name and ``STEM`` for that without its suffix.
        separator: text between several paths in one value.
        part_of: fields of written folders that these files may belong to.
    """

    written: bool = False
    names: str | Callable[[Path], str] = ""
    deep: bool = False
    beside: str = ""
    separator: str = ""
    part_of: tuple[str, ...] = ()


READ, WRITTEN, CHECKPOINTS = Files(), Files(written=True), Files(separator=":")


@dataclass(frozen=True)
class PathValue:
    """One path in the value of an option."""

    field: str
    label: str
    files: Files
    text: str

    @cached_property
    def path(self) -> Path:
        """The path without links."""
        return Path(os.path.realpath(self.text))

    @property
    def is_folder(self) -> bool:
        """True if the path stands for files in it."""
        return bool(self.files.names) and not os.path.isfile(self.path)

    @cached_property
    def patterns(self) -> list[tuple[Path, re.Pattern[str]]]:
        """Folders, each with the pattern of its files' names."""
        found, names = [], self.files.names
        if self.is_folder:
            found.append((self.path, names if isinstance(names, str) else names(self.path)))
        if self.files.beside:
            own = {"NAME": re.escape(self.path.name), "STEM": re.escape(self.path.stem)}
            beside = re.sub("NAME|STEM", lambda word: own[word[0]], self.files.beside)
            found.append((self.path.parent, beside))
        return [(folder, re.compile(pattern)) for folder, pattern in found]

    def has(self, other: "PathValue") -> bool:
        """Return True if the other path is one of these files."""
        if other.is_folder:
            return False
        return (other.path == self.path and not self.is_folder) or any(
            other.path.is_relative_to(folder)
            and pattern.fullmatch(other.path.relative_to(folder).as_posix()) is not None
            for folder, pattern in self.patterns
        )

    @cached_property
    def links(self) -> dict[tuple[int, int], int]:
        """The number of hard links of each existing file, by device and inode."""
        paths = [] if self.is_folder else [self.path]
        for folder, pattern in self.patterns:
            entries = folder.rglob("*") if self.files.deep else folder.glob("*")
            paths += [p for p in entries if pattern.fullmatch(p.relative_to(folder).as_posix())]
        found = [path.stat() for path in paths if os.path.isfile(path)]
        return {(one.st_dev, one.st_ino): one.st_nlink for one in found}


def path_values(field: str, label: str, files: Files, value: Any) -> Iterator[PathValue]:
    """Yield the paths in the value of an option, without standard input and devices."""
    for text in (value,) if isinstance(value, str) else value or ():
        whole = not files.separator or os.path.exists(text)
        for part in [text] if whole else text.split(files.separator):
            is_stream = "\0" in part or (part in ("", "-") and not files.written)
            is_special = os.path.exists(part) and not os.path.isfile(part) | os.path.isdir(part)
            if not is_stream and not is_special:
                yield PathValue(field, label, files, part)


def refuse_shared_files(values: Iterable[PathValue]) -> None:
    """Refuse a written file that is also read, or written twice.

    Raises:
        ConfigError: two paths are one file, by name or by a link, or one of them is a file that the
            other stands for.
    """
    for first, second in combinations(values, 2):
        written = second if second.files.written else first
        is_part = second.field in first.files.part_of or first.field in second.files.part_of
        if first.field != second.field and written.files.written and not is_part:
            _refuse_shared(first, second, written)


def _refuse_shared(first: PathValue, second: PathValue, written: PathValue) -> None:
    """Raise the error of :func:`refuse_shared_files` if two paths share a file."""
    other = first if written is second else second
    named, owner = (other, written) if written.is_folder else (written, other)
    both = f"{first.label} and {second.label} are both {named.text}; give two files"
    # Compare the paths, then the files that belong to each, then links.
    if first.path == second.path and not written.is_folder | other.is_folder:
        text = both
    elif first.has(second) or second.has(first):
        named, owner = (second, first) if first.has(second) else (first, second)
        text = f"it is one of the files of {owner.label} {owner.text}; give another"
    elif _are_linked(named, owner):
        text = both
    else:
        return
    if written.files.written and other.files.written:
        raise ConfigError(f"{first.label} and {second.label} are both {named.text}; give two files")
    raise ConfigError(
        f"{named.label} {named.text}: is a file that is read, and would be lost: {text}"
    )


def _are_linked(one: PathValue, other: PathValue) -> bool:
    """Return True if links lead to one file; search large folders only if the other has links."""
    for large, small in ((one, other), (other, one)):
        if large.files.deep and (small.is_folder or max(small.links.values(), default=1) < 2):
            return False
    return not one.links.keys().isdisjoint(other.links)

"""The archives that a corpus comes from: given as local files, cached, or fetched."""

import argparse
import dataclasses
from pathlib import Path

from prep_tools.command import PrepError, say
from prep_tools.download import fetch, sha256_of, verify
from relu_nmt.io.safe_write import write_text


@dataclasses.dataclass(frozen=True)
class Source:
    """An archive of the original data.

    Attributes:
        name: its file name.
        urls: where it can be fetched, the best first.
    """

    name: str
    urls: tuple[str, ...]


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where archives come from."""
    group = parser.add_argument_group("archives")
    group.add_argument(
        "--archive",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="local archive, recognized by its name; may be given several times",
    )
    group.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        help="fetch the archive of that name from here; may be given several times",
    )
    group.add_argument(
        "--sha256",
        action="append",
        default=[],
        metavar="NAME=HEX",
        help="checksum that the archive must have; may be given several times",
    )
    group.add_argument("--cache", type=Path, help="folder of fetched archives (OUT/archives)")


def _name_in(url: str) -> str:
    """Return the file name at the end of an address."""
    return url.rstrip("/").rsplit("/", 1)[-1]


def _checksum(source: Source, arguments: argparse.Namespace) -> str | None:
    """Return the checksum that was given for an archive."""
    for text in arguments.sha256:
        name, equals, digits = text.rpartition("=")
        if len(digits) != 64 or set(digits.lower()) - set("0123456789abcdef") or not equals:
            raise PrepError(f"--sha256 {text}: expected NAME=HEX with 64 hexadecimal digits")
        if name == source.name:
            return digits
    return None


def obtain(source: Source, arguments: argparse.Namespace) -> Path:
    """Return the path of an archive. Fetch it if it is missing.

    A fetched archive gets a file ``NAME.sha256`` beside it, against which later runs check it.

    Raises:
        PrepError: the archive is missing and cannot be fetched, or it is damaged.
    """
    expected = _checksum(source, arguments)
    for local in arguments.archive:
        if local.name == source.name:
            if not local.is_file():
                raise PrepError(f"--archive {local}: no such file")
            verify(local, expected)
            return local
    path = (arguments.cache or arguments.out / "archives") / source.name
    note = path.with_name(path.name + ".sha256")
    if expected is None and note.is_file():
        expected = note.read_text("utf-8").split()[0]
    urls = tuple(url for url in arguments.url if _name_in(url) == source.name)
    fetch(urls or source.urls, path, expected)
    if not note.is_file():
        checksum = sha256_of(path)
        write_text(note, f"{checksum}  {source.name}\n")
        say(f"  {source.name}: {path.stat().st_size:,} bytes, SHA-256 {checksum}")
    return path


def check_names(sources: list[Source], arguments: argparse.Namespace) -> None:
    """Check that every given file, address and checksum is of an archive that is needed.

    Raises:
        PrepError: one is of another archive.
    """
    names = {source.name for source in sources}
    names_to_check = [local.name for local in arguments.archive]
    names_to_check += map(_name_in, arguments.url)
    names_to_check += [text.rpartition("=")[0] for text in arguments.sha256]
    for name in names_to_check:
        if name not in names:
            raise PrepError(f"'{name}' is none of the archives needed: {', '.join(sorted(names))}")

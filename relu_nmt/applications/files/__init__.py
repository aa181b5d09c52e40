"""Translation of files with markup: only their text changes.

A file format is one class of one file, registered in :data:`formats` under its name, which
``--format`` takes. It finds the segments of a file (:mod:`segments`), and writes their translations
in their place (:mod:`document`). The model translates segments without tags (:mod:`sentences`), and
the alignment of the words (:mod:`aligned_words`) places the tags (:mod:`placing`). A file that
names its language, or the direction of its text, gets new ones (:mod:`languages`).
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from relu_nmt.applications.files.languages import UNKNOWN_LANGUAGES, Languages
from relu_nmt.config import option, settings
from relu_nmt.config.fields import options_of
from relu_nmt.config.registry import Registry
from relu_nmt.errors import ConfigError, DataError, reporting
from relu_nmt.io.safe_write import replacing

if TYPE_CHECKING:
    from relu_nmt.applications.files.document import FileFormat
    from relu_nmt.applications.files.sentences import TranslateSegments

ENDINGS = {
    ".docx": "docx",
    ".epub": "epub",
    ".htm": "html",
    ".html": "html",
    ".xhtml": "html",
    ".markdown": "markdown",
    ".md": "markdown",
    ".odt": "odt",
    ".po": "po",
    ".pot": "po",
    ".srt": "subtitles",
    ".vtt": "subtitles",
    ".csv": "table",
    ".tsv": "table",
    ".txt": "text",
    ".xlf": "xliff",
    ".xliff": "xliff",
}
"""Name of the format by the ending of a file's name."""
MOST_BYTES = 64 * 2**20
"""Most bytes of a file, and of all parts of a zip file together."""
formats: Registry["type[FileFormat]"] = Registry(
    "file format", {name: f"relu_nmt.applications.files.{name}" for name in ENDINGS.values()}
)
REFUSED = dict.fromkeys(
    (".png", ".jpg", ".jpeg", ".tif", ".tiff"), "give the text that it shows"
) | {
    ".pdf": "convert it first, for example with pdftotext",
    ".doc": "save it as .docx",
    ".rtf": "save it as .docx",
}
"""Advice for kinds of files that are not read, by the ending of the name."""


@settings
class FileOptions:
    """Options of the formats."""

    column: str = option("1", "column of a table, by its number or its name in the first row")
    line_width: int = option(42, "most characters in a line of a subtitle", least=10)
    retranslate: bool = option(False, "also translate entries of PO and XLIFF that are translated")


def format_name(path: str | os.PathLike[str], name: str | None = None) -> str:
    """Return the name of a file's format: ``name``, or else the format of the path's ending.

    Raises:
        ConfigError: there is no such format.
        DataError: the file is of a kind that is not read.

    Example:
        >>> format_name("page.html"), format_name("talk.de"), format_name("talk.de", "markdown")
        ('html', 'text', 'markdown')
    """
    if name is not None:
        formats.check(name)
        return name
    ending = Path(path).suffix.lower()
    if ending in REFUSED:
        raise DataError(f"{path}: files of this kind are not read; {REFUSED[ending]}")
    return format_of_ending(ending) or "text"


def format_of_ending(ending: str) -> str | None:
    """Return the name of the format of an ending. The ending of a user's format is its name."""
    if ending[1:] in formats.names():
        return ending[1:]
    return ENDINGS.get(ending)


def check_options(names: Collection[str], options: FileOptions) -> None:
    """Raise a ConfigError if an option is set that no format of these names reads."""
    reads = frozenset().union(*(formats.get(name).reads for name in names))
    for option_name, entry in options_of(FileOptions).items():
        value = getattr(options, option_name)
        if value != entry.default and option_name not in reads:
            raise ConfigError(
                f"{entry.with_value(value)} does nothing for the file format "
                f"{', '.join(sorted(names))}; leave it out"
            )


def translated(
    content: bytes,
    name: str,
    translate: "TranslateSegments",
    options: FileOptions,
    languages: Languages = UNKNOWN_LANGUAGES,
) -> bytes:
    """Return the content of a file with its text translated.

    Args:
        content: the bytes of the file.
        name: name of the format.
        translate: translates the segments.
        options: options of the formats.
        languages: languages of the translation, which the file names.

    Raises:
        DataError: the file is damaged, too large or not of this format.
    """
    if len(content) > MOST_BYTES:
        raise DataError(f"it has more than {MOST_BYTES:,} bytes; divide it")
    document = formats.get(name)(options, languages).read(content)
    if not document.segments:
        return content
    return document.written(translate(document.segments))


def translate_file(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    translate: "TranslateSegments",
    options: FileOptions,
    name: str,
    languages: Languages = UNKNOWN_LANGUAGES,
) -> None:
    """Translate a file as :func:`translated`. After an error nothing is written.

    Raises:
        DataError: the file cannot be read or written, or is damaged.
    """
    with reporting(f"{path}: cannot read it"):
        content = Path(path).read_bytes()
    with reporting(path, caught=DataError):
        written = translated(content, name, translate, options, languages)
    with reporting(f"{output}: cannot write it"), replacing(output) as temporary:
        temporary.write_bytes(written)

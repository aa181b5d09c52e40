"""Translation of files with markup: only their text changes.

A file format is one class of one file, registered in :data:`formats` under its name, which
``--format`` takes. It finds the segments of a file (:mod:`segments`), and writes their translations
in their place (:mod:`document`). The model translates segments without tags (:mod:`sentences`), and
the alignment of the words places the tags (:mod:`placing`).
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

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
_RIGHT_TO_LEFT = re.compile(
    "adlm|arab|hebr|nkoo|rohg|syrc|thaa"  # scripts
    "|ar|ara|arb|arc|azb|ckb|dv|fa|fas|he|heb|iw|ks|nqo|pes|pnb|prs|ps|sd|ug|ur|yi",
    re.IGNORECASE,
)
"""Scripts and languages that are written from right to left."""
_ASIAN = re.compile("bopo|han[ist]|hira|hrkt|jpan|kana|kore|hang|ja|ko|yue|zh", re.IGNORECASE)
_INDIC = re.compile(
    "beng|deva|gujr|guru|khmr|knda|laoo|mlym|mtei|mymr|olck|orya|sinh|taml|telu|thai|tibt"
    "|as|bn|bo|dz|gu|hi|km|kn|kok|lo|mai|ml|mni|mr|my|ne|or|pa|sa|sat|si|ta|te|th",
    re.IGNORECASE,
)
"""Further scripts and languages that office documents call complex, as they call right-to-left."""


@settings
class FileOptions:
    """Options of the formats."""

    column: str = option("1", "column of a table, by its number or its name in the first row")
    line_width: int = option(42, "most characters in a line of a subtitle", least=10)
    retranslate: bool = option(False, "also translate entries of PO and XLIFF that are translated")


@dataclass(frozen=True)
class Languages:
    """Source and target language of a translation, such as ``en_GB``. "" is an unknown language."""

    source: str = ""
    target: str = ""

    @property
    def tag(self) -> str:
        """The target language as most formats write it, such as ``en-GB``, or ""."""
        is_name = re.fullmatch(r"[\w-]+", self.target) is not None
        return self.target.replace("_", "-") if is_name else ""

    @cached_property
    def new_direction(self) -> str:
        """The direction of the target script, ``rtl`` or ``ltr``, or "" if the direction stays."""
        new = _direction(self.target)
        is_new = self.source and self.tag and _direction(self.source) != new
        return new if is_new else ""

    @cached_property
    def script_kind(self) -> str:
        """The kind of the target script in office documents: western, asian or complex."""
        return _script_kind(self.target)

    def after_translation(self, name: str) -> str:
        """Return the target language for a name of the source language, else the name.

        Example:
            >>> languages = Languages("de", "en")
            >>> languages.after_translation("de-AT"), languages.after_translation("fr")
            ('en', 'fr')
        """
        return self.tag if self._is_replaced(name) else name

    def in_target_script(self, names: Mapping[str, str]) -> str:
        """Return the language of texts in the target script, from ``names`` by kind of script."""
        name = names[self.script_kind]
        is_target = f"{name}-".startswith(f"{self.tag}-") and not self._is_replaced(name)
        source_names = (names["western"], names[_script_kind(self.source)])
        is_source = any(map(self._is_replaced, source_names))
        return self.tag if is_source and not is_target else name

    def _is_replaced(self, name: str) -> bool:
        """Return True for a name of the source language, if the target language is another one."""
        is_source = _main_part(name) == _main_part(self.source) != ""
        return is_source and self.source != self.target and self.tag != ""


UNKNOWN_LANGUAGES = Languages()


def _direction(language: str) -> str:
    return "rtl" if _RIGHT_TO_LEFT.fullmatch(_script_or_language(language)) else "ltr"


def _script_kind(language: str) -> str:
    script = _script_or_language(language)
    if _ASIAN.fullmatch(script):
        return "asian"
    is_complex = _RIGHT_TO_LEFT.fullmatch(script) or _INDIC.fullmatch(script)
    return "complex" if is_complex else "western"


def _script_or_language(name: str) -> str:
    """Return the script that the name of a language tells, or else the language alone."""
    parts = re.split("[-_]", name)
    scripts = [part for part in parts[1:] if len(part) == 4 and part.isalpha()]
    return [*scripts, parts[0]][0]


def _main_part(language: str) -> str:
    return re.split("[-_]", language)[0].lower()


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
    from relu_nmt.applications.files.document import MOST_BYTES

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

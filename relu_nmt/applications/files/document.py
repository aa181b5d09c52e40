"""Documents: their segments, and the translations that replace the segments in the source."""

import codecs
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from relu_nmt.applications.files import UNKNOWN_LANGUAGES, FileOptions, Languages
from relu_nmt.applications.files.aligned_words import AlignedText, Word, aligned_words
from relu_nmt.applications.files.placing import PlainText, marked_parts
from relu_nmt.applications.files.segments import Segment, Span
from relu_nmt.errors import DataError

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    codecs.BOM_UTF32_LE: "utf-32-le",  # begins with the mark of UTF-16
    codecs.BOM_UTF32_BE: "utf-32-be",
}
MOST_DECLARING = 4096  # bytes at the start of a file that may declare its encoding
ReadSource = Callable[[Span], str]
"""Returns a part of the source, such as a tag, with its translated attributes."""


@dataclass(frozen=True)
class Document:
    """A document that was read."""

    segments: Sequence[Segment]  # in reading order
    written: Callable[[Sequence[AlignedText]], bytes]  # the file with a translation for each


class FileFormat(ABC):
    """A file format. Register the class with :data:`formats` to add one."""

    reads: ClassVar[frozenset[str]] = frozenset()  # options that it reads. Others are refused.

    def __init__(self, options: FileOptions, languages: Languages = UNKNOWN_LANGUAGES) -> None:
        self.options = options
        self.languages = languages

    @abstractmethod
    def read(self, content: bytes) -> Document:
        """Return the document in a file (DataError: it is damaged)."""


class TextFormat(FileFormat):
    """A format whose files are text. Segments are spans of the text, and may contain segments."""

    keeps_equal = True  # a segment keeps its source if its translation is the same text
    # Finds the name of the encoding at the start of a file.
    declaration: ClassVar[re.Pattern[bytes]] = re.compile(rb"(?!)")

    def read(self, content: bytes) -> Document:
        mark = max(filter(content.startswith, BYTE_ORDER_MARKS), key=len, default=b"")
        encoding = BYTE_ORDER_MARKS[mark] if mark else self.encoding(content)
        body = content.removeprefix(mark)
        try:
            if codecs.lookup(encoding).name == "punycode":  # it takes hours for some files
                raise LookupError("it is for names of domains")
            source = body.decode(encoding)
            is_kept = self.encoded(source, encoding) == body
        except (UnicodeError, LookupError) as error:
            raise DataError(
                f"it is not in the encoding {encoding} ({error}); convert it to UTF-8"
            ) from error
        if not is_kept:
            raise DataError(f"its encoding {encoding} would change its bytes; convert it to UTF-8")
        if self.languages.tag:
            source = self.with_languages(source)
        segments = [segment for segment in self.segments(source) if segment is not None]

        def written(translations: Sequence[AlignedText]) -> bytes:
            text = _translated_text(self, source, segments, translations)
            return mark + self.encoded(text, encoding)

        return Document(segments, written)

    def encoding(self, content: bytes) -> str:
        """Return the encoding that a file without a byte order mark declares, by default UTF-8."""
        match = self.declaration.search(content[:MOST_DECLARING])
        return match[1].decode() if match else "utf-8"

    def with_languages(self, source: str) -> str:
        """Return a source that names the target language, which is known, for its own."""
        return source

    @abstractmethod
    def segments(self, source: str) -> Iterable[Segment | None]:
        """Return the segments of a text in reading order. None is a text without words."""

    def text(self, text: str, style: str, segment: Segment) -> str:
        """Return translated text in the form of the format, within a tag of this style."""
        return text

    def rendered(self, segment: Segment, translation: AlignedText, source: ReadSource) -> str:
        """Return the text that replaces the source of a segment."""
        return self.render_words(segment, aligned_words(segment, translation), source)

    def render_words(self, segment: Segment, words: Sequence[Word], source: ReadSource) -> str:
        """Return words of a translation in the form of the format, with the tags of a segment."""
        written = []
        for part in self.parts(segment, words):
            if isinstance(part, PlainText):
                written.append(self.text(part.text, part.style, segment))
            else:
                written.append(source(part))
        return "".join(written)

    def parts(self, segment: Segment, words: Sequence[Word]) -> list[Span | PlainText]:
        """Return words of a translation as texts, between the places of tags in the source."""
        return marked_parts(segment, words)

    def encoded(self, text: str, encoding: str) -> bytes:
        """Return a text as bytes (DataError: the encoding lacks a character)."""
        try:
            return text.encode(encoding)
        except UnicodeEncodeError as error:
            character = text[error.start]
            raise DataError(
                f"the encoding {encoding} of the file has no {character!r}; convert it to UTF-8"
            ) from error


def line_end_of(text: str) -> str:
    """Return how the lines of a text end."""
    return "\r\n" if "\r\n" in text else "\n"


def _translated_text(
    text_format: TextFormat,
    source: str,
    segments: Sequence[Segment],
    translations: Sequence[AlignedText],
) -> str:
    """Return a source with translated segments. A segment may lie within another segment."""
    changed = []
    for segment, translation in zip(segments, translations, strict=True):
        if translation.text != segment.text or not text_format.keeps_equal:
            changed.append((segment, translation))
    # Put an outer segment before the segments in it, such as attributes.
    changed.sort(key=lambda pair: (pair[0].span[0], -pair[0].span[1]))
    begins = [segment.span[0] for segment, _ in changed]

    # Return a part of the source with its translated segments from number ``first`` on.
    def text(span: Span, first: int = 0) -> str:
        position, end = span
        parts = []
        for number in range(max(first, bisect_left(begins, position)), len(changed)):
            segment, translation = changed[number]
            begin, behind = segment.span
            if begin >= end:
                break
            if begin >= position:  # not within the segment before
                read_source = partial(text, first=number + 1)
                rendered = text_format.rendered(segment, translation, read_source)
                parts += [source[position:begin], rendered]
                position = behind
        return "".join([*parts, source[position:end]])

    return text((0, len(source) + 1))  # for segments that are inserted at the end

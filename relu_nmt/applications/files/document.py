"""Documents: their segments, and how translations take the place of the segments in the source."""

import codecs
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar

from relu_nmt.applications.files import FileOptions
from relu_nmt.applications.files.placing import Translation, Writer, rendered
from relu_nmt.applications.files.segments import Segment, Span
from relu_nmt.errors import DataError

MOST_BYTES = 64 * 2**20
"""Largest file, and largest sum of the parts of a container that are read."""


class Document(ABC):
    """A document that was read, with its segments in reading order."""

    segments: Sequence[Segment]

    @abstractmethod
    def written(self, translations: Sequence[Translation]) -> bytes:
        """Return the file with a translation for each segment."""


class FileFormat(ABC):
    """A file format. Register the class with :data:`formats` to add one.

    Attributes:
        reads: names of the :class:`FileOptions` that it reads. Others are refused.
    """

    reads: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: FileOptions) -> None:
        self.options = options

    @abstractmethod
    def read(self, content: bytes) -> Document:
        """Return the document in a file (DataError: it is damaged)."""


class TextFormat(FileFormat):
    """A format whose files are text. Segments are spans of the text, which may lie in others.

    Attributes:
        keeps_equal: a segment whose translation is equal keeps its source.
    """

    keeps_equal = True

    def read(self, content: bytes) -> "TextDocument":
        """Return the document in a file (DataError: it is damaged)."""
        encoding = self.encoding(content)
        mark = BYTE_ORDER_MARKS.get(encoding, b"")
        try:
            source = content.removeprefix(mark).decode(encoding)
        except (UnicodeError, LookupError) as error:
            raise DataError(
                f"it is not in the encoding {encoding} ({error}); convert it to UTF-8"
            ) from error
        return self.document(source, encoding)

    def document(self, source: str, encoding: str = "utf-8") -> "TextDocument":
        """Return the document in a text."""
        return TextDocument(self, source, self.segments(source), encoding)

    def encoding(self, content: bytes) -> str:
        """Return the name of a file's encoding, by its first bytes."""
        for name, mark in BYTE_ORDER_MARKS.items():
            if content.startswith(mark):
                return name
        return "utf-8"

    @abstractmethod
    def segments(self, source: str) -> list[Segment]:
        """Return the segments of a text in reading order."""

    def text(self, text: str, style: str, segment: Segment) -> str:
        """Return translated text in the form of the format, within a tag of this style."""
        return text

    def rendered(self, segment: Segment, translation: Translation, writer: Writer) -> str:
        """Return what replaces the source of a segment."""
        return rendered(segment, translation, writer)

    def encoded(self, text: str, encoding: str) -> bytes:
        """Return a text as bytes (DataError: the encoding lacks a character)."""
        try:
            return text.encode(encoding)
        except UnicodeEncodeError as error:
            character = text[error.start]
            raise DataError(
                f"the encoding {encoding} of the file has no {character!r}; convert it to UTF-8"
            ) from error


BYTE_ORDER_MARKS = {
    "utf-8-sig": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
}


class TextDocument(Document):
    """A document whose source is one text."""

    def __init__(
        self,
        text_format: TextFormat,
        source: str,
        segments: Sequence[Segment],
        encoding: str = "utf-8",
    ) -> None:
        self.segments = segments
        self._format = text_format
        self._source = source
        self._encoding = encoding

    def written(self, translations: Sequence[Translation]) -> bytes:
        """Return the file with a translation for each segment."""
        text = self.written_text(translations)
        mark = BYTE_ORDER_MARKS.get(self._encoding, b"")
        encoding = "utf-8" if self._encoding == "utf-8-sig" else self._encoding
        return mark + self._format.encoded(text, encoding)

    def written_text(self, translations: Sequence[Translation]) -> str:
        """Return the text with a translation for each segment. Equal ones keep their source."""
        edits = _Edits(self._source)
        pairs = list(zip(self.segments, translations, strict=True))
        # Write inner segments first, such as attributes, since outer ones contain them.
        pairs.sort(key=lambda pair: pair[0].span[1] - pair[0].span[0])
        for segment, translation in pairs:
            if translation.text != segment.text or not self._format.keeps_equal:
                writer = _SegmentWriter(self._format, edits, segment)
                edits.replace(segment.span, self._format.rendered(segment, translation, writer))
        return edits.text((0, len(self._source)))


class _Edits:
    """A text with replaced spans, which contain each other or lie apart."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._spans: list[Span] = []
        self._texts: list[str] = []

    def replace(self, span: Span, text: str) -> None:
        """Replace a span, and the replaced spans in it."""
        first, last = self._within(span)
        self._spans[first:last] = [span]
        self._texts[first:last] = [text]

    def text(self, span: Span) -> str:
        """Return a part of the text with its replaced spans."""
        position, end = span
        parts = []
        for number in range(*self._within(span)):
            begin, behind = self._spans[number]
            parts += [self._source[position:begin], self._texts[number]]
            position = behind
        return "".join([*parts, self._source[position:end]])

    def _within(self, span: Span) -> tuple[int, int]:
        return (
            bisect_left(self._spans, (span[0], span[0])),
            bisect_left(self._spans, (span[1], span[1])),
        )


class _SegmentWriter(Writer):
    """Writes the parts of one segment by its format."""

    def __init__(self, text_format: TextFormat, edits: _Edits, segment: Segment) -> None:
        self._format = text_format
        self._edits = edits
        self._segment = segment

    def source(self, span: Span) -> str:
        return self._edits.text(span)

    def text(self, text: str, style: str) -> str:
        return self._format.text(text, style, self._segment)

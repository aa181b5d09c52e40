"""EPUB: the chapters in the order of the book, its title and its table of contents."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.container import ZipFormat
from relu_nmt.applications.files.document import FileFormat, TextFormat
from relu_nmt.applications.files.html import HtmlFormat, MarkedTextReader
from relu_nmt.applications.files.markup import (
    Piece,
    Vocabulary,
    XmlFormat,
    check_xml,
    names,
    pieces,
)
from relu_nmt.applications.files.segments import Span

_LANGUAGE = re.compile(r"\s*([\w-]+)")
_ORDER = "page-progression-direction"
_VERSION_2 = re.compile(r"""<(?:\w+:)?package\b[^<>]*\sversion\s*=\s*["']2""")
"""A book of EPUB 2, which names no order of its pages."""
_MOST_BEFORE = 2_000  # characters at the start of a package in which its version is sought


class ChapterFormat(XmlFormat, HtmlFormat):
    """A chapter, a page of XHTML."""

    encoding = TextFormat.encoding  # browsers read other encodings only in pages of HTML


class BookFormat(XmlFormat):
    """The package file, or the older table of contents."""

    vocabulary = Vocabulary(
        inline=frozenset(), only_in=names("dc:title dc:description dc:subject text ncx:text")
    )
    reader = MarkedTextReader  # of a description

    def language_edits(self, tag: Piece) -> Iterator[tuple[Span, str]]:
        """Yield the language of an element or of the book, and the order of its pages."""
        yield from super().language_edits(tag)
        new = self.languages.new_direction
        is_spine = tag.kind == "open" and tag.name.rpartition(":")[2] == "spine"
        if is_spine and new == "rtl" and not _VERSION_2.search(tag.source, 0, _MOST_BEFORE):
            yield tag.attribute_edit(_ORDER, new)
        else:
            for name in ("dir", _ORDER):
                if {tag.attribute(name), new} == {"ltr", "rtl"}:
                    yield tag.attribute_edit(name, new)
        match = _LANGUAGE.match(tag.source, tag.end)
        if tag.name == "dc:language" and match:
            yield match.span(1), self.languages.after_translation(match[1])


@formats.register("epub")
class EpubFormat(ZipFormat):
    """Books."""

    def parts_with_text(self, parts: Mapping[str, bytes]) -> Iterator[tuple[str, FileFormat]]:
        book_format = BookFormat(self.options, self.languages)
        chapter_format = ChapterFormat(self.options, self.languages)
        packages = _values(parts["META-INF/container.xml"], "rootfile", "full-path", "full-path")
        package = next(iter(packages), "")
        yield package, book_format
        targets = _values(parts[package], "item", "id", "href")
        chapters = _values(parts[package], "itemref", "idref", "idref")
        # Read the chapters in the order of the book, then the other pages.
        for key in [*chapters, *targets]:
            target = posixpath.join(posixpath.dirname(package), unquote(targets.get(key, "")))
            name = posixpath.normpath(target)
            if name in parts and name.endswith(".ncx"):
                yield name, book_format
            elif name in parts and name.endswith((".xhtml", ".html", ".htm", ".xml")):
                yield name, chapter_format


def _values(content: bytes, name: str, key: str, value: str) -> dict[str, str]:
    """Return the attribute ``value`` of each element with this name, by its attribute ``key``."""
    check_xml(content)
    source = content.decode("utf-8", "replace")
    values = {}
    for piece in pieces(source):
        if piece.kind in ("open", "empty") and piece.name.rpartition(":")[2] == name:
            values[piece.attribute(key)] = piece.attribute(value)
    return values

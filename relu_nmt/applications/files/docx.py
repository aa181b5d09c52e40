"""Word: paragraphs of runs, whose texts have the properties of their run.

The properties of most of a paragraph's text are the default. Other runs are pairs of tags, and
runs without text, such as a picture or a reference, are empty tags.
"""

import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.container import ZipFormat
from relu_nmt.applications.files.document import TextDocument
from relu_nmt.applications.files.markup import XmlFormat, attribute, names, partners, pieces
from relu_nmt.applications.files.segments import Segment, SegmentBuilder, Span, Tag, all_tags

_PARTS = re.compile(r"word/(?:document\d*|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
_AROUND = names("w:hyperlink w:ins w:smartTag w:fldSimple w:sdt w:sdtContent w:bdo w:dir w:moveTo")
_SPACES = names("w:tab w:ptab w:br w:cr")
_PLAIN = " "
"""Style of a run without properties."""


class _Reader:
    """Finds the segments of a part."""

    def __init__(self, source: str) -> None:
        self.paragraphs: list[Segment] = []
        self._source = source
        self._pieces = list(pieces(source))
        self._partners = partners(self._pieces)
        self._builder = SegmentBuilder()
        self._style = ""

    def read(self, numbers: range) -> None:
        """Find the paragraphs among some pieces, each before those of the boxes in it."""
        number = numbers.start
        while number < numbers.stop:
            end = self._partners.get(number, number)
            if self._pieces[number].name == "w:p" and end > number:
                for inner in self._read_paragraph(range(number + 1, end)):
                    self.read(inner)
                number = end
            number += 1

    def _read_paragraph(self, numbers: range) -> list[range]:
        """Store a paragraph, and return the elements in it that may have paragraphs."""
        self._builder, self._style = SegmentBuilder(), ""
        inner: list[range] = []
        number = numbers.start
        while number < numbers.stop:
            piece = self._pieces[number]
            end = self._partners.get(number, number)
            if piece.name == "w:r" and end > number:
                inner += self._add_run(number, end)
                number = end
            elif piece.name in _AROUND and (end > number or piece.kind == "close"):
                self._set_style("")
                add = self._builder.close if piece.kind == "close" else self._builder.open
                add(piece.name, piece.span)
            elif piece.kind in ("open", "empty"):
                self._builder.add_empty((piece.begin, self._pieces[end].end))
                number = end
            number += 1
        self._set_style("")
        segment = self._builder.finish()
        if segment is not None:
            self.paragraphs.append(_with_default(segment))
        return inner

    def _set_style(self, style: str) -> None:
        """Begin a stretch of text with these properties, unless it has begun."""
        if style != self._style:
            if self._style:
                self._builder.close("w:r")
            if style:
                self._builder.open("w:r", repeats=True, style=style)
        self._style = style

    def _add_run(self, number: int, end: int) -> list[range]:
        """Add a run, and return the elements in it that may have paragraphs."""
        opening, closing = self._pieces[number], self._pieces[end]
        run = opening.begin, closing.end
        properties: list[Span] = []
        inner = []
        has_text = any(piece.name == "w:t" for piece in self._pieces[number:end])
        number += 1
        while number < end:
            piece = self._pieces[number]
            last = self._partners.get(number, number)
            element = piece.begin, self._pieces[last].end
            if piece.name == "w:rPr":
                properties = [element]
            elif piece.name == "w:t":
                self._set_style(self._source[slice(*properties[0])] if properties else _PLAIN)
                text = html.unescape(self._source[piece.end : self._pieces[last].begin])
                self._builder.add_text(text if last > number else "", run, is_whole=True)
            elif piece.name == "w:noBreakHyphen":
                self._set_style(self._source[slice(*properties[0])] if properties else _PLAIN)
                self._builder.add_text("\u2011", run, is_whole=True)
            elif piece.kind != "text":
                parts = opening.span, *properties, element, closing.span
                self._add_other(number, parts, has_text)
                inner.append(range(number + 1, last))
            number = last + 1
        return inner

    def _add_other(self, number: int, parts: tuple[Span, ...], has_text: bool) -> None:
        """Add a run without text. The marks of a field are a pair."""
        piece = self._pieces[number]
        kind = ""
        if piece.name == "w:fldChar":
            kind = attribute(self._source, piece, "w:fldCharType")
        if kind == "begin":
            self._set_style("")
            self._builder.open("field", *parts)
        elif kind == "end":
            self._set_style("")
            self._builder.close("field", *parts)
        else:
            self._builder.add_empty(*parts, is_space=piece.name in _SPACES, is_first=has_text)


def _with_default(segment: Segment) -> Segment:
    """Return a segment without the pairs of its commonest style, which becomes its note."""
    lengths: Counter[str] = Counter()
    for tag in all_tags(segment.tags):
        lengths[tag.style] += tag.end - tag.begin
    del lengths[""]
    default = lengths.most_common(1)[0][0]
    return replace(segment, tags=_without(segment.tags, default), note=default)


def _without(tags: Sequence[Tag], style: str) -> list[Tag]:
    remaining: list[Tag] = []
    for tag in tags:
        tag.children = _without(tag.children, style)
        remaining += tag.children if tag.style == style else [tag]
    return remaining


class DocxPart(XmlFormat):
    """A part with paragraphs."""

    def segments(self, source: str) -> list[Segment]:
        """Return the paragraphs in reading order."""
        reader = _Reader(source)
        reader.read(range(len(reader._pieces)))
        return reader.paragraphs

    def text(self, text: str, style: str, segment: Segment) -> str:
        """Return translated text as a run."""
        properties = (style or segment.note).strip()
        written = html.escape(text, quote=False)
        return f'<w:r>{properties}<w:t xml:space="preserve">{written}</w:t></w:r>'


@formats.register("docx")
class DocxFormat(ZipFormat):
    """Word."""

    def documents(self, parts: Mapping[str, bytes]) -> dict[str, TextDocument]:
        """Return the parts that have text, in reading order (KeyError: one is missing)."""
        reader = DocxPart(self.options)
        names_of_parts = sorted(name for name in parts if _PARTS.fullmatch(name))
        # Office on the web writes word/document2.xml. The text comes before headers and notes.
        names_of_parts.sort(key=lambda name: not name.startswith("word/document"))
        if not names_of_parts or not names_of_parts[0].startswith("word/document"):
            raise KeyError("word/document.xml")
        return {name: reader.read(parts[name]) for name in names_of_parts}

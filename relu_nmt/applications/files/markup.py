"""Markup of HTML and XML as pieces of the source, and the segments between block elements."""

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html.entities import html5
from itertools import islice
from typing import ClassVar
from xml.parsers import expat

from relu_nmt.applications.files.document import TextFormat
from relu_nmt.applications.files.segments import (
    KEPT_SPACE,
    Segment,
    SegmentBuilder,
    Span,
    plain_segment,
    split_at,
)
from relu_nmt.errors import DataError

MOST_PIECES = 2_000_000  # most tags and texts of a file
MOST_DEPTH = 200  # most levels of nested elements. No real document has more.
KNOWN_DOCTYPES = ("-//W3C//", "-//NISO//DTD ncx", "-//OASIS//DTD XLIFF", "-//OpenOffice.org//")
"""Beginnings of public names that programs write. Their files are never read."""
_TAG = re.compile(r"""<(/?)([A-Za-z_][^\s/<>]*)(?![^\s/<>])((?:[^<>"']|"[^"]*"|'[^']*')*)>""")
_ATTRIBUTE = re.compile(r"""(?<![^\s=/>"'])([^\s=/>"']+)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")
_UNQUOTED = re.compile(r"""=\s*[^\s"'=]+\Z""")
"""A value without quotes. A slash at its end belongs to it."""
_OLD_NAMES = "|".join(name for name in html5 if not name.endswith(";"))
REFERENCE = re.compile(
    r"&(?:(?:\#\d{1,7}|\#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]*);"
    rf"|(?:{_OLD_NAMES})(?![\w;=]))"  # which browsers also read without a semicolon
)
_KEPT = re.compile(f"{REFERENCE.pattern}|{KEPT_SPACE.pattern}")
CDATA = "<![CDATA["
_OTHER = (("<!--", "-->"), (CDATA, "]]>"), ("<?", "?>"), ("<%", "%>"), ("<!", ">"))


def names(text: str) -> frozenset[str]:
    """Return the names in a text, which are separated by spaces."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a source. Its kind is text, cdata, open, close, empty or other."""

    source: str
    kind: str
    begin: int
    end: int
    name: str = ""
    behind_name: Span = (0, 0)

    @property
    def span(self) -> Span:
        """Place in the source."""
        return self.begin, self.end

    @property
    def text(self) -> str:
        """The piece as it is in the source."""
        return self.source[self.begin : self.end]

    def attributes(self) -> Iterator[tuple[str, Span]]:
        """Yield the attributes of a tag, each with the place of its value without quotes."""
        for match in _ATTRIBUTE.finditer(self.source, *self.behind_name):
            begin, end = match.span(2)
            if self.source[begin] in "\"'":
                begin += 1
                end -= 1
            yield match[1], (begin, end)

    def attribute(self, name: str) -> str:
        """Return the value of an attribute, "" without it."""
        for attribute_name, (begin, end) in self.attributes():
            if attribute_name == name:
                return html.unescape(self.source[begin:end])
        return ""

    def attribute_edit(self, name: str, value: str) -> tuple[Span, str]:
        """Return the place and the text that give an attribute of a tag a value."""
        for attribute_name, span in self.attributes():
            if attribute_name == name:
                return span, value
        begin, _ = self.behind_name
        return (begin, begin), f' {name}="{value}"'


@dataclass(frozen=True)
class Vocabulary:
    """Roles of the elements of a format."""

    inline: frozenset[str]  # elements within a text, in pairs
    repeating: frozenset[str] = frozenset()  # inline elements that may become several, as ``<b>``
    # Elements within a text that have no words of it. A text in them is its own segment.
    empty: frozenset[str] = frozenset()
    spaces: frozenset[str] = frozenset()  # empty elements that stand for a space
    dividing: frozenset[str] = frozenset()  # elements within a text that divide words
    protected: frozenset[str] = frozenset()  # elements within a text whose words stay
    skipped: frozenset[str] = frozenset()  # elements without text to translate
    # Attributes that are text, by element. ``*`` stands for all elements.
    attributes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Elements that have text. Other elements in them are inline or else empty. None: all have text.
    only_in: frozenset[str] | None = None
    raw: frozenset[str] = frozenset()  # elements whose content is not parsed for tags
    preformatted: frozenset[str] = frozenset()  # elements whose lines and spaces stay
    is_html: bool = False  # names may be in capitals, and ``<![CDATA[`` is a comment


def pieces(source: str, raw: frozenset[str] = frozenset()) -> Iterator[Piece]:
    """Yield the pieces of a source. The content of ``raw`` elements is one piece."""
    position = 0
    while position < len(source):
        begin = source.find("<", position)
        begin = len(source) if begin < 0 else begin
        if begin > position:
            yield Piece(source, "text", position, begin)
        if begin == len(source):
            return
        piece = _tag_at(source, begin)
        yield piece
        position = piece.end
        if piece.kind == "open" and piece.name.lower() in raw:
            ending = re.compile(rf"</{re.escape(piece.name)}\b", re.IGNORECASE)
            match = ending.search(source, position)
            end = match.start() if match else len(source)
            yield Piece(source, "other", position, end)
            position = end


def _tag_at(source: str, begin: int) -> Piece:
    """Return the tag, comment or declaration at a place, or a text of one character."""
    for opening, closing in _OTHER:
        if source.startswith(opening, begin):
            end = source.find(closing, begin + len(opening))
            end = len(source) if end < 0 else end + len(closing)
            return Piece(source, "cdata" if opening == CDATA else "other", begin, end)
    match = _TAG.match(source, begin)
    if match is None:
        return Piece(source, "text", begin, begin + 1)
    kind = "open"
    if match[1]:
        kind = "close"
    elif match[3].endswith("/") and not _UNQUOTED.search(match[3]):
        kind = "empty"
    return Piece(source, kind, begin, match.end(), match[2], match.span(3))


def partners(tags: Sequence[Piece]) -> dict[int, int]:
    """Return the closing tag of each opening tag that has one (DataError: nested too deeply)."""
    open_tags: dict[str, list[int]] = {}
    closing_of = {}
    for number, piece in enumerate(tags):
        if piece.kind == "open":
            open_tags.setdefault(piece.name, []).append(number)
        elif piece.kind == "close" and open_tags.get(piece.name):
            closing_of[open_tags[piece.name].pop()] = number
    # Refuse elements that are nested too deeply. Tags without an end do not count.
    depth = 0
    ends = set(closing_of.values())
    for number in range(len(tags)):
        depth += (number in closing_of) - (number in ends)
        if depth > MOST_DEPTH:
            raise DataError(f"its elements are nested more than {MOST_DEPTH} deep")
    return closing_of


def check_xml(content: bytes | str) -> None:
    """Raise a DataError for XML that is not well formed, needs a file, or declares entities."""
    parser = expat.ParserCreate()

    def check_doctype(name: str, system: str | None, public: str | None, subset: int) -> None:
        is_known = public is not None and public.startswith(KNOWN_DOCTYPES)
        if system and not is_known and system != "about:legacy-compat":
            raise DataError(f"it needs a file from outside ({system}); remove its DOCTYPE")

    def refuse_entity(name: str, *declaration: object) -> None:
        raise DataError(f"it declares the entity {name}; replace entities by their text first")

    parser.StartDoctypeDeclHandler = check_doctype
    parser.EntityDeclHandler = refuse_entity
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, ValueError) as error:  # a ValueError is about the encoding
        raise DataError(f"it is not well-formed XML: {error}") from error


class MarkupReader:
    """Finds the segments of HTML or XML: the texts between tags that are not inline."""

    def __init__(self, source: str, vocabulary: Vocabulary) -> None:
        self.source = source
        self.vocabulary = vocabulary
        self.pieces = list(islice(pieces(source, vocabulary.raw), MOST_PIECES + 1))
        if len(self.pieces) > MOST_PIECES:
            raise DataError(f"it has more than {MOST_PIECES:,} tags and texts; divide it")
        if vocabulary.is_html:
            self.pieces = [replace(piece, name=piece.name.lower()) for piece in self.pieces]
        self.partners = partners(self.pieces)
        self.builder = SegmentBuilder()
        self.inner: list[range] = []
        self.keeps_spaces = False
        self.found_segments: list[Segment | None] = []

    def segments(self) -> list[Segment | None]:
        """Return the segments in reading order."""
        self.read(range(len(self.pieces)), is_text=self.vocabulary.only_in is None)
        return self.found_segments

    def read(self, numbers: range, is_text: bool) -> None:
        """Find the segments in some pieces. Elements within a text may contain further segments."""
        only_in = self.vocabulary.only_in
        number = numbers.start
        while number < numbers.stop:
            piece = self.pieces[number]
            end = self.partners.get(number, number)
            if end >= numbers.stop:  # an element that overlaps the element around it
                end = number
            is_open = piece.kind in ("open", "empty")
            if is_open:
                self._add_attributes(piece)
            if piece.name and self._is_block(piece, is_text):
                self.end_segment()
                if piece.name in self.vocabulary.preformatted:
                    self.keeps_spaces = piece.kind == "open" and not self.is_skipped(piece)
                is_text = only_in is None or (piece.kind == "open" and piece.name in only_in)
                if is_open and self.is_skipped(piece):
                    # Go on behind its end tag. Without one, nothing is text until the next block.
                    is_text = is_text and end > number
                    number = end
            elif is_text and is_open:
                number = self.add_inline(number, end)
            elif is_text:
                self.add_part(piece)
            if piece.name in self.vocabulary.dividing:
                self.builder.divide()
            number += 1
        self.end_segment()

    def add_part(self, piece: Piece) -> None:
        """Add a text, a closing tag or a comment."""
        if piece.kind == "text":
            self.add_text(piece)
        elif piece.kind == "close":
            self.builder.close(piece.name, [piece.span])
        elif piece.kind == "cdata" and not self.vocabulary.is_html:
            self.builder.add_text(_content(piece), piece.span, is_whole=True)
        else:
            self.builder.add_empty([piece.span])

    def end_segment(self) -> None:
        """Store the segment, and then the segments of the elements within it."""
        self.found_segments.append(self.builder.finish())
        inner = self.inner
        self.builder = SegmentBuilder()
        self.inner = []
        for numbers in inner:
            self.read(numbers, is_text=self.vocabulary.only_in is None)

    def _is_block(self, piece: Piece, is_text: bool) -> bool:
        vocabulary = self.vocabulary
        if vocabulary.only_in is not None:
            return not is_text or piece.name in vocabulary.only_in
        is_inline = piece.name in vocabulary.inline or piece.name in vocabulary.empty
        return not is_inline and piece.name not in vocabulary.protected

    def is_skipped(self, piece: Piece) -> bool:
        """Return True for an element without text to translate."""
        return piece.name in self.vocabulary.skipped or self.is_untranslated(piece)

    def is_untranslated(self, piece: Piece) -> bool:
        """Return True for an element whose author forbids its translation."""
        if "translate" not in piece.text:
            return False
        forbids = piece.attribute("translate").lower() == "no"
        return forbids or "notranslate" in piece.attribute("class").split()

    def add_inline(self, number: int, end: int) -> int:
        """Add an inline element, and return the number of the last piece that was read."""
        piece = self.pieces[number]
        vocabulary = self.vocabulary
        element = self.span_of(number, end)
        if piece.name not in vocabulary.inline and piece.name not in vocabulary.protected:
            self.builder.add_empty([element], is_space=piece.name in vocabulary.spaces)
            if not self.is_skipped(piece):
                self.inner.append(range(number + 1, end))
            return end
        if piece.name in vocabulary.protected or self.is_untranslated(piece):
            self.builder.add_protected(self.text_of(range(number + 1, end)), [element])
            return end
        if piece.kind == "empty":
            self.builder.add_empty([piece.span])
        else:
            repeats = piece.name in vocabulary.repeating and not piece.attribute("id")
            may_be_note = vocabulary.is_html and "noteref" in piece.text
            self.builder.open(piece.name, [piece.span], repeats=repeats, may_be_note=may_be_note)
        return number

    def children(self, numbers: range) -> Iterator[tuple[int, int]]:
        """Yield the numbers of the first and last piece of each outermost element or text."""
        number = numbers.start
        while number < numbers.stop:
            last = self.partners.get(number, number)
            yield number, last
            number = last + 1

    def span_of(self, first: int, last: int) -> Span:
        """Return the place of an element from the numbers of its first and last piece."""
        return self.pieces[first].begin, self.pieces[last].end

    @cached_property
    def parents(self) -> list[int]:
        """For each piece of XML, the number of the element around it, -1 at the top."""
        around = [-1]
        parents = []
        for number, piece in enumerate(self.pieces):
            if piece.kind == "close":
                around.pop()
            parents.append(around[-1])
            if piece.kind == "open":
                around.append(number)
        return parents

    def inherited(self, number: int, name: str) -> str:
        """Return the attribute of the innermost element of XML, from this one up, that has it."""
        while number >= 0:
            piece = self.pieces[number]
            value = piece.attribute(name) if name in piece.text else ""
            if value:
                return value
            number = self.parents[number]
        return ""

    def text_of(self, numbers: range) -> str:
        """Return the text of some pieces, without tags."""
        text = ""
        for number in numbers:
            piece = self.pieces[number]
            if piece.kind == "text":
                text += html.unescape(piece.text)
            elif piece.kind == "cdata":
                text += _content(piece)
        return text

    def add_text(self, piece: Piece) -> None:
        """Add text. References to letters become letters, and references to symbols stay."""
        pattern = _KEPT if self.keeps_spaces else REFERENCE
        for span, match in split_at(pattern, self.source, piece.span):
            self.builder.add_text(self.source[slice(*span)], span)
            if match is not None and match[0].isspace():
                self.add_space(match)
            elif match is not None:
                add_reference(self.builder, match)

    def add_space(self, match: re.Match[str]) -> None:
        """Add white space that stays as it is."""
        self.builder.add_empty([match.span()], is_space=True)

    def text_attributes(self, piece: Piece) -> frozenset[str]:
        """Return the names of the attributes of a tag that are text."""
        attributes = self.vocabulary.attributes
        return attributes.get("*", frozenset()) | attributes.get(piece.name, frozenset())

    def _add_attributes(self, piece: Piece) -> None:
        text_names = self.text_attributes(piece)
        if not text_names or self.is_untranslated(piece):
            return
        for name, (begin, end) in piece.attributes():
            if name.lower() in text_names:
                note = "attribute" if self.source[begin - 1] in "\"'" else "bare attribute"
                text = html.unescape(self.source[begin:end])
                self.found_segments.append(plain_segment(text, (begin, end), note))


def _content(piece: Piece) -> str:
    """Return the content of unparsed text."""
    return piece.text.removeprefix(CDATA).removesuffix("]]>")


def add_reference(builder: SegmentBuilder, match: re.Match[str]) -> None:
    """Add a reference, such as ``&uuml;``. Letters are text, symbols stay as they are written."""
    text = html.unescape(match[0])
    is_symbol = text in "&<>" or (len(text) == 1 and unicodedata.category(text)[0] == "S")
    if text == "\u00a0":
        builder.add_empty([match.span()], is_space=True)
    elif is_symbol or text == match[0]:
        builder.add_protected(text, [match.span()])
    else:
        builder.add_text(text, match.span())


class MarkupFormat(TextFormat):
    """A format of HTML or XML."""

    vocabulary: ClassVar[Vocabulary]
    reader: ClassVar[type[MarkupReader]] = MarkupReader

    def segments(self, source: str) -> Iterable[Segment | None]:
        return self.reader(source, self.vocabulary).segments()

    def with_languages(self, source: str) -> str:
        """Return a source with new languages outside elements that are not translated."""
        reader = self.reader(source, self.vocabulary)
        parts = []
        position = 0
        last = -1
        # For each element around a piece that names a language: its last piece, and if foreign.
        scopes: list[tuple[int, bool]] = []
        for number, piece in enumerate(reader.pieces):
            if number <= last or piece.kind not in ("open", "empty"):
                continue
            if reader.is_skipped(piece) or piece.name in self.vocabulary.protected:
                last = reader.partners.get(number, number)
                continue
            edits = list(self.language_edits(piece))
            is_renamed = any(source[slice(*span)] != new for span, new in edits)
            while scopes and number > scopes[-1][0]:
                scopes.pop()
            if edits:
                scopes.append((reader.partners.get(number, number), not is_renamed))
            if not (scopes and scopes[-1][1]):
                edits += self.further_edits(piece, is_renamed)
            for (begin, end), new in sorted(edits):
                parts += [source[position:begin], new]
                position = end
        return "".join([*parts, source[position:]])

    def further_edits(self, tag: Piece, is_renamed: bool) -> Iterable[tuple[Span, str]]:
        """Return what else changes at a tag with a new language, or outside foreign elements."""
        return ()

    def language_edits(self, tag: Piece) -> Iterator[tuple[Span, str]]:
        """Yield the places of languages at a tag, and their new texts."""
        for name, (begin, end) in tag.attributes():
            if name.lower() in ("lang", "xml:lang") and begin < end:
                yield (begin, end), self.languages.after_translation(tag.source[begin:end])

    def text(self, text: str, style: str, segment: Segment) -> str:
        """Return translated text with references for the characters of markup."""
        if segment.note == "bare attribute":
            return f'"{html.escape(text)}"'
        return html.escape(text, quote=segment.note == "attribute")

    def encoded(self, text: str, encoding: str) -> bytes:
        """Return a text as bytes, with references for characters that the encoding lacks."""
        return text.encode(encoding, "xmlcharrefreplace")


class XmlFormat(MarkupFormat):
    """A format of XML, which must be well formed."""

    declaration = re.compile(rb"""\A<\?xml[^>]*?\sencoding\s*=\s*["']([\w.-]+)["']""")

    def segments(self, source: str) -> Iterable[Segment | None]:
        check_xml(source)
        return super().segments(source)

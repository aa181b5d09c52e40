"""Word: paragraphs of runs, whose texts have the properties of their run.

The commonest properties of a paragraph's text are the default. Runs with other properties become
pairs of tags. Runs without text, such as a picture or a reference, become empty tags.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.aligned_words import AlignedText
from relu_nmt.applications.files.container import ZipFormat
from relu_nmt.applications.files.document import Document
from relu_nmt.applications.files.docx_languages import WordXml, right_to_left
from relu_nmt.applications.files.markup import MarkupReader, Piece, Vocabulary, XmlFormat, names
from relu_nmt.applications.files.segments import KEPT_SPACE, Segment, Span, Tag, all_tags

_PARTS = re.compile(
    r"word/(?:document\d*|header\d*|footer\d*|footnotes|endnotes|comments|styles)\.xml"
)
_DRAWINGS = re.compile(r"word/(?:charts/chart\d*|diagrams/(?:data|drawing)\d*)\.xml")
_AROUND = names("w:hyperlink w:ins w:smartTag w:fldSimple w:sdt w:sdtContent w:bdo w:dir w:moveTo")
_AROUND |= names("w:customXml")
_SPACES = names("w:tab w:ptab w:br w:cr")
_LETTERS = {"w:noBreakHyphen": "\u2011", "w:softHyphen": "", "w:ruby": ""}
"""Elements of a run that are letters. The base of a ruby is text, and its reading is left out."""
_KEEPING_TAG = re.compile(r"""<w:t\s+xml:space\s*=\s*["']preserve["']\s*>""")
_NOTHING = re.compile(r"(?!)")
_WHITE_SPACE = " \t\r\n"
_FIRST_SPACE = re.compile(rf"(?<=>)[ \t]+|{KEPT_SPACE.pattern}")
_PLAIN = " "  # style of a run without properties


class _Reader(MarkupReader):
    _style = ""
    _last_space: Sequence[Span] = ()
    _field_code: list[Span] | None = None  # tags of a field up to its text, while they are read

    @cached_property
    def _keeping_tag(self) -> Span | None:
        match = _KEEPING_TAG.search(self.source)
        return match.span() if match else None

    def add_part(self, piece: Piece) -> None:
        """Add the end of an element around runs. White space between runs is no text."""
        if piece.kind == "close":
            self._set_style("")
            self.builder.close(piece.name, [piece.span])

    def add_inline(self, number: int, end: int) -> int:
        piece = self.pieces[number]
        if piece.name == "w:r" and end > number:
            self._add_run(number, end)
            return end
        if piece.name in _AROUND:
            self._set_style("")
        return super().add_inline(number, end)

    def end_segment(self) -> None:
        self._set_style("")
        if self._last_space:
            self.builder.add_empty(self._last_space, is_space=True, is_first=True)
            self._last_space = ()
        super().end_segment()

    def _set_style(self, style: str) -> None:
        """End the text with other properties, and begin a text with these properties."""
        if style != self._style:
            if self._style:
                self.builder.close("w:r", [])
            if style:
                self.builder.open("w:r", [], repeats=True, style=style)
        self._style = style
        self._field_code = None

    def _add_run(self, number: int, end: int) -> None:
        opening = self.pieces[number].span
        closing = self.pieces[end].span
        properties: list[Span] = []
        style = _PLAIN
        has_text = any(piece.name == "w:t" for piece in self.pieces[number:end])
        number += 1
        while number < end:
            piece = self.pieces[number]
            last = self.partners.get(number, number)
            element = piece.begin, self.pieces[last].end
            if piece.name == "w:rPr":
                properties = [element]
                style = self.source[slice(*element)]
            elif piece.name == "w:t" or piece.name in _LETTERS:
                self._set_style(style)
                if piece.name in _LETTERS:
                    letters = _LETTERS[piece.name]
                    for inner in range(number, last):
                        if self.pieces[inner].name == "w:rubyBase":
                            letters += self.text_of(range(inner, self.partners.get(inner, inner)))
                    self._last_space = ()
                    self.builder.add_text(letters, (opening[0], closing[1]), is_whole=True)
                elif last > number:
                    before = [opening, *properties, piece.span]
                    behind = [self.pieces[last].span, closing]
                    self._add_text(range(number + 1, last), before, behind)
            elif piece.kind != "text":
                parts = [opening, *properties, element, closing]
                self._add_other(piece, parts, has_text)
                self.inner.append(range(number + 1, last))
            number = last + 1

    def _add_text(self, numbers: range, before: Sequence[Span], behind: Sequence[Span]) -> None:
        begin = before[-1][1]
        end = behind[0][0]
        run = before[0][0], behind[-1][1]
        self._last_space = ()
        text = self.source[begin:end]
        whole = self.text_of(numbers)
        pattern = KEPT_SPACE if self.builder.is_behind_word else _FIRST_SPACE
        if self.inherited(numbers.start - 1, "xml:space") != "preserve":
            # Word and LibreOffice show no white space at either end of such a text.
            whole = whole.strip(_WHITE_SPACE)
            begin += len(text) - len(text.lstrip(_WHITE_SPACE))
            end = begin + len(text.strip(_WHITE_SPACE))
            # Keep several spaces by copying an earlier tag that preserves spaces.
            if self._keeping_tag is None or self._keeping_tag[1] > run[0]:
                pattern = _NOTHING
            else:
                before = [*before[:-1], self._keeping_tag]
        if "<" in text:
            self.builder.add_text(whole, run, is_whole=True)
            return
        # Keep repeated spaces, even across runs, and a space at either end of the paragraph.
        for match in pattern.finditer(self.source, begin, end):
            text = html.unescape(self.source[begin : match.start()])
            self.builder.add_text(text, run, is_whole=True)
            self.builder.add_empty([*before, match.span(), *behind], is_space=True, is_first=True)
            begin = match.end()
        text = html.unescape(self.source[begin:end])
        self.builder.add_text(text, run, is_whole=True)
        if text.endswith(" "):
            self._last_space = [*before, (end - 1, end), *behind]

    def _add_other(self, piece: Piece, parts: Sequence[Span], has_text: bool) -> None:
        """Add a run without text. The begin and end marks of a field become a pair.

        The code of the field stays with its begin mark.
        """
        kind = ""
        self._last_space = ()
        if piece.name == "w:fldChar":
            kind = piece.attribute("w:fldCharType")
        if self._field_code is not None and (piece.name == "w:instrText" or kind == "separate"):
            self._field_code += parts
            if kind == "separate":
                self._field_code = None
            return
        self._field_code = None
        if kind == "begin":
            self._set_style("")
            self._field_code = list(parts)
            self.builder.open("field", self._field_code)
        elif kind == "end":
            self._set_style("")
            self.builder.close("field", parts, may_overlap=True)
        else:
            is_space = piece.name in _SPACES
            self.builder.add_empty(parts, is_space=is_space, is_first=has_text)


def _with_default(segment: Segment) -> Segment:
    """Return a segment without the pairs of its commonest style. This style becomes its note."""
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
        if tag.style == style:
            remaining += tag.children
        else:
            remaining.append(tag)
    return remaining


class DocxPart(WordXml):
    """A part with paragraphs."""

    vocabulary = Vocabulary(
        inline=_AROUND,
        only_in=names("w:p"),
        attributes={"wp:docPr": names("descr title")},  # of pictures
    )
    reader = _Reader

    def segments(self, source: str) -> Iterator[Segment | None]:
        for segment in super().segments(source):
            if segment is None or segment.note == "attribute":
                yield segment
            else:
                yield _with_default(segment)

    def text(self, text: str, style: str, segment: Segment) -> str:
        """Return translated text as a run."""
        if segment.note == "attribute":
            return super().text(text, style, segment)
        properties = (style or segment.note).strip()
        if self.languages.new_direction == "rtl":
            properties = right_to_left(properties, text)
        written = html.escape(text, quote=False)
        return f'<w:r>{properties}<w:t xml:space="preserve">{written}</w:t></w:r>'


class DrawingPart(XmlFormat):
    """A chart or a diagram of SmartArt. The text of each run, and each label, is a segment."""

    vocabulary = Vocabulary(
        inline=frozenset(), skipped=names("c:numCache c:numLit"), only_in=names("a:t c:v")
    )


@formats.register("docx")
class DocxFormat(ZipFormat):
    """Word."""

    def documents(self, parts: Mapping[str, bytes]) -> dict[str, Document]:
        reader = DocxPart(self.options, self.languages)
        names_of_parts = sorted(name for name in parts if _PARTS.fullmatch(name))
        # Office on the web writes word/document2.xml. The text comes before headers and notes.
        names_of_parts.sort(key=lambda name: not name.startswith("word/document"))
        if not names_of_parts or not names_of_parts[0].startswith("word/document"):
            raise KeyError("word/document.xml")
        documents = {name: reader.read(parts[name]) for name in names_of_parts}
        drawing_reader = DrawingPart(self.options, self.languages)
        # Labels are there several times: SmartArt has its texts in two parts.
        translations: dict[str, AlignedText] = {}
        for name in sorted(filter(_DRAWINGS.fullmatch, parts)):
            document = drawing_reader.read(parts[name])
            documents[name] = replace(document, written=partial(_written, document, translations))
        return documents


def _written(
    document: Document, known: dict[str, AlignedText], translations: Sequence[AlignedText]
) -> bytes:
    """Return a document in which each text has the translation of the first such text."""
    pairs = zip(document.segments, translations, strict=True)
    return document.written([known.setdefault(segment.text, text) for segment, text in pairs])

"""Word: paragraphs of runs, whose texts have the properties of their run.

The commonest properties of a paragraph's text are the default. Runs with other properties become
pairs of tags. Runs without text, such as a picture or a reference, become empty tags.
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from relu_nmt.applications.files import FileOptions, Languages, formats
from relu_nmt.applications.files.aligned_words import AlignedText
from relu_nmt.applications.files.container import ZipFormat
from relu_nmt.applications.files.document import Document, FileFormat
from relu_nmt.applications.files.markup import MarkupReader, Piece, Vocabulary, XmlFormat, names
from relu_nmt.applications.files.segments import KEPT_SPACE, Segment, Span, Tag, all_tags, split_at

_PARTS = re.compile(
    r"word/(?:document\d*|header\d*|footer\d*|footnotes|endnotes|comments|styles)\.xml"
)
_DRAWINGS = re.compile(r"word/(?:charts/chart\d*|diagrams/(?:data|drawing)\d*)\.xml")
_AROUND = names(
    "w:hyperlink w:ins w:smartTag w:fldSimple w:sdt w:sdtContent w:bdo w:dir w:moveTo w:customXml"
)
_SPACES = names("w:tab w:ptab w:br w:cr")
_LETTERS = {"w:noBreakHyphen": "\u2011", "w:softHyphen": "", "w:ruby": ""}
"""Elements of a run that are letters. The base of a ruby is text, and its reading is left out."""
_KEEPING_TAG = re.compile(r"""<w:t\s+xml:space\s*=\s*["']preserve["']\s*>""")
_NOTHING = re.compile(r"(?!)")
_WHITE_SPACE = " \t\r\n"
_FIRST_SPACE = re.compile(rf"(?<=>)[ \t]+|{KEPT_SPACE.pattern}")
_PLAIN = " "  # style of a run without properties
_LANGUAGES = {"western": "w:val", "asian": "w:eastAsia", "complex": "w:bidi"}
"""Attributes for the languages of the kinds of scripts."""
_SWITCHES = {"w:p": "w:bidi", "w:sect": "w:bidi", "w:tbl": "w:bidiVisual", "w:r": "w:rtl"}
"""Elements for text from right to left, by the element whose properties they are."""
_OFF = ("0", "false", "off")
_FOLLOWING = {
    "w:p": "adjustRightInd|snapToGrid|spacing|ind|contextualSpacing|mirrorIndents|suppressOverlap"
    "|jc|textDirection|textAlignment|textboxTightWrap|outlineLvl|divId|cnfStyle|rPr|sectPr",
    "w:sect": "rtlGutter|docGrid|printerSettings",
    "w:tbl": "tblStyleRowBandSize|tblStyleColBandSize|tblW|jc|tblCellSpacing|tblInd|tblBorders"
    "|shd|tblLayout|tblCellMar|tblLook|tblCaption|tblDescription",
    "w:r": "cs|em|lang|eastAsianLayout|specVanish|oMath",
}
"""Properties behind these elements, in the order that Word demands."""
_PLACES = {
    name: re.compile(rf"<(?:/?{name}Pr|{_SWITCHES[name]}|{name}PrChange|w:(?:{following}))\b")
    for name, following in _FOLLOWING.items()
}
_PROPERTIES = re.compile(r"\s*<w:pPr\b")
_TWINS = {
    "rtl": {"w:b": "w:bCs", "w:i": "w:iCs", "w:sz": "w:szCs"},
    "ltr": {"w:bCs": "w:b", "w:iCs": "w:i", "w:szCs": "w:sz"},
}
"""Properties of runs that have another name in the new direction."""
_MOST_BETWEEN = 1_000  # most characters between two properties of a run


class _Reader(MarkupReader):
    """Finds the segments of paragraphs. A segment has a pair for texts of the same properties."""

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
        """Add the texts of a run, and its other elements as runs of their own."""
        before = [self.pieces[number].span]  # the opening tag, and the properties
        closing = self.pieces[end].span
        style = _PLAIN
        has_text = any(piece.name == "w:t" for piece in self.pieces[number:end])
        for first, last in self.children(range(number + 1, end)):
            piece = self.pieces[first]
            element = self.span_of(first, last)
            if piece.name == "w:rPr":
                before = [before[0], element]
                style = self.source[slice(*element)]
            elif piece.name in _LETTERS:
                self._set_style(style)
                self._last_space = ()
                run = self.span_of(number, end)
                self.builder.add_text(self._letters(first, last), run, is_whole=True)
            elif piece.name == "w:t":
                self._set_style(style)
                if last > first:
                    behind = [self.pieces[last].span, closing]
                    self._add_text(range(first + 1, last), [*before, piece.span], behind)
            elif piece.kind != "text":
                self._add_other(piece, [*before, element, closing], has_text)
                self.inner.append(range(first + 1, last))

    def _letters(self, first: int, last: int) -> str:
        """Return the letters for which an element of a run stands."""
        letters = _LETTERS[self.pieces[first].name]
        for number in range(first, last):
            if self.pieces[number].name == "w:rubyBase":
                letters += self.text_of(range(number, self.partners.get(number, number)))
        return letters

    def _add_text(self, numbers: range, before: Sequence[Span], behind: Sequence[Span]) -> None:
        """Add a text between the tags of its run, and its repeated spaces as runs of their own."""
        begin = before[-1][1]
        end = behind[0][0]
        run = before[0][0], behind[-1][1]
        self._last_space = ()
        text = self.source[begin:end]
        # Word and LibreOffice show no other white space at either end of a text.
        is_kept = self.inherited(numbers.start - 1, "xml:space") == "preserve"
        if "<" in text:
            whole = self.text_of(numbers)
            whole = whole if is_kept else whole.strip(_WHITE_SPACE)
            self.builder.add_text(whole, run, is_whole=True)
            return
        pattern = KEPT_SPACE if self.builder.is_behind_word else _FIRST_SPACE
        if not is_kept:
            begin += len(text) - len(text.lstrip(_WHITE_SPACE))
            end = begin + len(text.strip(_WHITE_SPACE))
            # Keep several spaces by copying an earlier tag that preserves spaces.
            if self._keeping_tag is None or self._keeping_tag[1] > run[0]:
                pattern = _NOTHING
            else:
                before = [*before[:-1], self._keeping_tag]
        # Keep repeated spaces, even across runs, and a space at either end of the paragraph.
        for span, match in split_at(pattern, self.source, (begin, end)):
            text = html.unescape(self.source[slice(*span)])
            self.builder.add_text(text, run, is_whole=True)
            if match is not None:
                parts = [*before, match.span(), *behind]
                self.builder.add_empty(parts, is_space=True, is_first=True)
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


class DocxPart(XmlFormat):
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
            properties = _right_to_left(properties, text)
        written = html.escape(text, quote=False)
        return f'<w:r>{properties}<w:t xml:space="preserve">{written}</w:t></w:r>'

    def language_edits(self, tag: Piece) -> Iterator[tuple[Span, str]]:
        """Yield the places of languages and directions at a tag, in order, and their new texts."""
        new = self.languages.new_direction
        if tag.name == "w:lang":
            # Word reads the attribute for the script of a text.
            by_kind = {kind: tag.attribute(name) for kind, name in _LANGUAGES.items()}
            language = self.languages.in_target_script(by_kind)
            if language:
                yield tag.attribute_edit(_LANGUAGES[self.languages.script_kind], language)
        elif new and (tag.name in _SWITCHES.values() or tag.name == "w:cs"):
            old = "ltr" if tag.attribute("w:val") in _OFF else "rtl"
            if old != new:
                yield tag.attribute_edit("w:val", "1" if new == "rtl" else "0")
        elif new and tag.name in _TWINS[new]:
            yield from _twin_edits(tag, _TWINS[new][tag.name])
        elif new == "rtl" and tag.name in ("w:p", "w:pPr", "w:sectPr", "w:tblPr"):
            yield from _right_to_left_edits(tag)


def _twin_edits(tag: Piece, twin: str) -> Iterator[tuple[Span, str]]:
    """Yield a property of a run under its name in the other direction, if it is missing."""
    before = tag.source[max(0, tag.begin - _MOST_BETWEEN) : tag.begin].rpartition("<w:rPr")[2]
    behind = tag.source[tag.end : tag.end + _MOST_BETWEEN].partition("</w:rPr")[0]
    if tag.kind == "empty" and not re.search(rf"<{twin}\b", before + behind):
        yield (tag.end, tag.end), tag.text.replace(tag.name, twin, 1)


def _right_to_left_edits(tag: Piece) -> Iterator[tuple[Span, str]]:
    """Yield a switch for the properties of a paragraph, a section or a table."""
    properties = "<w:pPr><w:bidi/></w:pPr>"
    if tag.name == "w:p":
        if tag.kind == "open" and not _PROPERTIES.match(tag.source, tag.end):
            yield (tag.end, tag.end), properties
        return
    name = tag.name.removesuffix("Pr")
    switch = _SWITCHES[name]
    if tag.kind == "empty":
        yield tag.span, f"<{tag.name}><{switch}/></{tag.name}>"
        return
    match = _PLACES[name].search(tag.source, tag.end)
    if match and match[0] != f"<{switch}":
        yield (match.start(), match.start()), f"<{switch}/>"


def _right_to_left(properties: str, text: str) -> str:
    """Return the properties of a run, with the switch for a text from right to left.

    A text without letters has the direction of the texts around it.
    """
    directions = {unicodedata.bidirectional(character) for character in text}
    if "L" in directions and not directions & {"R", "AL"}:
        return properties
    properties = properties if "</" in properties else "<w:rPr></w:rPr>"
    match = _PLACES["w:r"].search(properties, 1)
    if match is None or match[0] == "<w:rtl":
        return properties
    return f"{properties[: match.start()]}<w:rtl/>{properties[match.start() :]}"


class DrawingPart(XmlFormat):
    """A chart or a diagram of SmartArt. The text of each run, and each label, is a segment.

    A file has its labels several times, since SmartArt has them in two parts. All get the
    translation of the first one.
    """

    vocabulary = Vocabulary(
        inline=frozenset(), skipped=names("c:numCache c:numLit"), only_in=names("a:t c:v")
    )

    def __init__(self, options: FileOptions, languages: Languages) -> None:
        super().__init__(options, languages)
        self._labels: dict[str, AlignedText] = {}  # translations of all parts, by their source

    def read(self, content: bytes) -> Document:
        document = super().read(content)

        def written(translations: Sequence[AlignedText]) -> bytes:
            for segment, translation in zip(document.segments, translations, strict=True):
                self._labels.setdefault(segment.text, translation)
            return document.written([self._labels[segment.text] for segment in document.segments])

        return replace(document, written=written)


@formats.register("docx")
class DocxFormat(ZipFormat):
    """Word."""

    def parts_with_text(self, parts: Mapping[str, bytes]) -> Iterator[tuple[str, FileFormat]]:
        names_of_parts = sorted(filter(_PARTS.fullmatch, parts))
        # Office on the web writes word/document2.xml. The text comes before headers and notes.
        names_of_parts.sort(key=lambda name: not name.startswith("word/document"))
        if not names_of_parts or not names_of_parts[0].startswith("word/document"):
            raise KeyError("word/document.xml")
        part_format = DocxPart(self.options, self.languages)
        for name in names_of_parts:
            yield name, part_format
        drawing_format = DrawingPart(self.options, self.languages)
        for name in sorted(filter(_DRAWINGS.fullmatch, parts)):
            yield name, drawing_format

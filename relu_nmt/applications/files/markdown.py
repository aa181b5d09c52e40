"""Markdown: blocks by markdown-it, and inline markup segments in the lines of the source."""

import json
import re
import unicodedata
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.aligned_words import AlignedText, Word
from relu_nmt.applications.files.document import ReadSource, TextFormat
from relu_nmt.applications.files.html import (
    HTML,
    HtmlFormat,
    HtmlReader,
    untranslated_pattern,
)
from relu_nmt.applications.files.markup import REFERENCE, Piece, add_reference
from relu_nmt.applications.files.placing import PlainText
from relu_nmt.applications.files.segments import (
    Segment,
    SegmentBuilder,
    Span,
    add_tag,
    all_tags,
    plain_segment,
)
from relu_nmt.errors import needing

with needing('Markdown needs the package {}: pip install "relu-nmt[files]"'):
    from markdown_it import MarkdownIt

_END = r"[ \t]*(?=[\r\n]|\Z)"
_FRONT = rf"\A(?:---[ \t]*\r?\n(?s:.*?)\n(?:---|\.\.\.)|\+\+\+[ \t]*\r?\n(?s:.*?)\n\+\+\+){_END}"
_FRONT_TEXT = re.compile(
    rf"""
    ^(?:title|description)[ \t]*(?:=|:(?=\s))[ \t]*
    (?P<text>"(?:\\.|[^"\\\r\n])*" | '[^'\r\n]*'
      |(?!(?i:true|false|yes|no|on|off|null|[yn]){_END})   # which are no text without quotes
       (?!\d[\dA-Fa-fox.:_+-]*{_END})\w(?:[^#\r\n]*[^# \t\r\n])?)
    {_END}(?!\s*\n[ \t]+\S)                               # nor one with a further line
    """,
    re.MULTILINE | re.VERBOSE,
)
_DIALECT = re.compile(
    rf"""
    (?P<front>{_FRONT})
  | (?P<formula>^[ \t>]*\$\$(?:[^$\n]|\$(?!\$)|\n(?![ \t>]*\r?\n))*\$\${_END})
  | ^(?P<indent>[ \t>]*)
    (?:(?P<item>(?:\[\^[^\]\s]+\]:|:(?=[ \t]))[ \t]*)      # a footnote or a definition
      |(?:(?P<admonition>(?:!!!|\?{{3}}\+?)[ ]+[a-z][\w -]*(?![\w -])(?="|{_END})"?|===[+!]?[ ]+")
        |\[!\w+\](?![(\[:])[+-]?[ \t]*                                # an alert in a quote
        |:{{3,}}[ \t]*[\w-]*[ \t\[]*)                         # the begin or end of a container
       (?P<title>[^"\[\]{{}}\r\n]*)[^\r\n]*)
    """,
    re.MULTILINE | re.VERBOSE,
)
"""Blocks that CommonMark does not have."""
_PREFIX = re.compile(r"\[[ xX]\]\s+")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_INLINE = re.compile(
    r"""
    (?P<escape>"""
    + _ESCAPE.pattern
    + r""")
  | (?P<break>(?:(?<![ ])[ ]{2,}|\\)\r?\n[ \t>]*)
  | (?P<line>\r?\n[ \t>]*)
  | (?P<code>(?<!`)(?P<ticks>`+)(?!`).{1,1000}?(?<!`)(?P=ticks)(?!`))
  | (?P<formula>(?<![A-Za-z\d$])(?P<dollars>\$\$?)(?![\s$])
      (?!\d[^$\\]*[\s(][^\W\d_]{3,}\s)                      # a price and words
      (?:`[^`$]+`|(?:\\.|[^$\\`])+)(?<!\s)(?P=dollars)(?![A-Za-z\d${]))
  | (?P<address><(?:https?|ftp|mailto):[^\s<>]*>)
  | (?P<note>\[\^[^\]\s]+\] | \{(?::|[.\#]|[\w-]+=)[^{}\n]*\}
      |(?<![\w:]):[a-z+-][\w+-]*:(?![\w:]))                # an emoji
  | (?P<url>(?:https?|ftp)://[^\s<>"')\]]+)
  | (?P<untranslated>"""
    + untranslated_pattern("<", ">")
    + r""")
  | (?P<tag><(?P<slash>/?)(?P<name>[A-Za-z][\w-]*)[^<>]*?(?P<end>/)?>)
  | (?P<link>(?P<image>!?)\[(?P<label>(?:[^\[\]\\`]|\\.|\[[^\[\]]*\]
      |(?P<label_ticks>`+)(?!`)(?:[^`]|(?!(?P=label_ticks)(?!`))`+(?!`)){1,1000}(?P=label_ticks)(?!`)
      |(?P<lone_ticks>`+)(?!`)(?!.{1,1000}?(?<!`)(?P=lone_ticks)(?!`)))*)\]
      (?P<target>\((?:<[^<>\n]*>|(?:[^()\s]|\([^()\s]*\))*)
          (?:\s+(?P<title>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\((?:\\.|[^()\\\n])*\)))?\s*\)
        |\[[^\[\]]*\])?)
  | (?P<mark>\*{1,3}|_{1,3}|~~)
  | (?P<reference>(?:"""
    + REFERENCE.pattern
    + ")(?<=;))",
    re.VERBOSE | re.DOTALL,
)
_SPECIAL = re.compile(
    r"""
    (?P<url>(?:https?|ftp)://\S+)               # which stays as it is
  | [\\*`\[\]]
  | (?<![^\W_])_ | _(?![^\W_])                  # but not within a word
  | <(?=[A-Za-z/!])                            # begin of a tag
  | ^(?=[#>+-]\s) | (?P<number>^\d+)(?=[.)]\s)  # begin of a heading, a quote or a list
  | &(?=[#\w]+;)                               # begin of a reference
    """,
    re.VERBOSE,
)
"""Places of a text that need a backslash, so that Markdown does not read them as markup."""
_SPECIAL_AND_DOLLAR = re.compile(rf"{_SPECIAL.pattern} | \$", re.VERBOSE)
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_LINE_END = re.compile(r"(?<!\\)(?<!  )(?<!\r)\r?\n[ \t>]*")
_TOKEN = re.compile(
    r"(?:(?P<ticks>`+).+?(?P=ticks)|\]\([^()]*(?:\([^()]*\)[^()]*)*\)|<[^<>]*>|\S)+"
    r"|(?P<space>\s*\n[ \t>]*|\s+)",
    re.DOTALL,
)
_MAY_BEGIN_LINE = re.compile(r"[*_\[(\"'„“«]*[^\W\d_]")
"""Beginning of a word that may begin a line. A dash or a number there would begin a block."""


class _Note(NamedTuple):
    """The kind of a text: front, title, cell, html, or "" for another text, and its detail."""

    kind: str
    detail: str = ""  # quotation marks of a title, note of HTML, or "$" where escapes keep dollars


@formats.register("markdown")
class MarkdownFormat(TextFormat):
    """Markdown with tables, footnotes, formulas, and the boxes and definitions of its dialects."""

    def segments(self, source: str) -> list[Segment]:
        segments: list[Segment | None] = []
        front = re.match(_FRONT, source)
        for match in _FRONT_TEXT.finditer(source, 0, front.end() if front else 0):
            segments.append(plain_segment(_front_text(match), match.span("text"), _Note("front")))
        pages = []
        tags = []
        for kind, span, references in _blocks(source):
            if kind == "html":
                pages.append(span)
            else:
                paragraph = _Paragraph(source, kind, references)
                texts = paragraph.read(span)
                if paragraph.lone_marks:  # which are text
                    paragraph = _Paragraph(source, kind, references, paragraph.lone_marks)
                    texts = paragraph.read(span)
                segments += texts
                tags += paragraph.tags
        segments += _html_segments(source, pages)
        segments += _html_segments(source, tags)
        return sorted(filter(None, segments), key=attrgetter("span"))

    def text(self, text: str, style: str, segment: Segment) -> str:
        """Return translated text with escapes for the characters of markup."""
        kind, detail = segment.note
        if kind == "html":
            return HtmlFormat(self.options).text(text, style, replace(segment, note=detail))
        if kind == "front":
            return json.dumps(text, ensure_ascii=False)
        if kind == "title":
            return re.sub(rf"[\\|{detail}]", r"\\\g<0>", text)
        special = _SPECIAL_AND_DOLLAR if detail == "$" else _SPECIAL
        written = special.sub(_escaped, text)
        if kind == "cell":
            written = written.replace("|", "\\|")
        return written

    def parts(self, segment: Segment, words: Sequence[Word]) -> list[Span | PlainText]:
        """Return texts and tags, but without emphasis that has no words."""
        closings: dict[Span, Span] = {}
        for tag in all_tags(segment.tags):
            if tag.repeats and tag.closing:
                closings[tag.opening[0]] = tag.closing[0]
        parts: list[Span | PlainText] = []
        for part in super().parts(segment, words):
            last = parts[-1] if parts else None
            if isinstance(last, tuple) and closings.get(last) == part:
                parts.pop()
            else:
                parts.append(part)
        return parts

    def rendered(self, segment: Segment, translation: AlignedText, source: ReadSource) -> str:
        """Return the text of a segment. If its source has several lines, wrap it to their width."""
        text = super().rendered(segment, translation, source)
        source_text = source(segment.span)
        line_end = _LINE_END.search(source_text)
        if line_end is None or segment.note.kind == "html":
            return text
        prefix = line_end[0].lstrip("\r\n")
        width = max(map(len, (prefix + source_text).splitlines()))
        return _wrapped(text, width, line_end[0])


def _front_text(match: re.Match[str]) -> str:
    """Return the text of a value of the front matter. Nothing: it has escapes that JSON has not."""
    value = match["text"]
    if value[0] == "'":
        return value[1:-1]
    if value[0] != '"':
        return value
    try:
        text = str(json.loads(value))
        text.encode()  # which half a pair of surrogates refuses
    except ValueError:
        return ""
    return text


def _escaped(match: re.Match[str]) -> str:
    if match["number"]:
        return f"{match[0]}\\"
    return match["url"] or f"\\{match[0]}"


def _blocks(source: str) -> Iterator[tuple[str, Span, Container[str]]]:
    """Yield the kind and the place of each text, and the labels that links may refer to."""
    parser = MarkdownIt("commonmark").enable("table").disable("inline")
    environment: dict[str, Any] = {}
    text, begins = _in_commonmark(source)
    tokens = parser.parse(text, environment)
    references = environment.get("references", {})
    lines = [match.span() for match in _LINE.finditer(source)]
    cursor = 0
    kind = ""
    for token in tokens:
        if token.map is not None and token.type in ("inline", "html_block"):
            first, last = token.map
            begin = lines[first][0]
            span = begins.get(begin, begin), lines[last - 1][1]
            if token.type == "html_block":
                # Without what the lines begin with in a quote or a list.
                texts = token.content.split("\n")
                for (begin, end), text in zip(lines[first:last], texts, strict=False):
                    written_end = begin + len(source[begin:end].rstrip("\r\n"))
                    begin = begins.get(begin, max(begin, written_end - len(text.lstrip())))
                    yield "html", (begin, end), references
            else:
                content = token.content.replace("|", "\\|") if kind == "cell" else token.content
                content_span = _place(source, content, (max(cursor, span[0]), span[1]))
                if content_span is not None:
                    cursor = content_span[1]
                    yield kind, content_span, references
        kind = "cell" if token.type in ("th_open", "td_open") else ""


def _in_commonmark(source: str) -> tuple[str, dict[int, int]]:
    """Return a text with the same lines, but with lists and headings for the blocks of dialects.

    Also return where the text of a changed line begins in the source, by the begin of the line.
    """
    begins = {}

    def changed(match: re.Match[str]) -> str:
        if match["front"] or match["formula"]:
            return re.sub(r"[^\r\n]", "", match[0])
        if match["item"]:
            begins[match.start()] = match.end()
            return f"{match['indent']}-   "
        begins[match.start()] = match.start("title")
        mark = "- #" if match["admonition"] else "#"
        return f"{match['indent']}{mark} {match['title']}"

    return _DIALECT.sub(changed, source), begins


def _place(source: str, content: str, span: Span) -> Span | None:
    """Return the place of a text, whose lines may have prefixes in the source. None: not found."""
    begins = []
    position = span[0]
    for line in map(str.strip, content.split("\n")):
        position = source.find(line, position, span[1])
        if position < 0:
            return None
        begins.append(position)
        position += len(line)
    return begins[0], position


def _wrapped(text: str, width: int, line_end: str) -> str:
    """Return a text with a line end instead of a space where a line would be too long.

    ``line_end`` also has the marks that the next line begins with, such as ``> ``.
    """
    column = len(line_end.lstrip("\r\n"))
    space = ""
    written = []
    for match in _TOKEN.finditer(text):
        if match["space"]:
            space = match["space"]
            continue
        is_long = column + len(space) + len(match[0]) > width
        if space == " " and is_long and _MAY_BEGIN_LINE.match(match[0]):
            space = line_end
        token = space + match[0]
        begin_line = token.rfind("\n") + 1
        column = len(token) - begin_line + (0 if begin_line else column)
        written.append(token)
        space = ""
    return "".join([*written, space])


def _is_letter(character: str) -> bool:
    """Return True for a character that is neither white space, punctuation nor a symbol."""
    return character != "" and unicodedata.category(character)[0] not in "PS"


class _BlockReader(HtmlReader):
    """Finds the segments of HTML blocks, which form feeds divide."""

    def add_text(self, piece: Piece) -> None:
        super().add_text(piece)
        if "\f" in piece.text:
            self.end_segment()


def _html_segments(source: str, spans: list[Span]) -> list[Segment]:
    if not spans:
        return []
    # Read the blocks at their places in a page of spaces, and of form feeds for lines between them.
    blank = re.sub(r"[^ \t>]", "\f", source).replace(">", " ")
    page = ""
    for begin, end in spans:
        page += blank[len(page) : begin] + source[begin:end]
    segments = []
    for segment in _BlockReader(page, HTML).segments():
        if segment is not None:
            segments.append(replace(segment, note=_Note("html", segment.note)))
    return segments


class _Paragraph:
    """Finds the segments of a text with inline markup. ``marks_as_text`` are no markup."""

    def __init__(
        self,
        source: str,
        kind: str,
        references: Container[str],
        marks_as_text: Container[Span] = (),
    ) -> None:
        self._source = source
        self._marks_as_text = marks_as_text
        self._opening_marks: set[Span] = set()
        self._note = _Note(kind)
        self._references = references
        self._builder = SegmentBuilder()
        # For each open link: the end of its text, the end of the link, and its closing tag.
        self._links: list[tuple[int, int, Sequence[Span]]] = []
        self._segments: list[Segment | None] = []
        self.tags: list[Span] = []  # tags of HTML, which may have texts as attributes

    def read(self, span: Span) -> list[Segment | None]:
        """Return the segments of a text: first its images and titles, then the text itself."""
        position, end = span
        if "\\$" in self._source[position:end]:
            self._note = self._note._replace(detail="$")
        prefix = _PREFIX.match(self._source, position, end)
        if prefix:
            position = prefix.end()
        while position < end:
            limit = self._links[-1][0] if self._links else end
            match = _INLINE.search(self._source, position, limit)
            behind = match.start() if match else limit
            self._builder.add_text(self._source[position:behind], (position, behind))
            position = behind
            if match is not None:
                position = self._add(match)
            while self._links and position >= self._links[-1][0]:
                _, link_end, closing = self._links.pop()
                self._builder.close("[", closing)
                position = max(position, link_end)
        return [*self._segments, self._builder.finish(self._note)]

    @property
    def lone_marks(self) -> set[Span]:
        """Marks that begin emphasis without an end. Ask after :meth:`read`."""
        return self._opening_marks.intersection(self._builder.without_end)

    def _add(self, match: re.Match[str]) -> int:
        """Add inline markup, and return the position behind it."""
        kind = next(name for name, value in match.groupdict().items() if value is not None)
        text = match[0]
        span = match.span()
        builder = self._builder
        # Go through the kinds in the order of _INLINE.
        if kind == "escape":
            builder.add_text(text[1:], span)
        elif kind in ("break", "note"):
            builder.add_empty([span], is_space=kind == "break")
        elif kind in ("line", "url"):
            builder.add_text(" " if kind == "line" else text, span)
        elif kind == "code":
            builder.add_protected(text.strip("`"), [span])
        elif kind in ("formula", "address"):
            builder.add_protected(text.strip("<>"), [span])
        elif kind in ("untranslated", "tag"):
            self._add_tag(match)
        elif kind == "link":
            return self._add_link(match)
        elif kind == "mark":
            begin, end = span
            before = self._source[max(0, begin - 1) : begin].strip()
            behind = self._source[end : end + 1].strip()
            self._add_mark(span, before, behind)
        else:
            add_reference(builder, match)
        return match.end()

    def _add_mark(self, span: Span, before: str, behind: str) -> None:
        """Begin or end emphasis between two characters. A mark that can do neither is text."""
        builder = self._builder
        begin, end = span
        mark = self._source[begin:end]
        # A mark between a letter and a sign belongs to the letter.
        can_close = before != "" and (_is_letter(before) or not _is_letter(behind))
        can_open = behind != "" and (_is_letter(behind) or not _is_letter(before))
        is_in_word = mark[0] == "_" and _is_letter(before) and _is_letter(behind)
        # One mark or two marks end a part of three marks.
        is_part = builder.is_innermost(3 * mark[0]) and len(mark) < 3 and before != mark[0]
        if span in self._marks_as_text or is_in_word:
            builder.add_text(mark, span)
        elif can_close and is_part:
            builder.divide_innermost(mark)
            builder.close(mark, [span])
        elif can_close and builder.is_open(mark):
            builder.close(mark, [span])
        elif (
            can_close and len(mark) == 3 and (builder.is_open(mark[0]) or builder.is_open(mark[:2]))
        ):
            # Three marks end a pair of one mark or of two marks, and end or begin the other pair.
            is_one = builder.is_innermost(mark[0]) or not builder.is_open(mark[:2])
            middle = begin + (1 if is_one else 2)
            self._add_mark((begin, middle), before, behind)
            self._add_mark((middle, end), before, behind)
        elif can_open:
            self._opening_marks.add(span)
            builder.open(mark, [span], repeats=True)
        else:
            builder.add_text(mark, span)

    def _add_tag(self, match: re.Match[str]) -> None:
        name = (match["name"] or "").lower()
        if name in HTML.empty:
            self._builder.add_empty([match.span()], is_space=name in HTML.spaces)
        else:
            add_tag(self._builder, match, [match.span()])
        if name and name not in HTML.raw and not self._builder.keeps_text:
            self.tags.append(match.span())

    def _add_link(self, match: re.Match[str]) -> int:
        """Begin a link, or add an image. Brackets without a target are text."""
        begin, end = match.span()
        label_begin, label_end = match.span("label")
        closing = [(label_end, end)]
        if match["target"] in (None, "[]"):
            if " ".join(match["label"].split()).upper() not in self._references:
                self._builder.add_text(match[0][: label_begin - begin], (begin, label_begin))
                return label_begin
            # Translate the text of the link, but keep its label.
            closing = [(label_end, label_end + 1), (label_begin - 1, label_end + 1), (end, end)]
        if match["title"]:
            title_begin, title_end = match.span("title")
            marks = match["title"][0] + match["title"][-1]
            self._add_own_segment((title_begin + 1, title_end - 1), _Note("title", marks))
        if match["image"]:
            self._add_own_segment(match.span("label"), self._note)
            self._builder.add_empty([(begin, end)])
            return end
        self._builder.open("[", [(begin, label_begin)])
        self._links.append((label_end, end, closing))
        return label_begin

    def _add_own_segment(self, span: Span, note: _Note) -> None:
        if not self._builder.keeps_text:
            text = _ESCAPE.sub(r"\1", self._source[slice(*span)])
            self._segments.append(plain_segment(text, span, note))

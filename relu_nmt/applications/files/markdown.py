"""Markdown: blocks by markdown-it, and inline markup segments in the lines of the source."""

import re
from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Any

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.document import TextFormat
from relu_nmt.applications.files.html import HTML, RAW, HtmlFormat, HtmlReader
from relu_nmt.applications.files.markup import REFERENCE, add_reference
from relu_nmt.applications.files.segments import Segment, SegmentBuilder, Span, plain_segment
from relu_nmt.errors import needing

with needing('Markdown needs the package {}: pip install "relu-nmt[files]"'):
    from markdown_it import MarkdownIt

_FRONT = re.compile(r"---[ \t]*\r?\n.*?\n(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_PREFIX = re.compile(r"\[[ xX]\]\s+|\[\^[^\]\s]+\]:\s*")
_INLINE = re.compile(
    r"""
    (?P<escape>\\[!-/:-@\[-`{-~])
  | (?P<break>(?:[ ]{2,}|\\)\r?\n[ \t>]*)
  | (?P<line>\r?\n[ \t>]*)
  | (?P<code>(?<!`)(?P<ticks>`+)(?!`).{1,1000}?(?<!`)(?P=ticks)(?!`))
  | (?P<address><(?:https?|ftp|mailto):[^\s<>]*>)
  | (?P<note>\[\^[^\]\s]+\] | <!--.*?-->)
  | (?P<url>(?:https?|ftp)://[^\s<>"')\]]+)
  | (?P<tag><(?P<slash>/?)(?P<name>[A-Za-z][\w-]*)[^<>\n]*>)
  | (?P<link>(?P<image>!?)\[(?P<label>(?:[^\[\]\\]|\\.|\[[^\[\]]*\])*)\]
      (?P<target>\((?:<[^<>\n]*>|(?:[^()\s]|\([^()\s]*\))*)(?:\s+(?:"(?P<title>[^"\n]*)"|'[^'\n]*'))?\s*\)
        |\[[^\[\]]*\])?)
  | (?P<mark>\*{1,3}|(?<![^\W_])_{1,3}|_{1,3}(?![^\W_])|~~)
  | (?P<reference>"""
    + REFERENCE.pattern
    + ")",
    re.VERBOSE | re.DOTALL,
)
_SPECIAL = re.compile(
    r"(?P<url>(?:https?|ftp)://\S+)|[\\*`\[\]]|(?<!\w)_|_(?!\w)|<(?=[A-Za-z/!])|^(?=[#>+-]\s)|^(?=\d+[.)]\s)|&(?=[#\w]+;)"
)


@formats.register("markdown")
class MarkdownFormat(TextFormat):
    """Markdown with tables, strikethrough and footnotes."""

    def segments(self, source: str) -> list[Segment]:
        """Return the segments of a text in reading order."""
        front = _FRONT.match(source)
        begin = front.end() if front else 0
        segments: list[Segment] = []
        pages: list[Span] = []
        for kind, span, references in _blocks(source, begin):
            if kind == "html":
                pages.append(span)
            else:
                segments += _Paragraph(source, kind, references).read(span)
        segments += _html_segments(source, pages)
        return sorted(segments, key=lambda segment: segment.span)

    def text(self, text: str, style: str, segment: Segment) -> str:
        """Return translated text with escapes for the characters of markup."""
        kind, _, note = segment.note.partition(":")
        if kind == "html":
            return HtmlFormat(self.options).text(text, style, replace(segment, note=note))
        if kind == "title":
            return text.replace('"', "'")
        written = _SPECIAL.sub(lambda match: match["url"] or f"\\{match[0]}", text)
        return written.replace("|", "\\|") if kind == "cell" else written


def _blocks(source: str, begin: int) -> Iterator[tuple[str, Span, Container[str]]]:
    """Yield the kind and the place of each text, and the labels that links may refer to."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    environment: dict[str, Any] = {}
    tokens = parser.parse(source[begin:], environment)
    references = environment.get("references", {})
    lines = [match.span() for match in re.compile(r"[^\n]*(?:\n|\Z)").finditer(source, begin)]
    cursor = begin
    kind = ""
    for token in tokens:
        if token.map is not None and token.type in ("inline", "html_block"):
            first, last = token.map
            span = lines[first][0], lines[last - 1][1]
            if token.type == "html_block":
                yield "html", span, references
            else:
                content_span = _place(source, token.content, (max(cursor, span[0]), span[1]))
                if content_span is not None:
                    cursor = content_span[1]
                    yield kind, content_span, references
        kind = "cell" if token.type in ("th_open", "td_open") else ""


def _place(source: str, content: str, span: Span) -> Span | None:
    """Return the place of a text whose lines have prefixes in the source, None if it has none."""
    begins = []
    position = span[0]
    for line in map(str.strip, content.split("\n")):
        position = source.find(line, position, span[1])
        if position < 0:
            return None
        begins.append(position)
        position += len(line)
    return begins[0], position


def _html_segments(source: str, spans: list[Span]) -> list[Segment]:
    """Return the segments of the blocks of HTML."""
    if not spans:
        return []
    # Read the blocks at their places in a page of spaces.
    blank = re.sub(r"\S", " ", source)
    parts = []
    position = 0
    for begin, end in spans:
        parts += [blank[position:begin], source[begin:end]]
        position = end
    segments = HtmlReader("".join(parts), HTML, RAW, folds_case=True).segments()
    return [replace(segment, note=f"html:{segment.note}") for segment in segments]


class _Paragraph:
    """Reads the inline markup of one text."""

    def __init__(self, source: str, kind: str, references: Container[str]) -> None:
        self._source = source
        self._kind = kind
        self._references = references
        self._builder = SegmentBuilder()
        # Links that have begun: the ends of their texts and of themselves, and the closing tags.
        self._links: list[tuple[int, int, tuple[Span, ...]]] = []
        self._segments: list[Segment] = []

    def read(self, span: Span) -> list[Segment]:
        """Return the segments of a text: its images and titles, and the text."""
        position, end = span
        prefix = _PREFIX.match(self._source, position, end)
        position = prefix.end() if prefix else position
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
                self._builder.close("[", *closing)
                position = max(position, link_end)
        segment = self._builder.finish(self._kind)
        return self._segments + ([] if segment is None else [segment])

    def _add(self, match: re.Match[str]) -> int:
        """Add inline markup, and return the position behind it."""
        kind = next(name for name, value in match.groupdict().items() if value is not None)
        span = match.span()
        builder = self._builder
        if kind == "link":
            return self._add_link(match)
        if kind == "mark":
            self._add_mark(match)
        elif kind == "tag":
            self._add_tag(match)
        elif kind == "code":
            builder.add_protected(match[0].strip("`"), span)
        elif kind == "address":
            builder.add_protected(match[0][1:-1], span)
        elif kind in ("break", "note"):
            builder.add_empty(span, is_space=kind == "break")
        elif kind == "reference":
            add_reference(builder, match)
        else:
            texts = {"escape": match[0][1:], "line": " ", "url": match[0]}
            builder.add_text(texts[kind], span)
        return match.end()

    def _add_mark(self, match: re.Match[str]) -> None:
        """Begin or end emphasis. A mark that can do neither is text."""
        before = self._source[match.start() - 1 : match.start()]
        behind = self._source[match.end() : match.end() + 1]
        mark, span = match[0], match.span()
        if before.strip() and self._builder.is_open(mark):
            self._builder.close(mark, span)
        elif before.strip() and self._ends_two(mark):
            # The shorter or the longer pair may be the inner one.
            inner = mark[0] if self._builder.is_innermost(mark[0]) else mark[:2]
            middle = span[0] + len(inner)
            self._builder.close(inner, (span[0], middle))
            self._builder.close(mark[len(inner) :], (middle, span[1]))
        elif behind.strip():
            self._builder.open(mark, span, repeats=True)
        else:
            self._builder.add_text(mark, span)

    def _ends_two(self, mark: str) -> bool:
        """Return True for three marks that end a pair of one and a pair of two."""
        is_open = self._builder.is_open
        return len(mark) == 3 and is_open(mark[0]) and is_open(mark[:2])

    def _add_tag(self, match: re.Match[str]) -> None:
        name = match["name"].lower()
        if match["slash"]:
            self._builder.close(name, match.span())
        elif name in HTML.empty or match[0].endswith("/>"):
            self._builder.add_empty(match.span(), is_space=name in HTML.spaces)
        else:
            self._builder.open(name, match.span())

    def _add_link(self, match: re.Match[str]) -> int:
        """Begin a link, or add an image. Brackets without a target are text."""
        begin, end = match.span()
        label_begin, label_end = match.span("label")
        closing: tuple[Span, ...] = ((label_end, end),)
        if match["target"] in (None, "[]"):
            if " ".join(match["label"].split()).upper() not in self._references:
                self._builder.add_text(match[0][: label_begin - begin], (begin, label_begin))
                return label_begin
            # The text of the link changes, and its label must not.
            closing = (label_end, label_end + 1), (label_begin - 1, label_end + 1)
        if match["title"]:
            self._add_segment(match["title"], match.span("title"), "title")
        if match["image"]:
            self._add_segment(match["label"], match.span("label"), "")
            self._builder.add_empty((begin, end))
            return end
        self._builder.open("[", (begin, label_begin))
        self._links.append((label_end, end, closing))
        return label_begin

    def _add_segment(self, text: str, span: Span, note: str) -> None:
        segment = plain_segment(text, span, note)
        if segment is not None:
            self._segments.append(segment)
